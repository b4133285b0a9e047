"""Which JSON schemas are followed: each keyword is, or is refused by name before anything is decoded."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest
from graphs import Compiled
from llguidance import LLMatcher

from daari_mlx.decode.grammar import json_schema_processor
from daari_mlx.decode.schema import FOLLOWED, NO_RULES, NOT_FOLLOWED, grammar_of
from daari_mlx.ground.errors import DaariError

EOS = 2
TEXT: dict[str, Any] = {"type": "string", "maxLength": 3}
NUMBER: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": 20}

# every keyword of the drafts from the third on, each in a schema that means something by it
KEYWORDS: dict[str, dict[str, Any]] = {
    "$schema": {"$schema": "https://json-schema.org/draft/2020-12/schema", **TEXT},
    "$id": {"$id": "http://example.com/one", **TEXT},
    "id": {"id": "one", **TEXT},
    "$comment": {"$comment": "a note", **TEXT},
    "$vocabulary": {"$vocabulary": {}, **TEXT},
    "$anchor": {"$ref": "#here", "$defs": {"a": {"$anchor": "here", **TEXT}}},
    "$ref": {"$ref": "#/$defs/a", "$defs": {"a": TEXT}},
    "$defs": {"items": {"$ref": "#/$defs/a~1b"}, "type": "array", "maxItems": 2, "$defs": {"a/b": NUMBER}},
    "definitions": {"$ref": "#/definitions/a", "definitions": {"a": TEXT}},
    "$dynamicRef": {"type": "array", "items": {"$dynamicRef": "#x"}},
    "$dynamicAnchor": {"$dynamicAnchor": "x", **TEXT},
    "$recursiveRef": {"type": "array", "items": {"$recursiveRef": "#"}},
    "$recursiveAnchor": {"$recursiveAnchor": True, **TEXT},
    "title": {"title": "a", **TEXT},
    "description": {"description": "a", **TEXT},
    "default": {"default": "a", **TEXT},
    "examples": {"examples": ["a"], **TEXT},
    "example": {"example": "a", **TEXT},
    "deprecated": {"deprecated": True, **TEXT},
    "readOnly": {"readOnly": True, **TEXT},
    "writeOnly": {"writeOnly": True, **TEXT},
    "contentEncoding": {"contentEncoding": "base64", **TEXT},
    "contentMediaType": {"contentMediaType": "application/json", **TEXT},
    "contentSchema": {"contentSchema": {"not": {}}, **TEXT},
    "discriminator": {"discriminator": {"propertyName": "a"}, "type": "object", "properties": {"a": TEXT}},
    "type": {"type": ["boolean", "null"]},
    "enum": {"enum": ["a", 1, None, {"a": [1]}]},
    "const": {"const": {"a": [1, "b"]}},
    "allOf": {"allOf": [TEXT, {"type": "string", "minLength": 2}]},
    "anyOf": {"anyOf": [TEXT, NUMBER]},
    "oneOf": {"oneOf": [TEXT, NUMBER]},
    "not": {"type": "integer", "not": {"const": 3}},
    "if": {"if": {"type": "string"}, "then": TEXT, "else": NUMBER},
    "then": {"type": "string", "then": TEXT},
    "else": {"type": "string", "else": TEXT},
    "properties": {"type": "object", "properties": {"a": TEXT, "b": NUMBER}, "additionalProperties": False},
    "required": {"type": "object", "properties": {"a": TEXT}, "required": ["a", "b"], "additionalProperties": NUMBER},
    "additionalProperties": {"type": "object", "properties": {"a": TEXT}, "additionalProperties": NUMBER},
    "patternProperties": {"type": "object", "patternProperties": {"^a": NUMBER, "^b": TEXT}, "properties": {"ab": {}}},
    "propertyNames": {"type": "object", "propertyNames": {"maxLength": 1}},
    "unevaluatedProperties": {"type": "object", "unevaluatedProperties": False},
    "dependentRequired": {"type": "object", "dependentRequired": {"a": ["b"]}},
    "dependentSchemas": {"type": "object", "dependentSchemas": {"a": {"required": ["b"]}}},
    "dependencies": {"type": "object", "dependencies": {"a": ["b"]}},
    "minProperties": {"type": "object", "additionalProperties": NUMBER, "minProperties": 1},
    "maxProperties": {"type": "object", "additionalProperties": NUMBER, "maxProperties": 2},
    "items": {"type": "array", "items": NUMBER},
    "prefixItems": {"type": "array", "prefixItems": [TEXT, NUMBER], "items": False},
    "additionalItems": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "array",
        "items": [TEXT],
        "additionalItems": NUMBER,
    },
    "unevaluatedItems": {"type": "array", "unevaluatedItems": False},
    "contains": {"type": "array", "contains": TEXT},
    "minContains": {"type": "array", "minContains": 2},
    "maxContains": {"type": "array", "maxContains": 2},
    "minItems": {"type": "array", "items": NUMBER, "minItems": 2},
    "maxItems": {"type": "array", "items": NUMBER, "maxItems": 2},
    "uniqueItems": {"type": "array", "items": NUMBER, "uniqueItems": True},
    "minimum": {"type": "number", "minimum": 3, "maximum": 4},
    "maximum": {"type": "integer", "minimum": -5, "maximum": 5},
    "exclusiveMinimum": {"type": "integer", "exclusiveMinimum": 3, "maximum": 6},
    "exclusiveMaximum": {"type": "integer", "minimum": 3, "exclusiveMaximum": 6},
    "multipleOf": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 100},
    "minLength": {"type": "string", "minLength": 2, "maxLength": 4},
    "maxLength": {"type": "string", "maxLength": 2},
    "pattern": {"type": "string", "pattern": "^(ab|ba)+$", "maxLength": 6},
    "format": {"type": "string", "format": "ipv4"},
    "nullable": {"nullable": True, **TEXT},
    "disallow": {"type": "string", "disallow": "string"},
    "divisibleBy": {"type": "integer", "divisibleBy": 3},
    "extends": {"extends": TEXT},
}


def walk(tokenizer: Any, schema: dict[str, Any], seed: int, longest: int = 100) -> str | None:
    """A random answer under the schema; None where it does not end in time."""
    answer = json_schema_processor(tokenizer, schema).for_answer([5])
    draw = random.Random(seed)
    closing = [tokenizer.encode(sign, add_special_tokens=False)[-1] for sign in '"}],:0ab']
    said: list[int] = []
    while len(said) < longest:
        answer._stand(said)
        allowed = np.nonzero(answer._masks([], 640)[0])[0].tolist()
        ends = [token for token in closing if token in allowed] if draw.random() < 0.6 else []
        token = EOS if EOS in allowed and draw.random() < 0.5 else draw.choice(ends or allowed)
        if token == EOS:
            return tokenizer.decode(said)
        said.append(token)
    return None


def follows(schema: dict[str, Any], answer: str) -> bool:
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    return kind(schema, format_checker=kind.FORMAT_CHECKER).is_valid(json.loads(answer))


def test_the_table_has_every_keyword() -> None:
    assert set(KEYWORDS) == FOLLOWED | NOT_FOLLOWED | NO_RULES
    assert all(key in json.dumps(schema) for key, schema in KEYWORDS.items())


@pytest.mark.parametrize("keyword", sorted(FOLLOWED | NO_RULES))
def test_a_keyword_is_followed(compiled: Compiled, keyword: str) -> None:
    schema = KEYWORDS[keyword]
    answers = [walk(compiled.teacher.tokenizer, schema, seed) for seed in range(12)]
    ended = [answer for answer in answers if answer is not None]
    assert ended and all(follows(schema, answer) for answer in ended)


@pytest.mark.parametrize("keyword", sorted(NOT_FOLLOWED))
@pytest.mark.parametrize("deep", [False, True])
def test_a_keyword_that_is_not_followed_is_refused_by_name(compiled: Compiled, keyword: str, deep: bool) -> None:
    schema = KEYWORDS[keyword]
    if deep:
        schema = {"type": "object", "properties": {"x": {"anyOf": [{"type": "null"}, schema]}}}
    with pytest.raises(DaariError) as error:
        json_schema_processor(compiled.teacher.tokenizer, schema)
    assert f"{keyword} is not supported (at #" in str(error.value)


def test_a_property_may_have_a_keyword_for_a_name() -> None:
    names = sorted(NOT_FOLLOWED | {"maxLenght", "x-guidance"})
    grammar_of({"type": "object", "properties": dict.fromkeys(names, TEXT), "$defs": {"unused": {"not": {}}}})


def test_what_llguidance_itself_does_not_know_is_in_the_table() -> None:
    """A keyword that a later version follows, or no longer does, shows here."""
    refused = set()
    for key, schema in KEYWORDS.items():
        wrong, words = LLMatcher.validate_grammar_with_warnings(LLMatcher.grammar_from_json_schema(json.dumps(schema)))
        refused |= {key} if wrong and "Unimplemented keys" in words[0] else set()
    assert NOT_FOLLOWED - refused == {"nullable", "disallow", "divisibleBy", "extends"}
    assert refused <= NOT_FOLLOWED


@pytest.mark.parametrize(
    ("schema", "word"),
    [
        ({"type": "string", "maxLenght": 3}, "did you mean maxLength"),
        ({"type": "object", "additionalproperties": False}, "did you mean additionalProperties"),
        ({"type": "object", "properties": {"a": {"types": "string"}}}, r"did you mean type\? \(at #/properties/a\)"),
        ({"x-guidance": {"lenient": True}, "type": "string"}, "x-guidance"),
        ({"type": "object", "properties": {"a": {"type": "string", "required": True}}}, "required is true"),
        ({"type": "object", "additionalProperties": NUMBER, "minProperties": 2}, "minProperties 2"),
        ({"type": "object", "patternProperties": {"^a": {}, "b$": {}}}, "patternProperties.*not disjoint"),
        ({"type": "object", "patternProperties": {"(": {}}}, "patternProperties"),
        ({"type": "string", "pattern": "^(?!a)"}, "pattern.*look-around"),
        ({"type": "string", "format": "iri"}, "format: iri"),
        ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "oneOf.*write anyOf"),
        ({"$ref": "https://example.com/schema.json"}, "example.com"),
        ({"$ref": "#/$defs/missing"}, "missing"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "minimum"),
        ({"enum": []}, "Unsatisfiable"),
        ({"type": "text"}, "text"),
        ("true", "JSON object"),
        ("[" * 5000, "no JSON"),
        ('{"items":' * 300 + "{}" + "}" * 300, "recursion limit"),
        ({"const": {1, 2}}, "plain dicts"),
    ],
)
def test_what_cannot_be_followed_is_told_in_one_line(compiled: Compiled, schema: Any, word: str) -> None:
    with pytest.raises(DaariError, match=word) as error:
        json_schema_processor(compiled.teacher.tokenizer, schema)
    assert "\n" not in str(error.value) and "<state>" not in str(error.value) and len(str(error.value)) < 420


LOOP = {"type": "object", "properties": {"a": {"$ref": "#/$defs/loop"}}, "required": ["a"]}
ENDLESS: dict[str, dict[str, Any]] = {
    "itself": {"$ref": "#"},
    "in turn": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    "all of itself": {"allOf": [{"$ref": "#"}]},
    "any of itself": {"anyOf": [{"$ref": "#"}, {"allOf": [{"$ref": "#"}]}]},
    "a property": {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    "a free property": {"type": "object", "additionalProperties": {"$ref": "#"}, "required": ["a"]},
    "a pattern": {"type": "object", "patternProperties": {"^a": {"$ref": "#"}}, "required": ["ab"]},
    "an item": {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
    "a first item": {"type": "array", "prefixItems": [{}, {"$ref": "#"}], "minItems": 2},
    "by an anchor": {"$anchor": "top", "type": "array", "items": {"$ref": "#top"}, "minItems": 2},
    "deeper": {"type": "object", "properties": {"n": NUMBER, "m": {"$ref": "#/$defs/loop"}}, "$defs": {"loop": LOOP}},
    "one branch": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/loop"}], "$defs": {"loop": LOOP}},
}


@pytest.mark.parametrize("kind", sorted(ENDLESS))
def test_a_schema_that_asks_for_itself_is_refused(compiled: Compiled, kind: str) -> None:
    with pytest.raises(DaariError, match=r"\$ref #\S* leads to itself again and again") as error:
        json_schema_processor(compiled.teacher.tokenizer, ENDLESS[kind])
    assert "\n" not in str(error.value)


TREE = {"type": "object", "properties": {"n": NUMBER, "next": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]}}}
ENDING: dict[str, dict[str, Any]] = {
    "a list": {"$ref": "#/$defs/tree", "$defs": {"tree": {**TREE, "required": ["n", "next"]}}},
    "an option": {"type": "object", "properties": {"a": {"$ref": "#"}}, "additionalProperties": False},
    "items": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2},
    "no items": {"type": "array", "prefixItems": [NUMBER], "items": {"$ref": "#"}, "minItems": 1},
    "or null": {"type": ["object", "null"], "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    "beside a value": {"anyOf": [NUMBER, {"type": "array", "items": {"$ref": "#"}, "minItems": 1}]},
}


@pytest.mark.parametrize("kind", sorted(ENDING))
def test_a_schema_that_asks_for_itself_and_can_end_is_followed(compiled: Compiled, kind: str) -> None:
    answers = [walk(compiled.teacher.tokenizer, ENDING[kind], seed) for seed in range(12)]
    assert any(answers) and all(follows(ENDING[kind], answer) for answer in answers if answer is not None)


def made_up(draw: random.Random, depth: int = 0) -> Any:
    """A schema as it comes, of the keywords that are followed."""
    kind = draw.random()
    if depth > 2 or kind < 0.35:
        plain = [TEXT, NUMBER, {}, True, {"type": "boolean"}, {"enum": ["ab", 1]}, {"type": ["string", "null"]}]
        return draw.choice([*plain, {"pattern": "^a", "type": "string"}, {"type": "number", "multipleOf": 0.5}])
    if kind < 0.75:
        schema: dict[str, Any] = {"type": "object"}
        if draw.random() < 0.8:
            names = draw.sample(["a", "ab", "b", "x1"], draw.randint(0, 3))
            schema["properties"] = {name: made_up(draw, depth + 1) for name in names}
        if draw.random() < 0.5:
            schema["required"] = draw.sample(["a", "ab", "b", "zz"], draw.randint(0, 2))
        if draw.random() < 0.4:
            schema["patternProperties"] = {draw.choice(["^a", "b$", "^[a-z]{2}$", r"\d"]): made_up(draw, depth + 1)}
        if draw.random() < 0.5:
            schema["additionalProperties"] = draw.choice([False, made_up(draw, depth + 1)])
        if draw.random() < 0.2:
            schema["minProperties"] = draw.randint(0, 3)
    elif kind < 0.9:
        schema = {"type": "array", "items": made_up(draw, depth + 1), "maxItems": draw.randint(1, 3)}
        if draw.random() < 0.4:
            schema["prefixItems"] = [made_up(draw, depth + 1)]
    else:
        schema = {draw.choice(["anyOf", "allOf", "oneOf"]): [made_up(draw, depth + 1), made_up(draw, depth + 1)]}
    if draw.random() < 0.05:
        schema["$ref"] = "#"
    return schema


def test_made_up_schemas_are_refused_at_once_or_followed(compiled: Compiled) -> None:
    followed = 0
    for seed in range(150):
        schema = made_up(random.Random(seed))
        if not isinstance(schema, dict):
            continue
        try:
            grammar_of(schema)
        except DaariError:
            continue
        answers = [walk(compiled.teacher.tokenizer, schema, again, 60) for again in range(2)]
        assert all(follows(schema, answer) for answer in answers if answer is not None), schema
        followed += any(answers)
    assert followed > 70
