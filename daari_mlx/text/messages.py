"""Messages and tools as callers and data files give them, checked and brought into one form.

The form is the one that mlx-lm's server brings them into: a list of text parts becomes one text, a missing text beside
a tool call an empty one, and the arguments of a call an object. Chat templates differ in how they read a call, so
:func:`forms` gives the others too.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from daari_mlx.ground.errors import DaariError

T = TypeVar("T")
Messages = list[dict[str, Any]]

DEEPEST = 100  # levels of lists and objects: renderers and hashes call themselves for each
SPOKEN = frozenset({"system", "developer", "user", "assistant"})  # others' content (a tool's result) may be any JSON
LABELS = frozenset({"role", "content", "name", "id"})  # keys that say nothing by themselves
JSON_NAMES: dict[type, str] = {dict: "an object", list: "a list", str: "a string"}


class BadInput(DaariError):
    """What was given cannot become a prompt.

    Attributes:
        reason: why, as the rest of a line that begins with the place it was found at.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason[:1].upper()}{reason[1:]}.")
        self.reason = reason


def typed(value: Any, kind: type[T], what: str, *, filled: bool = True) -> T:
    """``value``, after seeing that it is of this type and, if ``filled``, not empty.

    Raises:
        BadInput: it is not; ``what`` begins the reason.
    """
    if not isinstance(value, kind):
        found = "missing or null" if value is None else json.dumps(value, default=_type_name)[:40]
        raise BadInput(f"{what} is {found}, not {JSON_NAMES[kind]}")
    if filled and not value:
        raise BadInput(f"{what} is empty")
    return value


def _type_name(value: Any) -> str:
    return type(value).__name__


def read_messages(messages: Any) -> Messages:
    """Messages in the one form; what was given stays as it is.

    Args:
        messages: a list of objects, ``{"role": ..., "content": ...}``; objects of an API's client do too. ``content``
            is a text or a list of ``{"type": "text", "text": ...}``, of a tool any JSON. A tool call has ``name`` and
            ``arguments``, under ``function`` or not; arguments are an object or JSON text, and text that is no JSON
            stays text.

    Raises:
        BadInput: what chat templates let pass, since most of them print anything: naming the message and the field.
    """
    read = typed(plain(messages), list, "'messages'")
    for number, message in enumerate(read, start=1):
        typed(message, dict, f"message {number}")
        role = typed(message.get("role"), str, f"the role of message {number}")
        message["content"] = _content(message, role, f"the content of message {number} ({role})")
        if message.get("tool_calls"):
            message["tool_calls"] = _calls(message["tool_calls"], f"message {number} ({role})")
    return read


def plain(value: Any, depth: int = 0) -> Any:
    """A copy in dicts and lists: what other mappings, sequences, dataclasses and pydantic objects hold.

    Raises:
        BadInput: it is nested more than ``DEEPEST`` levels deep.
    """
    if value is None or type(value) in (str, int, float, bool):
        return value
    if depth > DEEPEST:
        raise BadInput(f"messages or tools are nested more than {DEEPEST} levels deep")
    if isinstance(value, Mapping):
        return {key: plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, depth + 1) for item in value]
    if isinstance(value, type):
        return value
    if callable(getattr(value, "model_dump", None)):
        return plain(value.model_dump(), depth + 1)
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name), depth + 1) for field in dataclasses.fields(value)}
    return value


def _content(message: dict[str, Any], role: str, what: str) -> Any:
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    if parts and all(_is_text(part) for part in parts):
        return "".join(part["text"] for part in parts)
    if content is None:
        says_more = any(value for key, value in message.items() if key not in LABELS)
        return "" if says_more else typed(content, str, what)
    if role not in SPOKEN:
        return content
    if isinstance(content, list):
        if not content:
            return ""
        raise BadInput(f"{what} has parts that are not {{'type': 'text', 'text': '...'}}: only text can be read")
    return typed(content, str, what, filled=False)


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _calls(calls: Any, where: str) -> list[dict[str, Any]]:
    """Tool calls, nested or flat as they were given, with their arguments parsed."""
    calls = typed(from_text(calls, f"'tool_calls' of {where}"), list, f"'tool_calls' of {where}")
    for number, call in enumerate(calls, start=1):
        what = f"tool call {number} of {where}"
        said = function_of(typed(call, dict, what))
        typed(said, dict, f"the function of {what}")
        typed(said.get("name"), str, f"the name of {what}")
        arguments = said.get("arguments")
        if isinstance(arguments, str) and arguments:
            try:
                said["arguments"] = json.loads(arguments)
            except (ValueError, RecursionError):
                continue  # a call may be of plain text
    return calls


def function_of(call: dict[str, Any]) -> dict[str, Any]:
    """The part of a call that has its name and arguments, nested or flat."""
    nested = call.get("function")
    return call if nested is None else nested


def called(message: dict[str, Any]) -> list[str]:
    """The names of the functions that a message calls."""
    return [function_of(call)["name"] for call in message.get("tool_calls") or []]


def read_tools(tools: Any) -> list[Any] | None:
    """Descriptions of functions for a chat template, parsed where they are JSON text; None where there are none.

    Raises:
        BadInput: it is no list of objects; functions of Python are left to the template to describe.
    """
    if tools is None:
        return None
    read: Any = plain(from_text(tools, "'tools'"))
    if not read and isinstance(read, (list, dict)):
        return None
    typed(read, list, "'tools'")
    for number, tool in enumerate(read, start=1):
        if not callable(tool):
            typed(tool, dict, f"tool {number} of 'tools'")
    return read


def from_text(value: Any, what: str) -> Any:
    """What JSON text says; anything else as it is, and empty text as an empty list."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value) if value.strip() else []
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{what} is text that is no JSON ({error}): give a list") from error


def forms(messages: Messages) -> Iterator[Messages]:
    """The messages as they are, then with their tool calls in the other forms that chat templates read.

    A call may have its name and arguments under ``function`` or not, and arguments may be an object or JSON text.
    """
    seen: list[Messages] = []
    for as_text in (False, True):
        for shape in (None, True, False):
            made = [_formed(message, shape, as_text) for message in messages]
            if made not in seen:
                seen.append(made)
                yield copy.deepcopy(made)  # a template in Python may write into them


def _formed(message: dict[str, Any], nested: bool | None, as_text: bool) -> dict[str, Any]:
    if not message.get("tool_calls"):
        return message
    return {**message, "tool_calls": [_call(call, nested, as_text) for call in message["tool_calls"]]}


def _call(call: dict[str, Any], nested: bool | None, as_text: bool) -> dict[str, Any]:
    """One call, its name and arguments under ``function`` (``nested``) or beside its id and type; None: as it is."""
    given = call.get("function") is not None
    outside = [key for key in call if key != "function" and (given or key in ("id", "type"))]
    said = {key: value for key, value in function_of(call).items() if given or key not in outside}
    if as_text and not isinstance(said.get("arguments", ""), str):
        said["arguments"] = json.dumps(said["arguments"], ensure_ascii=False)
    if nested is None:
        return {**call, "function": said} if given else {**call, **said}
    around = {key: call[key] for key in outside}
    return {"type": "function", **around, "function": said} if nested else {**around, **said}


def canonical(messages: Messages) -> Messages:
    """Equal for messages that say the same: calls nested, arguments as objects, and no key without a value."""
    made = [_formed(message, True, False) for message in messages]
    return [{k: v for k, v in message.items() if v is not None and (k != "tool_calls" or v)} for message in made]
