"""A draft never changes or ends an answer: drafted ids that grammar, detokenizer and stops cannot take."""

from __future__ import annotations

import json
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.sample_utils import make_logits_processors, make_sampler
from wide import ROWS, TOKENS, Outside, encode, own, plain_ids, scripted, tokenizer_with

from daari_mlx.decode.grammar import json_schema_processor

SCHEMA = {
    "type": "object",
    "properties": {"label": {"enum": ["ham", "spam"]}, "why": {"type": "string", "maxLength": 8}},
    "required": ["label", "why"],
    "additionalProperties": False,
}
WRONG = (TOKENS, 650, ROWS - 1, 0, 1)  # rows that are no token, and tokens that are no text
PROMPT = "Free entry now"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tokenizer_with()


@pytest.fixture(scope="module")
def teacher(tokenizer: Any) -> tuple[Any, list[int]]:
    """A teacher and its prompt; it would say something between JSON and noise."""
    prompt = encode(tokenizer, PROMPT)
    said = encode(tokenizer, '{"label":"spam","why":"free entry now"} and more of that, as ever')
    return scripted(prompt, [*said, 2]), prompt


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("block", [1, 3, 8])
@pytest.mark.parametrize("temp", [0.0, 2.0])
def test_a_grammar_cuts_drafts_at_what_is_no_token(
    teacher: tuple[Any, list[int]], tokenizer: Any, wrong: int, block: int, temp: float
) -> None:
    (model, prompt), grammar = teacher, json_schema_processor(tokenizer, SCHEMA)

    def options() -> dict[str, Any]:
        mx.random.seed(7)
        return {"sampler": make_sampler(temp=temp)} if temp else {}

    expected, _, _ = own(model, tokenizer, prompt, 80, logits_processors=[grammar], **options())
    assert expected == plain_ids(model, tokenizer, prompt, 80, logits_processors=[grammar], **options())
    drafter = Outside(prompt + expected, block, wrong)
    found, text, last = own(
        model, tokenizer, prompt, 80, logits_processors=[grammar], drafter=drafter, num_draft_tokens=block, **options()
    )
    assert found == expected and last.finish_reason == "stop"
    assert list(json.loads(text)) == ["label", "why"]
    # what is no token is cut before the forward, and all around it is right
    assert last.statistics.drafted == last.statistics.accepted > 0


@pytest.mark.parametrize("where", ["first", "amid", "end"])
def test_allowed_stops_at_the_first_id_that_is_no_token(tokenizer: Any, where: str) -> None:
    answer = json_schema_processor(tokenizer, SCHEMA).for_answer([5])
    said = encode(tokenizer, '{"label":"ham","why":"x"}')
    at = {"first": 0, "amid": 4, "end": len(said)}[where]
    for wrong in (TOKENS, 650, 10**6, 2**31, -1, -640):
        assert answer.allowed([5], [*said[:at], wrong, *said[at:]]) == at
        assert answer.allowed([5], [*said[:at], wrong]) == at
    assert answer.allowed([5], [*said, 2]) == len(said) + 1, "it goes on as if it had not been asked"


def test_rows_that_are_no_tokens_are_masked_drafted_or_not(tokenizer: Any) -> None:
    answer, said = json_schema_processor(tokenizer, SCHEMA).for_answer([5]), encode(tokenizer, '{"label":"ham"')
    logits = mx.random.normal((len(said) + 1, ROWS))
    block = np.array(answer.process_rows([5], said, logits))
    for row in range(len(said) + 1):
        single = np.array(answer(mx.array([5, *said[:row]]), logits[row : row + 1]))
        assert np.array_equal(single[0], block[row]) and np.isneginf(single[0, TOKENS:]).all()


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("stop", [None, "of that"])
@pytest.mark.parametrize("processed", [False, True])
def test_detokenizer_stops_and_processors_never_see_a_rejected_id(
    teacher: tuple[Any, list[int]], tokenizer: Any, wrong: int, stop: str | None, processed: bool
) -> None:
    model, prompt = teacher
    options: dict[str, Any] = {"stop": stop}
    if processed:
        options["logits_processors"] = make_logits_processors(repetition_penalty=1.1)
    expected, words, end = own(model, tokenizer, prompt, 80, **options)
    for block in (1, 4, 9):
        drafter = Outside(prompt + expected, block, wrong)
        found, text, last = own(model, tokenizer, prompt, 80, drafter=drafter, num_draft_tokens=block, **options)
        assert (found, text, last.finish_reason) == (expected, words, end.finish_reason)
        assert last.statistics.accepted > 0


@pytest.mark.parametrize("stop", [None, "!"])
def test_a_teacher_that_says_such_a_row_itself_says_it_drafted_too(tokenizer: Any, stop: str | None) -> None:
    """Without a grammar it is the teacher's own affair: what mlx-lm's detokenizer makes of it, ours makes of it."""
    prompt = encode(tokenizer, PROMPT)
    said = [*encode(tokenizer, "Win a "), 650, *encode(tokenizer, "prize"), 700, 2]
    model = scripted(prompt, said)
    expected, words, _ = own(model, tokenizer, prompt, 40, stop=stop)
    assert stop or expected == said == plain_ids(model, tokenizer, prompt, 40)
    for block in (1, 4):
        found, text, _ = own(
            model, tokenizer, prompt, 40, drafter=Outside(prompt + said, block), num_draft_tokens=block, stop=stop
        )
        assert (found, text) == (expected, words)
