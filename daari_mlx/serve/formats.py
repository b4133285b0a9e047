"""Answers that are held to a form: `response_format`, and tools that have to be called."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from daari_mlx.serve.errors import ApiError
from daari_mlx.serve.fields import Fields
from daari_mlx.serve.service import Service

MOST_SCHEMA = 65_536  # characters of a schema
ForcedChoice = str | None


class JsonSchema(Fields):
    """OpenAI's ``json_schema``."""

    harmless = frozenset({"strict", "description"})
    name: str = "answer"
    schema_: dict[str, Any] | None = None

    model_config = Fields.model_config | {"alias_generator": lambda name: name.rstrip("_")}


class ResponseFormat(Fields):
    """OpenAI's ``response_format``."""

    type: str
    json_schema: JsonSchema | None = None


def format_processors(service: Service, asked: ResponseFormat | None) -> list[Any]:
    """What holds an answer to the format.

    Raises:
        ApiError: there is no such format.
        DaariError: the schema cannot be followed.
    """
    if asked is None or asked.type == "text":
        return []
    if asked.type == "json_object":
        return [grammar(service, {"type": "object"})]
    if asked.type == "json_schema" and asked.json_schema is not None and asked.json_schema.schema_ is not None:
        return [grammar(service, asked.json_schema.schema_)]
    raise ApiError(
        400,
        f"response_format is {asked.type!r}: give text, json_object, or json_schema with a json_schema.schema.",
        param="response_format",
    )


def forced_call(service: Service, tools: list[dict[str, Any]] | None, name: str) -> Any:
    """What holds an answer to a call of one of these tools: a JSON object with its name and arguments.

    Args:
        name: of the tool; empty for any.

    Raises:
        ApiError: there is no such tool.
    """
    given = [tool.get("function") for tool in tools or []]
    found = [tool for tool in given if isinstance(tool, dict) and isinstance(tool.get("name"), str)]
    chosen = [tool for tool in found if not name or tool["name"] == name]
    if not chosen:
        known = ", ".join(tool["name"] for tool in found) or "none"
        raise ApiError(
            400,
            f"tool_choice asks for {name or 'a tool'}, and tools has {known}: add it to tools, or ask for another.",
            param="tool_choice",
        )
    forms = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool["name"]},
                "arguments": tool.get("parameters") or {"type": "object", "properties": {}},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in chosen
    ]
    return grammar(service, forms[0] if len(forms) == 1 else {"anyOf": forms})


def grammar(service: Service, schema: dict[str, Any]) -> Any:
    """The processor of a schema, kept for the next request with the same one.

    Raises:
        ApiError: it is too large.
        DaariError: it cannot be followed.
    """
    text = json.dumps(schema, sort_keys=False)
    if len(text) > MOST_SCHEMA:
        raise ApiError(
            413, f"The JSON schema has {len(text):,} characters, and at most {MOST_SCHEMA:,} are taken: simplify it."
        )
    return _grammar(service.tokenizer, text, service.whitespace)


@lru_cache(maxsize=32)
def _grammar(tokenizer: Any, schema: str, whitespace: Any) -> Any:
    from daari_mlx.decode.grammar import json_schema_processor

    return json_schema_processor(tokenizer, schema, whitespace)
