"""Anthropic's messages and tools in the form of OpenAI's chat API."""

from __future__ import annotations

import json
from typing import Any

from daari_mlx.serve.errors import ApiError

Messages = list[dict[str, Any]]


def chat_messages(system: str | list[dict[str, Any]] | None, given: Messages) -> tuple[Messages, bool]:
    """The messages, and whether the last one is the beginning of the answer.

    Raises:
        ApiError: naming what cannot be read.
    """
    made: Messages = []
    if system:
        made.append({"role": "system", "content": _text(system, "system")})
    for number, message in enumerate(given):
        where, role = f"messages.{number}", message.get("role")
        if role == "user":
            made += _user(message.get("content"), where)
        elif role == "assistant":
            made.append(_assistant(message.get("content"), where))
        elif role == "system":
            made.append({"role": "system", "content": _text(message.get("content"), where)})
        else:
            raise ApiError(400, f"{where}.role is {role!r}: give user or assistant.", param=f"{where}.role")
    last = made[-1]
    return made, last["role"] == "assistant" and "tool_calls" not in last


def chat_tools(tools: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """The tools.

    Raises:
        ApiError: one is the server's to run, and this server runs none.
    """
    made = []
    for number, tool in enumerate(tools or []):
        if tool.get("type", "custom") != "custom" or not isinstance(tool.get("name"), str):
            raise ApiError(
                400,
                f"tools.{number} is {tool.get('type', 'a tool without a name')}: give only tools that the client runs.",
            )
        function = {"name": tool["name"], "parameters": tool.get("input_schema") or {"type": "object"}}
        if tool.get("description"):
            function["description"] = tool["description"]
        made.append({"type": "function", "function": function})
    return made or None


def _user(content: Any, where: str) -> Messages:
    """Results of tools come as messages of their own, before what the user says."""
    if isinstance(content, str):
        return [{"role": "user", "content": content}]
    results: Messages = []
    said = []
    for block in _blocks(content, where):
        if block.get("type") == "tool_result":
            text = _text(block.get("content") or "", where)
            results.append({"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": text})
        else:
            said.append(block)
    return results + ([{"role": "user", "content": _text(said, where)}] if said or not results else [])


def _assistant(content: Any, where: str) -> dict[str, Any]:
    if isinstance(content, str):
        return {"role": "assistant", "content": content}
    made: dict[str, Any] = {"role": "assistant", "content": ""}
    for block in _blocks(content, where):
        if block.get("type") == "tool_use":
            function = {"name": block.get("name"), "arguments": json.dumps(block.get("input") or {})}
            call = {"id": block.get("id"), "type": "function", "function": function}
            made.setdefault("tool_calls", []).append(call)
        elif block.get("type") == "thinking":
            made["reasoning_content"] = made.get("reasoning_content", "") + str(block.get("thinking", ""))
        elif block.get("type") != "redacted_thinking":
            made["content"] += _text([block], where)
    return made


def _blocks(content: Any, where: str) -> Messages:
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise ApiError(400, f"{where}.content should be a text or a list of blocks.", param=f"{where}.content")
    return content


def _text(content: Any, where: str) -> str:
    """All text of some blocks."""
    if isinstance(content, str):
        return content
    blocks = _blocks(content, where)
    for block in blocks:
        if block.get("type") != "text" or not isinstance(block.get("text"), str):
            raise ApiError(
                400, f"{where} has a block of type {block.get('type')!r}: only text can be read.", param=where
            )
    return "\n\n".join(block["text"] for block in blocks) if where == "system" else "".join(b["text"] for b in blocks)
