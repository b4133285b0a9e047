"""Reasoning models under a schema: they think freely, and the schema holds from behind the think block on."""

from __future__ import annotations

import json
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from wide import Outside, encode, own, plain_ids, scripted, tokenizer_with

from daari_mlx.decode.grammar import json_schema_processor
from daari_mlx.decode.thinking import thinking_of
from daari_mlx.ground.errors import DaariError

EOS = 2
SCHEMA = {
    "type": "object",
    "properties": {"label": {"enum": ["ham", "spam"]}},
    "required": ["label"],
    "additionalProperties": False,
}
THOUGHTS = "so, a prize {\n\n"
ANSWER = '{"label":"spam"}'
HEAD = "<|im_start|>user\nFree entry<|im_end|>\n<|im_start|>assistant\n"

# tokens, and how a block is opened and closed with them
MODELS: dict[str, tuple[tuple[str, ...], str, str]] = {
    "think": (("<think>", "</think>"), "<think>", "</think>"),
    "longcat": (("<longcat_think>", "</longcat_think>"), "<longcat_think>", "</longcat_think>"),
    "gemma": (("<|channel>", "<channel|>"), "<|channel>thought", "<channel|>"),
    "mistral": (("[THINK]", "[/THINK]"), "[THINK]", "[/THINK]"),
    "seed": (("<seed:think>", "</seed:think>"), "<seed:think>", "</seed:think>"),
    "cohere": (("<|START_THINKING|>", "<|END_THINKING|>"), "<|START_THINKING|>", "<|END_THINKING|>"),
    "harmony": (
        ("<|channel|>", "<|message|>"),
        "<|channel|>analysis<|message|>",
        "<|channel|>final<|message|>",
    ),
}


@pytest.fixture(params=sorted(MODELS))
def kind(request: pytest.FixtureRequest) -> tuple[Any, str, str]:
    tokens, opens, closes = MODELS[request.param]
    return tokenizer_with(*tokens), opens, closes


def drafted_and_not(model: Any, tokenizer: Any, prompt: list[int], longest: int = 80) -> list[int]:
    """The answer under the schema: plain's, ours, and ours with right and wrong drafts are the same."""
    grammar = json_schema_processor(tokenizer, SCHEMA)
    expected = plain_ids(model, tokenizer, prompt, longest, logits_processors=[grammar])
    for block in (0, 1, 5, 16):
        drafting = {"drafter": Outside(prompt + expected, block, 9), "num_draft_tokens": block} if block else {}
        found, _, last = own(model, tokenizer, prompt, longest, logits_processors=[grammar], **drafting)
        assert found == expected
        assert not block or last.statistics.accepted > 0
    return expected


@pytest.mark.parametrize("gap", ["", "\n", "\n\n"])
@pytest.mark.parametrize("opened", ["by the prompt", "by the model", "and begun by the prompt"])
def test_it_thinks_freely_and_answers_by_the_schema(kind: tuple[Any, str, str], gap: str, opened: str) -> None:
    tokenizer, opens, closes = kind
    start, thoughts = encode(tokenizer, opens), encode(tokenizer, THOUGHTS)
    prompt, said = encode(tokenizer, HEAD), [*start, *thoughts]
    given = {"by the prompt": len(start), "by the model": 0, "and begun by the prompt": len(start) + 3}[opened]
    prompt, said = prompt + said[:given], said[given:]
    said += [*encode(tokenizer, closes), *encode(tokenizer, gap)]
    # then it would go on in words: the schema holds it
    found = drafted_and_not(scripted(prompt, [*said, *encode(tokenizer, "It is spam")]), tokenizer, prompt)
    assert found[: len(said)] == said, "thinking is the model's own"
    assert list(json.loads(tokenizer.decode(found[len(said) : -1]))) == ["label"] and found[-1] == EOS


def test_one_that_does_not_think_is_held_from_the_start(kind: tuple[Any, str, str]) -> None:
    tokenizer, opens, closes = kind
    for closed in ("", f"{opens}\n\n{closes}\n\n", f"{opens}{closes}"):
        prompt = encode(tokenizer, HEAD + closed)
        model = scripted(prompt, encode(tokenizer, "It is spam"))
        assert list(json.loads(tokenizer.decode(drafted_and_not(model, tokenizer, prompt)[:-1]))) == ["label"]


def test_a_block_that_the_prompt_closed_is_not_opened_again(kind: tuple[Any, str, str]) -> None:
    tokenizer, opens, closes = kind
    prompt = encode(tokenizer, f"{HEAD}{opens}\n\n{closes}\n\n")
    found = drafted_and_not(scripted(prompt, encode(tokenizer, opens + "no")), tokenizer, prompt)
    assert list(json.loads(tokenizer.decode(found[:-1]))) == ["label"]


def test_marks_of_earlier_turns_and_quoted_ones_do_not_count(kind: tuple[Any, str, str]) -> None:
    tokenizer, opens, closes = kind
    for before in (opens, f"{opens}{closes}", f"say {opens} to me"):
        prompt = encode(tokenizer, f"<|im_start|>user\n{before}<|im_end|>\n<|im_start|>assistant\n")
        found = drafted_and_not(scripted(prompt, encode(tokenizer, "It is spam")), tokenizer, prompt)
        assert list(json.loads(tokenizer.decode(found[:-1]))) == ["label"]


def test_an_answer_cannot_end_in_its_thoughts(kind: tuple[Any, str, str]) -> None:
    tokenizer, opens, closes = kind
    prompt = encode(tokenizer, HEAD + opens)
    said = encode(tokenizer, "hm")
    model = scripted(prompt, [*said, EOS, *encode(tokenizer, closes), EOS])
    found = drafted_and_not(model, tokenizer, prompt)
    assert found[: len(said)] == said and EOS not in found[:-1]


def test_an_answer_that_ends_amid_its_thoughts_by_the_budget(kind: tuple[Any, str, str]) -> None:
    tokenizer, opens, _ = kind
    prompt = encode(tokenizer, HEAD + opens)
    model = scripted(prompt, encode(tokenizer, THOUGHTS))
    assert drafted_and_not(model, tokenizer, prompt, 4) == encode(tokenizer, THOUGHTS)[:4]


def test_a_begun_answer_behind_a_begun_thought() -> None:
    """A prefill may hold the whole block, a part of it, or the answer's beginning too."""
    tokenizer = tokenizer_with("<think>", "</think>")
    grammar = json_schema_processor(tokenizer, SCHEMA)
    for prefill in ("<think>\nso", "<think>\n\n</think>", "<think>so</think>\n", '<think>so</think>\n\n{"label":"sp'):
        prompt = encode(tokenizer, HEAD + prefill)
        rest = "" if "</think>" in prefill else "</think>"
        model = scripted(prompt, [*encode(tokenizer, rest), *encode(tokenizer, "It is spam")])
        for begun in (prefill, len(encode(tokenizer, prefill))):
            found, _, _ = own(model, tokenizer, prompt, 60, logits_processors=[grammar], begun=begun)
            text = prefill + tokenizer.decode(found[:-1])
            assert list(json.loads(text.split("</think>")[1])) == ["label"], (prefill, text)


@pytest.mark.parametrize(
    "mark", ["<think>", "<think>\n", "<thinking>", "[THINK]", "<|begin_of_thought|>\n", "<reasoning>"]
)
def test_a_mark_that_is_no_token_is_told(mark: str) -> None:
    """Nobody could tell where such a block ends; the tiny tokenizer has no marks."""
    tokenizer, calls = tokenizer_with(), []
    prompt = encode(tokenizer, HEAD + mark)
    grammar = json_schema_processor(tokenizer, SCHEMA)
    with pytest.raises(DaariError, match="where thinking ends"):
        own(
            scripted(prompt, [EOS]),
            tokenizer,
            prompt,
            9,
            logits_processors=[grammar],
            prompt_progress_callback=lambda *_: calls.append(1),
        )
    assert not calls
    closed = encode(tokenizer, f"{HEAD}{mark}</think>")
    found, _, _ = own(scripted(closed, [EOS]), tokenizer, closed, 40, logits_processors=[grammar])
    assert list(json.loads(tokenizer.decode(found[:-1]))) == ["label"]


def test_answers_between_marks_of_their_own_are_refused() -> None:
    tokenizer = tokenizer_with("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>")
    with pytest.raises(DaariError, match="response"):
        json_schema_processor(tokenizer, SCHEMA)


def test_rows_of_a_block_that_closes_within_a_draft() -> None:
    """Each row of one block is what it is alone: free, then white space or JSON, then JSON."""
    tokenizer = tokenizer_with("<think>", "</think>")
    prompt = encode(tokenizer, HEAD + "<think>")
    draft = encode(tokenizer, 'so</think>\n{"label":"ham"}')
    answer = json_schema_processor(tokenizer, SCHEMA).for_answer(prompt)
    assert answer.allowed(prompt, [*draft, EOS]) == len(draft) + 1
    assert answer.allowed(prompt, [*draft[:1], EOS, *draft[1:]]) == 1
    logits = mx.zeros((len(draft) + 1, 704))
    block = np.array(answer.process_rows(prompt, draft, logits))
    for row in range(len(draft) + 1):
        assert np.array_equal(np.array(answer(mx.array(prompt + draft[:row]), logits[:1]))[0], block[row])
    free = np.isfinite(block).sum(axis=1)
    [newline], closes = encode(tokenizer, "\n"), draft.index(encode(tokenizer, "</think>")[0])
    assert (free[: closes + 1] == 704 - len(tokenizer.eos_token_ids)).all()
    assert (free[closes + 1 :] < 10).all() and block[closes + 1, newline] == 0 == block[closes + 2, newline]
    assert np.isneginf(block[closes + 3 :, newline]).all()


def test_a_tokenizer_without_marks_has_no_thinking() -> None:
    opening = thinking_of(tokenizer_with()).opening([1, 2, 3])
    assert opening.place([]).also == () and opening.place([5, 6]).lead == 0
