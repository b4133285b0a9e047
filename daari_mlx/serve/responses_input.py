"""The items of OpenAI's Responses API in the form of its chat API."""

from __future__ import annotations

from typing import Any

from daari_mlx.serve.errors import ApiError

Messages = list[dict[str, Any]]


def chat_messages(instructions: str | None, given: str | list[dict[str, Any]]) -> Messages:
    """The messages.

    Raises:
        ApiError: naming what cannot be read.
    """
    made: Messages = [{"role": "system", "content": instructions}] if instructions else []
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    thought = ""  # reasoning belongs to the message behind it
    for number, item in enumerate(items):
        kind, where = item.get("type") or "message", f"input.{number}"
        if kind == "reasoning":
            thought += _text(item.get("content") or item.get("summary") or [], where)
            continue
        if kind == "message":
            message = {"role": item.get("role"), "content": _text(item.get("content"), where)}
        elif kind == "function_call":
            call = {"name": item.get("name"), "arguments": item.get("arguments") or "{}"}
            made_call = {"id": item.get("call_id"), "type": "function", "function": call}
            if made and made[-1]["role"] == "assistant":
                made[-1].setdefault("tool_calls", []).append(made_call)
                continue
            message = {"role": "assistant", "content": "", "tool_calls": [made_call]}
        elif kind == "function_call_output":
            text = _text(item.get("output"), where)
            message = {"role": "tool", "tool_call_id": item.get("call_id"), "content": text}
        else:
            raise ApiError(400, f"{where}.type is {kind!r}, which is not supported here.", param=where)
        if thought and message["role"] == "assistant":
            message["reasoning_content"], thought = thought, ""
        made.append(message)
    return made


def chat_tools(tools: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """The tools.

    Raises:
        ApiError: one is the server's to run, and this server runs none.
    """
    made = []
    for number, tool in enumerate(tools or []):
        if tool.get("type") != "function":
            raise ApiError(
                400, f"tools.{number}.type is {tool.get('type')!r}: only functions are taken.", param="tools"
            )
        kept = {name: tool[name] for name in ("name", "description", "parameters") if tool.get(name) is not None}
        made.append({"type": "function", "function": kept})
    return made or None


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    for part in content if isinstance(content, list) else [content]:
        if not isinstance(part, dict) or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise ApiError(400, f"{where} has content of type {kind!r}: only text can be read.", param=where)
    return "".join(part["text"] for part in content)
