"""The mask of a JSON schema itself, what it refuses, and the option of the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from graphs import Compiled
from mlx_lm.tokenizer_utils import TokenizerWrapper
from typer.testing import CliRunner

from daari_mlx.cli import main as cli
from daari_mlx.decode.grammar import json_schema_processor
from daari_mlx.ground.errors import DaariError

EOS = 2


def record(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


HABIT = record(label={"enum": ["ham", "spam"]}, category={"type": "string", "maxLength": 20})


class Slow:
    """A tokenizer without a fast form."""

    eos_token_id, chat_template, clean_up_tokenization_spaces = 2, None, False

    def __len__(self) -> int:
        return 5

    def decode(self, ids: list[int]) -> str:
        return ""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [0]

    def apply_chat_template(self) -> None: ...

    def get_vocab(self) -> dict[str, int]:
        return {}


def test_the_end_is_allowed_exactly_where_the_grammar_accepts(compiled: Compiled) -> None:
    """A number may go on or end; text in braces must end; behind an end only ends may come."""
    tokenizer = compiled.teacher.tokenizer
    encode = lambda text: tokenizer.encode(text, add_special_tokens=False)  # noqa: E731
    logits = mx.zeros((1, 640))
    number = json_schema_processor(tokenizer, {"type": "integer"})
    prompt = [1, 40, 41]

    def open_after(processor: Any, text: list[int]) -> set[int]:
        row = processor.for_answer(prompt)(mx.array(prompt + text), logits)
        return set(np.nonzero(np.array(row[0]) == 0)[0].tolist())

    digits = {encode(d)[-1] for d in "0123456789"}
    assert EOS not in open_after(number, []) and digits <= open_after(number, [])
    after = open_after(number, encode("1"))
    assert EOS in after and digits <= after
    assert open_after(number, [*encode("12"), EOS]) == {EOS} == open_after(number, [*encode("12"), EOS, EOS])
    number = number.for_answer(prompt)
    assert number.allowed([*prompt, *encode("1")], [*encode("2"), EOS, EOS]) == 2, "nothing behind the end"
    assert number.allowed(prompt, [EOS]) == 0
    assert number.allowed([*prompt, *encode("1"), EOS], [EOS]) == 0
    nothing = json_schema_processor(tokenizer, record())
    assert open_after(nothing, []) == set(encode("{")), "a prompt comes first"
    assert EOS not in open_after(nothing, encode("{"))
    assert open_after(nothing, encode("{}")) == {EOS}


def test_several_ends_and_a_head_wider_than_the_tokenizer(compiled: Compiled, tiny_teacher_path: Any) -> None:
    from mlx_lm.utils import load_tokenizer

    tokenizer = load_tokenizer(tiny_teacher_path)
    tokenizer.add_eos_token(str(1))
    processor = json_schema_processor(tokenizer, {"type": "integer"})
    for width in (600, 640, 700):
        row = processor.for_answer([5])(
            mx.array([5, *tokenizer.encode("7", add_special_tokens=False)]), mx.zeros((1, width))
        )
        assert row.shape == (1, width)
        values = np.array(row[0])
        assert values[1] == 0 and values[2] == 0 and np.isneginf(values[3])
        assert np.isneginf(values[640:]).all()
    assert json_schema_processor(tokenizer, HABIT)(mx.array([5]), mx.zeros((1, 640), mx.bfloat16)).dtype == mx.bfloat16


def test_white_space(compiled: Compiled) -> None:
    """None by default; one space where json.dumps has it; or any, but not for ever."""
    tokenizer = compiled.teacher.tokenizer
    start, blank = tokenizer.encode("{", add_special_tokens=False), tokenizer.encode("\n", add_special_tokens=False)
    written = {"compact": json.dumps({"n": [1, 2]}, separators=(",", ":")), "spaced": json.dumps({"n": [1, 2]})}
    written["any"] = '{ "n":\n[1 , 2 ]}'
    ids = {form: tokenizer.encode(text, add_special_tokens=False) for form, text in written.items()}
    schema = record(n={"type": "array", "items": {"type": "integer"}})
    taken = {"compact": {"compact"}, "spaced": {"spaced"}, "any": set(written)}
    for form in written:
        answer = json_schema_processor(tokenizer, schema, form).for_answer([5])
        assert {name for name, text in ids.items() if answer.allowed([5], text) == len(text)} == taken[form]
        assert answer.allowed([5], [*start, *blank * 100]) == (41 if form == "any" else 1)
    assert json_schema_processor(tokenizer, schema).for_answer([5]).allowed([5], ids["compact"]) == len(ids["compact"])
    with pytest.raises(DaariError, match="compact, spaced, any"):
        json_schema_processor(tokenizer, schema, "loose")


def test_what_cannot_be_followed_is_told(compiled: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = compiled.teacher.tokenizer
    for schema, word in [({"type": "foo"}, "foo"), ({"not": {"type": "string"}}, "not"), ("{nonsense", "JSON")]:
        with pytest.raises(DaariError, match=word):
            json_schema_processor(tokenizer, schema)
    with pytest.raises(DaariError, match="fast tokenizer"):
        json_schema_processor(Slow(), HABIT)
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(DaariError, match=r"pip install '\.\[grammar\]'"):
        json_schema_processor(tokenizer, HABIT)


def test_a_tokenizer_of_transformers_will_do(compiled: Compiled) -> None:
    wrapper = compiled.teacher.tokenizer
    assert isinstance(wrapper, TokenizerWrapper)
    first = json_schema_processor(wrapper._tokenizer, HABIT)(mx.array([5]), mx.zeros((1, 640)))
    assert mx.array_equal(first, json_schema_processor(wrapper, HABIT)(mx.array([5]), mx.zeros((1, 640))))


# --- the command line

CONTRARY = record(verdict={"enum": ["keep", "drop"]}, n={"type": "integer", "minimum": 0, "maximum": 9})


def run(*args: object, stdin: str | None = None) -> Any:
    return CliRunner().invoke(cli.app, [str(a) for a in args], input=stdin)


def is_contrary(text: str) -> bool:
    found = json.loads(text)
    return list(found) == ["verdict", "n"] and found["verdict"] in ("keep", "drop") and found["n"] in range(10)


@pytest.mark.parametrize("drafts", [False, True])
def test_generate_takes_a_schema_or_its_file(
    compiled: Compiled, tiny_teacher_path: Path, tmp_path: Path, drafts: bool
) -> None:
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(CONTRARY), encoding="utf-8")
    graph = ("--graph", compiled.path, "--num-draft-tokens", 4) if drafts else ()
    common = ("generate", "--model", tiny_teacher_path, "--verbose", "False", "--max-tokens", 300, *graph)
    texts = []
    for schema in (json.dumps(CONTRARY), file):
        result = run(*common, "--prompt", "Free entry now", "--json-schema", schema)
        assert result.exit_code == 0, (result.stderr, result.exception)
        assert is_contrary(result.stdout)
        texts.append(result.stdout)
    assert texts[0] == texts[1]


def test_every_answer_of_a_chat_is_held(compiled: Compiled, tiny_teacher_path: Path) -> None:
    options = ("--graph", compiled.path, "--num-draft-tokens", 4, "--max-tokens", 300)
    schema = ("--json-schema", json.dumps(CONTRARY))
    result = run(
        "chat", "--model", tiny_teacher_path, *options, *schema, stdin="Free entry\nHome late\nr\nFree entry\n"
    )
    assert result.exit_code == 0, (result.stderr, result.exception)
    answers = result.stdout.replace("}", "}\0").split("\0")[:-1]
    assert len(answers) == 3 and all(map(is_contrary, answers)) and answers[0].strip() == answers[2].strip()


def test_bench_holds_both_arms(compiled: Compiled, tiny_teacher_path: Path, tmp_path: Path) -> None:
    from make_sms_corpus import make_rows

    data = tmp_path / "test.jsonl"
    data.write_text("".join(json.dumps({"messages": r["messages"][1:]}) + "\n" for r in make_rows(2, seed=78)))
    options = ("--graph", compiled.path, "--num-draft-tokens", 4, "--max-tokens", 40, "--data", data, "--json")
    result = run("bench", "--model", tiny_teacher_path, *options, "--json-schema", json.dumps(HABIT))
    assert result.exit_code == 0, (result.stdout, result.stderr, result.exception)
    found = json.loads(result.stdout)
    assert found["logits_processors"] == ["GrammarProcessor"] and found["identity"]["identical"] == 2


def test_white_space_is_chosen_for_a_schema(compiled: Compiled, tiny_teacher_path: Path) -> None:
    common = ("generate", "--model", tiny_teacher_path, "--verbose", "False", "--max-tokens", 300, "--prompt", "Free")
    result = run(*common, "--json-schema", json.dumps(CONTRARY), "--json-whitespace", "spaced")
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert is_contrary(result.stdout) and result.stdout.strip() == json.dumps(json.loads(result.stdout))
    result = run(*common, "--json-whitespace", "spaced")
    assert result.exit_code == 1 and "--json-schema" in result.stderr


@pytest.mark.parametrize(
    ("schema", "word"),
    [
        ("{", "no JSON"),
        ("no_such.json", "There is no JSON schema at"),
        ("[1]", "There is no JSON schema at"),
        ("{} x", "no JSON"),
    ],
)
def test_a_schema_that_is_none_is_a_usage_error(tiny_teacher_path: Path, schema: str, word: str) -> None:
    result = run("generate", "--model", tiny_teacher_path, "--prompt", "a", "--json-schema", schema)
    assert result.exit_code == 2 and word in " ".join(result.stderr.split())


def test_a_file_that_holds_no_object_is_a_usage_error(tiny_teacher_path: Path, tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text("[1]")
    result = run("generate", "--model", tiny_teacher_path, "--prompt", "a", "--json-schema", tmp_path / "list.json")
    assert result.exit_code == 2 and "JSON object" in " ".join(result.stderr.split())


def test_a_schema_that_cannot_be_followed_is_an_error(tiny_teacher_path: Path) -> None:
    result = run("generate", "--model", tiny_teacher_path, "--prompt", "a", "--json-schema", '{"type": "foo"}')
    assert result.exit_code == 1 and "foo" in result.stderr and result.stderr.startswith("error: ")
