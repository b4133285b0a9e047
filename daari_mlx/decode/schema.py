"""From a JSON schema to the engine's grammar; what cannot be followed is refused by name before anything is decoded.

The engine is llguidance. It refuses most of what it cannot follow; looked for here is what it would leave out without
a word (misspelt keywords, those of other dialects) or find out only amid an answer (a schema that asks for itself).
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator
from typing import Any, Literal, get_args
from urllib.parse import unquote

from daari_mlx.ground.errors import DaariError

Whitespace = Literal["compact", "spaced", "any"]
Schema = dict[str, Any] | bool

NEAR = 0.85  # how alike a word has to be to a keyword to be taken for a misspelt one
SHOWN = 5  # faults that an error names


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


FOLLOWED = _names(
    "$ref additionalItems additionalProperties allOf anyOf const enum exclusiveMaximum exclusiveMinimum format items "
    "maxItems maxLength maxProperties maximum minItems minLength minProperties minimum multipleOf oneOf pattern "
    "patternProperties prefixItems properties required type"
)
NOT_FOLLOWED = _names(  # nullable is OpenAPI's, the last three are those of the third draft
    "$dynamicAnchor $dynamicRef $recursiveAnchor $recursiveRef contains dependencies dependentRequired "
    "dependentSchemas else if maxContains minContains not propertyNames then unevaluatedItems unevaluatedProperties "
    "uniqueItems nullable disallow divisibleBy extends"
)
NO_RULES = _names(  # they say something of a value, and forbid none
    "$anchor $comment $defs $id $schema $vocabulary contentEncoding contentMediaType contentSchema default definitions "
    "deprecated description discriminator example examples id readOnly title writeOnly"
)
_FORMS: dict[str, dict[str, Any]] = {
    "compact": {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"},
    "spaced": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "},
    # without an upper bound, small teachers like to go on with white space for ever
    "any": {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,40}", "item_separator": ",", "key_separator": ":"},
}


def grammar_of(schema: dict[str, Any] | str, whitespace: Whitespace = "compact") -> str:
    """The grammar of a JSON schema, in llguidance's own form.

    Args:
        schema: the schema, or its JSON text.
        whitespace: ``"compact"`` for none (``{"a":1,"b":2}``), ``"spaced"`` for one space behind each ``,`` and ``:``
            (as ``json.dumps`` writes), ``"any"`` for what the teacher likes.

    Raises:
        DaariError: it is no schema, no answer could follow it, or llguidance cannot.
    """
    if whitespace not in get_args(Whitespace):
        raise DaariError(f"White space is {whitespace!r}: give one of {', '.join(get_args(Whitespace))}.")
    text = schema if isinstance(schema, str) else _as_json(schema)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DaariError(f"The JSON schema is no JSON: {error}.") from error
    if not isinstance(found, dict):
        raise DaariError(f"A JSON schema is a JSON object, found {text[:60]}: give one such as {{}}.")
    faults = list(_faults(found))
    grammar, words = ("", faults) if faults else _compile(text, whitespace)
    if words:
        more = "; and more" if len(words) > SHOWN else ""
        raise refusal("; ".join(words[:SHOWN]) + more)
    return grammar


def _compile(text: str, whitespace: Whitespace) -> tuple[str, list[str]]:
    """The grammar, and what llguidance says against it."""
    from llguidance import LLMatcher

    try:
        grammar = LLMatcher.grammar_from_json_schema(text, overrides=_FORMS[whitespace])  # type: ignore[arg-type]
        _, words = LLMatcher.validate_grammar_with_warnings(grammar)
    except ValueError as error:
        return "", [str(error)]
    return grammar, words


def refusal(found: str) -> DaariError:
    """The error that says why answers cannot be held to a schema; ``found`` may be llguidance's own words."""
    words = " ".join(found.split()).split(" <state>")[0]  # behind it, llguidance shows its own insides
    words = words.replace("regex parse error", "pattern or patternProperties, regex parse error")
    words = words.replace("patternProperty", "patternProperties")
    words = words.replace(". Enable 'coerce_one_of' option to approximate oneOf with anyOf", ": write anyOf")
    return DaariError(f"Answers cannot be held to this JSON schema: {words[:300].rstrip('.')}. Change the schema.")


def _as_json(schema: Any) -> str:
    try:
        return json.dumps(schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise DaariError(f"The JSON schema cannot be written as JSON: {error}. Give plain dicts and lists.") from error


def _faults(root: dict[str, Any]) -> Iterator[str]:
    """What the engine would leave out, or find out too late, in words."""
    reached = _reach(root)
    for where, schema in reached.values():
        for key in schema:
            if key == "x-guidance":
                yield f"{key} sets llguidance itself, which is done here by the choice of white space (at {where})"
            elif key in NOT_FOLLOWED:
                yield f"{key} is not supported (at {where})"
            elif key not in FOLLOWED | NO_RULES and (near := difflib.get_close_matches(key, FOLLOWED, 1, NEAR)):
                yield f"{key} is no keyword, did you mean {near[0]}? (at {where})"
        if isinstance(schema.get("required", []), bool):
            yield f"required is {json.dumps(schema['required'])}, as only the third draft has it (at {where})"
        least, listed = schema.get("minProperties"), schema.get("properties") or {}
        free = "patternProperties" in schema or schema.get("additionalProperties") is not False
        if free and isinstance(least, int) and isinstance(listed, dict) and least > len(listed) + 1:
            yield f"minProperties {least} cannot be kept, since a key that is not listed may come twice (at {where})"
    endless = _endless(root, reached)
    for node, (where, schema) in reached.items():
        if node in endless and "$ref" in schema and id(_target(root, schema["$ref"])) in endless:
            yield f"$ref {schema['$ref']} leads to itself again and again, so that no answer could end (at {where})"
            return


def _reach(root: dict[str, Any]) -> dict[int, tuple[str, dict[str, Any]]]:
    """All schemas that an answer may have to follow, by ``id``, each with where it stands (a JSON pointer)."""
    reached: dict[int, tuple[str, dict[str, Any]]] = {}
    left: list[tuple[str, Any]] = [("#", root)]
    while left:
        where, schema = left.pop()
        if not isinstance(schema, dict) or id(schema) in reached:
            continue
        reached[id(schema)] = (where, schema)
        left += reversed(list(_parts(schema, where)))
        if "$ref" in schema:
            left.append((str(schema["$ref"]), _target(root, schema["$ref"])))
    return reached


def _parts(schema: dict[str, Any], where: str) -> Iterator[tuple[str, Any]]:
    """The schemas directly within one, each with where it stands."""
    for key in ("properties", "patternProperties", "items", "prefixItems", "allOf", "anyOf", "oneOf"):
        inner = schema.get(key)
        if isinstance(inner, list):
            yield from ((f"{where}/{key}/{index}", part) for index, part in enumerate(inner))
        elif isinstance(inner, dict) and key == "items":
            yield f"{where}/items", inner
        elif isinstance(inner, dict):
            yield from ((f"{where}/{key}/{name}", part) for name, part in inner.items())
    for key in ("additionalProperties", "additionalItems"):
        yield f"{where}/{key}", schema.get(key)


def _target(root: dict[str, Any], ref: Any) -> Any:
    """What a reference within the schema points at; None where that is not found (llguidance then tells)."""
    name = unquote(str(ref)).removeprefix("#")
    if name and not name.startswith("/"):
        return _anchored(root, name)
    found: Any = root
    for step in name.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list):
            found = found[int(step)] if step.isdecimal() and int(step) < len(found) else None
        else:
            found = found.get(step) if isinstance(found, dict) else None
    return found


def _anchored(root: dict[str, Any], name: str) -> Any:
    left: list[Any] = [root]
    while left:
        found = left.pop()
        if isinstance(found, dict):
            if found.get("$anchor") == name:
                return found
            left += found.values()
        elif isinstance(found, list):
            left += found
    return None


def _endless(root: dict[str, Any], reached: dict[int, tuple[str, dict[str, Any]]]) -> set[int]:
    """Which schemas no finite value follows, since they ask for themselves: what is not in the least fixed point."""
    left = set(reached)

    def ends(schema: Any) -> bool:
        return id(schema) not in left

    while True:
        # what stands within a schema was mostly reached after it
        ended = [key for key in reversed(reached) if key in left and _ends(reached[key][1], root, ends)]
        if not ended:
            return left
        left.difference_update(ended)


def _ends(schema: dict[str, Any], root: dict[str, Any], ends: Any) -> bool:
    """Whether a finite value follows this schema, given which of the others ``ends`` says so of."""
    if "$ref" in schema and not ends(_target(root, schema["$ref"])):
        return False
    lists = {key: schema[key] for key in ("allOf", "anyOf", "oneOf") if isinstance(schema.get(key), list)}
    if not all(map(ends, lists.pop("allOf", []))) or not all(any(map(ends, parts)) for parts in lists.values()):
        return False
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if not isinstance(kinds, list) or "enum" in schema or "const" in schema:
        return True
    return any(_kind_ends(kind, schema, ends) for kind in kinds)


def _kind_ends(kind: Any, schema: dict[str, Any], ends: Any) -> bool:
    """The same for values of one type."""
    if kind == "object":
        listed = schema.get("properties", {})
        names = schema.get("required", [])
        if not isinstance(names, list) or not isinstance(listed, dict):
            return True
        return all(ends(listed[name]) if name in listed else all(map(ends, _free(name, schema))) for name in names)
    if kind == "array":
        least, first, rest = schema.get("minItems", 0), schema.get("prefixItems", []), schema.get("items")
        if isinstance(rest, list):  # as older drafts write it
            first, rest = rest, schema.get("additionalItems")
        if not isinstance(least, int) or not isinstance(first, list):
            return True
        return all(map(ends, first[:least])) and (least <= len(first) or ends(rest))
    return True


def _free(name: Any, schema: dict[str, Any]) -> list[Any]:
    """The schemas of a key that is not among the properties."""
    patterns = schema.get("patternProperties")
    try:
        own = [part for p, part in patterns.items() if re.search(p, str(name))] if isinstance(patterns, dict) else []
    except re.error:
        return []
    return own or [schema.get("additionalProperties")]
