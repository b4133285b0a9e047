"""Where an answer begins is told and never guessed: fresh grammars and used ones do the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from graphs import Compiled
from mlx_lm.models.cache import make_prompt_cache
from typer.testing import CliRunner
from wide import encode, own, plain_ids
from zoo import Oracle

from daari_mlx import SpecEngine, stream_generate
from daari_mlx.cli import main as cli
from daari_mlx.decode.grammar import json_schema_processor
from daari_mlx.ground.errors import DaariError

EOS = 2
SCHEMA = {
    "type": "object",
    "properties": {"label": {"enum": ["ham", "spam"]}, "why": {"type": "string", "maxLength": 8}},
    "required": ["label", "why"],
    "additionalProperties": False,
}
BEGUN = '{"label":"sp'


def template(compiled: Compiled, text: str) -> list[int]:
    messages = [{"role": "user", "content": text}]
    return list(compiled.teacher.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))


@pytest.fixture(scope="module")
def prompt(compiled: Compiled) -> list[int]:
    return template(compiled, "Free entry now")


def grammars(compiled: Compiled, prompt: list[int], begun: list[int]) -> dict[str, Any]:
    """Processors with different pasts."""
    teacher, made = compiled.teacher, {}
    for name in ("fresh", "used", "used for it", "stopped amid it", "used by mlx-lm"):
        made[name] = json_schema_processor(teacher.tokenizer, SCHEMA)
    own(teacher.model, teacher.tokenizer, prompt, 60, logits_processors=[made["used"]])
    own(teacher.model, teacher.tokenizer, prompt + begun, 60, logits_processors=[made["used for it"]])
    own(teacher.model, teacher.tokenizer, prompt, len(begun) - 1, logits_processors=[made["stopped amid it"]])
    plain_ids(teacher.model, teacher.tokenizer, prompt, 60, logits_processors=[made["used by mlx-lm"]])
    return made


def test_a_prompt_that_ends_like_an_answer_is_a_prompt(compiled: Compiled, prompt: list[int]) -> None:
    """By default the answer begins with its first new token, whatever the processor did before."""
    teacher, begun = compiled.teacher, encode(compiled.teacher.tokenizer, BEGUN)
    for name, grammar in grammars(compiled, prompt, begun).items():
        for decode in (own, plain_ids):
            found = decode(teacher.model, teacher.tokenizer, prompt + begun, 80, logits_processors=[grammar])
            ids = found[0] if isinstance(found, tuple) else found
            assert list(json.loads(teacher.tokenizer.decode(ids[:-1]))) == ["label", "why"], name


@pytest.mark.parametrize("block", [0, 1, 6])
def test_a_begun_answer_goes_on(compiled: Compiled, prompt: list[int], block: int) -> None:
    teacher, begun = compiled.teacher, encode(compiled.teacher.tokenizer, BEGUN)
    reference = json_schema_processor(teacher.tokenizer, SCHEMA).for_answer(prompt + begun, begun=len(begun))
    expected = plain_ids(teacher.model, teacher.tokenizer, prompt + begun, 80, logits_processors=[reference])
    whole = json.loads(BEGUN + teacher.tokenizer.decode(expected[:-1]))
    assert list(whole) == ["label", "why"] and whole["label"] == "spam"
    drafting: dict[str, Any] = {}
    if block:
        drafting = {"drafter": Oracle(prompt + begun + expected, block=block), "num_draft_tokens": block}
    for name, grammar in grammars(compiled, prompt, begun).items():
        for told in (len(begun), BEGUN, f" {BEGUN}\n"):
            options = {"logits_processors": [grammar], "begun": told, **drafting}
            found, _, _ = own(teacher.model, teacher.tokenizer, prompt + begun, 80, **options)
            assert found == expected, (name, told)


def test_a_whole_answer_may_only_end(compiled: Compiled, prompt: list[int]) -> None:
    teacher, whole = compiled.teacher, '{"label":"ham","why":""}'
    grammar = json_schema_processor(teacher.tokenizer, SCHEMA)
    ids = prompt + encode(teacher.tokenizer, whole)
    found, _, _ = own(teacher.model, teacher.tokenizer, ids, 80, logits_processors=[grammar], begun=whole)
    assert found == [EOS]


def test_a_text_that_begins_within_a_token(compiled: Compiled) -> None:
    """The prompt's last token may hold the end of the question and the beginning of the answer."""
    tokenizer = compiled.teacher.tokenizer
    grammar = json_schema_processor(tokenizer, {"type": "string", "maxLength": 5})
    [both] = encode(tokenizer, '{"')
    answer = grammar.for_answer([5, both], begun='"')
    logits = mx.zeros((1, 640))
    quoted = grammar.for_answer([5, *encode(tokenizer, '"')], begun=1)
    assert np.array_equal(
        np.array(answer(mx.array([5, both]), logits)),
        np.array(quoted(mx.array([5, *encode(tokenizer, '"')]), logits)),
    )


@pytest.mark.parametrize(
    ("begun", "word"),
    [
        ('{"label":"h', "does not end with it"),
        ("x" * 5000, "does not end with it"),
        (5000, "5000"),
        (3, "does not follow the JSON schema"),
        (-1, "-1"),
        (True, "True"),
        (None, "None"),
        (2.0, "2.0"),
    ],
)
def test_what_cannot_have_been_begun_is_told(compiled: Compiled, prompt: list[int], begun: Any, word: str) -> None:
    teacher, calls = compiled.teacher, []
    ids = prompt + encode(teacher.tokenizer, BEGUN)
    options = {"logits_processors": [json_schema_processor(teacher.tokenizer, SCHEMA)], "begun": begun}
    with pytest.raises(DaariError, match=word):
        own(
            teacher.model,
            teacher.tokenizer,
            ids,
            5,
            prompt_progress_callback=lambda *_: calls.append(1),
            **options,
        )
    assert not calls, "told before the first forward"


def test_white_space_of_another_form_is_told(compiled: Compiled, prompt: list[int]) -> None:
    teacher, spaced = compiled.teacher, '{"label": "sp'
    ids = prompt + encode(teacher.tokenizer, spaced)
    compact = json_schema_processor(teacher.tokenizer, SCHEMA)
    with pytest.raises(DaariError, match="white space counts"):
        own(teacher.model, teacher.tokenizer, ids, 5, logits_processors=[compact], begun=spaced)
    for form in ("spaced", "any"):
        grammar = json_schema_processor(teacher.tokenizer, SCHEMA, form)
        found, _, _ = own(teacher.model, teacher.tokenizer, ids, 80, logits_processors=[grammar], begun=spaced)
        assert json.loads(spaced + teacher.tokenizer.decode(found[:-1]))["label"] == "spam"


def test_what_was_begun_may_lie_in_the_cache(compiled: Compiled, prompt: list[int]) -> None:
    """A prompt cache, an engine's above all, leaves only the end of a prompt to be read."""
    teacher, begun = compiled.teacher, encode(compiled.teacher.tokenizer, BEGUN)
    ids, grammar = prompt + begun, json_schema_processor(compiled.teacher.tokenizer, SCHEMA)
    expected, _, _ = own(teacher.model, teacher.tokenizer, ids, 80, logits_processors=[grammar], begun=BEGUN)
    for split in range(1, len(begun) + 1):
        cache = make_prompt_cache(teacher.model)
        teacher.model(mx.array([ids[:-split]]), cache=cache)
        found, _, _ = own(
            teacher.model,
            teacher.tokenizer,
            ids[-split:],
            80,
            logits_processors=[grammar],
            begun=BEGUN,
            prompt_cache=cache,
            earlier=ids[:-split],
        )
        assert found == expected
    engine = SpecEngine(teacher.model, tokenizer=teacher.tokenizer)
    for told in (BEGUN, len(begun), BEGUN):
        again = engine.stream_tokens(ids, max_tokens=80, logits_processors=[grammar], begun=told)
        assert [response.token for response in again] == expected


def test_the_same_processor_in_two_answers_at_once(compiled: Compiled, prompt: list[int]) -> None:
    """Each answer has a state of its own."""
    teacher, grammar = compiled.teacher, json_schema_processor(compiled.teacher.tokenizer, SCHEMA)
    other = template(compiled, "Home late")
    expected = [own(teacher.model, teacher.tokenizer, p, 60, logits_processors=[grammar])[0] for p in (prompt, other)]
    running = [
        stream_generate(teacher.model, teacher.tokenizer, p, 60, logits_processors=[grammar]) for p in (prompt, other)
    ]
    found: list[list[int]] = [[], []]
    for _ in range(60):
        for steps, ids in zip(running, found, strict=True):
            if (response := next(steps, None)) is not None:
                ids.append(response.token)
    assert found == expected


@pytest.mark.parametrize("prefill", [BEGUN, f" {BEGUN}", '{"label": "sp', '{"label":"spam","why":"a '])
def test_prefill_response_is_the_beginning(tiny_teacher_path: Path, prefill: str) -> None:
    form = ("--json-whitespace", "spaced") if ": " in prefill else ()
    options = ("--prompt", "Free entry", "--max-tokens", "90", "--verbose", "False", *form)
    command = ["generate", "--model", str(tiny_teacher_path), *options, "--prefill-response", prefill]
    result = CliRunner().invoke(cli.app, [*command, "--json-schema", json.dumps(SCHEMA)])
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert json.loads(prefill.lstrip() + result.stdout.strip())["label"] == "spam"
