"""From text to value, where a number or a word is not enough: truths, JSON objects, JSON schemas."""

from __future__ import annotations

import json
from typing import Any

from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.regular import read_text


def read_truth(value: Any) -> bool:
    """mlx-lm's ``True`` or ``T``, ``False`` or ``F``, in any case."""
    word = str(value).lower()
    if word not in ("true", "t", "false", "f"):
        raise ValueError(f"{value!r}: give True or False")
    return word.startswith("t")


def read_template_config(value: Any) -> dict[str, Any]:
    """A JSON object with variables of a chat template."""
    from daari_mlx.text.template import check_config

    try:
        return check_config(_json_object(value, "it", '{"enable_thinking": false}', found=str(value)))
    except DaariError as error:
        raise ValueError(str(error)) from error


def read_json_schema(value: Any) -> dict[str, Any]:
    """A JSON schema, written out or in a file."""
    text, where = str(value), "it"
    if isinstance(value, str) and not text.lstrip().startswith("{"):
        where = text
        try:
            text = read_text(text, "JSON schema", instead="Give a JSON object, or a file with one.")
        except DaariError as error:
            raise ValueError(str(error)) from error
    return _json_object(text, where, '{"type": "object"}', found=text[:60])


def _json_object(value: Any, where: str, example: str, found: str) -> dict[str, Any]:
    """What ``value`` holds as JSON; what typer reads again as a default is one already."""
    if isinstance(value, dict):
        return value
    try:
        read = json.loads(value)
        json.dumps(read, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is no JSON: {error}") from error
    if not isinstance(read, dict):
        raise ValueError(f"{where} should be a JSON object such as {example}, found {found}")
    return read
