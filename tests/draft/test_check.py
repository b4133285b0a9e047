"""What a drafter returns is looked at: it never makes an answer wrong, ends it, or reaches behind the vocabulary."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from bench_dropin import tokenizer
from zoo import VOCABULARY, Oracle, build, plain_tokens

from daari_mlx import stream_generate
from daari_mlx.draft.drafter import Context, Draft
from daari_mlx.ground.errors import DaariError

PROMPT = [3, 17, 42, 99, 5, 64, 7]


class Says:
    """Returns whatever it was told to."""

    layer = None

    def __init__(self, make: Any) -> None:
        self.make = make

    def draft(self, context: Context, limit: int, pending: int) -> Any:
        return self.make(context)


def answer(make: Any, **options: Any) -> tuple[list[int], Any]:
    model = build("llama")
    found = list(stream_generate(model, tokenizer(()), PROMPT, 12, drafter=Says(make), **options))
    return [r.token for r in found], found[-1].statistics


@pytest.mark.parametrize(
    "tokens",
    [
        [VOCABULARY], [10**9], [2**31], [2**40], [-1], [-VOCABULARY], [5, -1, 7], [5, VOCABULARY, 7], list(range(200)),
        [np.int64(5), np.int32(6)], (5, 6),
    ],
)  # fmt: skip
def test_ids_that_are_none_end_the_draft(tokens: Any) -> None:
    expected = plain_tokens(build("llama"), PROMPT, 12)
    said, statistics = answer(lambda _: Draft(tokens, [0.5] * len(tokens)))
    assert said == expected
    assert statistics.drafted <= 11 * 12


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda _: None, "None"),
        (lambda _: [1, 2], r"\[1, 2\]"),
        (lambda _: Draft(["a"]), "which is no draft"),
        (lambda _: Draft([1.5]), "which is no draft"),
        (lambda _: Draft(None), "which is no draft"),  # type: ignore[arg-type]
        (lambda _: Draft([], rest=-1), "rests for -1 rounds"),
        (lambda _: Draft([], rest=None), "which is no draft"),  # type: ignore[arg-type]
        (lambda c: (c.tokens.append(5), Draft())[1], "changed the text"),
        (lambda c: (c.tokens.pop(), Draft())[1], "changed the text"),
        (lambda c: (c.tokens.__setitem__(-1, 1), Draft())[1], "changed the text"),
    ],
)
def test_what_is_no_draft_is_refused_by_the_drafters_name(make: Any, told: str) -> None:
    with pytest.raises(DaariError, match=told) as caught:
        answer(make)
    assert "Says" in str(caught.value)


def test_changing_an_earlier_token_changes_no_answer() -> None:
    def spoil(context: Context) -> Draft:
        context.tokens[0] = 1
        return Draft([5], [0.5])

    assert answer(spoil)[0] == plain_tokens(build("llama"), PROMPT, 12)


class Fragile:
    """A block processor that fails on some drafts, and never without one."""

    def __init__(self, where: str) -> None:
        self.where = where

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        return logits

    def allowed(self, history: list[int], draft: list[int]) -> int:
        if self.where == "allowed":
            raise ValueError("this draft is more than it can take")
        return len(draft)

    def process_rows(self, history: list[int], draft: list[int], logits: mx.array) -> mx.array:
        if self.where == "rows" and draft:
            raise ValueError("this draft is more than it can take")
        return logits


@pytest.mark.parametrize("where", ["allowed", "rows"])
@pytest.mark.parametrize("name", ["llama", "gemma3_text", "mamba2"])
def test_a_failure_that_only_a_draft_brings_ends_no_answer(name: str, where: str) -> None:
    model = build(name)
    expected = plain_tokens(model, PROMPT, 20)
    oracle = Oracle(PROMPT + expected, block=4)
    found = list(stream_generate(model, tokenizer(()), PROMPT, 20, drafter=oracle, logits_processors=[Fragile(where)]))
    assert [r.token for r in found] == expected
    assert found[-1].statistics.drafted == 0


def test_a_forward_that_fails_with_many_rows_ends_no_answer() -> None:
    model = build("llama")
    expected = plain_tokens(model, PROMPT, 20)
    oracle = Oracle(PROMPT + expected, block=4)
    list(stream_generate(model, tokenizer(()), PROMPT, 1, drafter=oracle))
    cls = type(model.layers[-1])

    def narrow(self: Any, x: mx.array, *args: Any, **kwargs: Any) -> Any:
        if 2 < x.shape[1] < len(PROMPT) - 1:  # a trace has two
            raise RuntimeError("[metal::malloc] too much for this machine")
        return cls.__call__(self, x, *args, **kwargs)

    model.layers[-1].__class__ = type("Narrow", (cls,), {"__call__": narrow})
    found = list(stream_generate(model, tokenizer(()), PROMPT, 20, drafter=oracle))
    assert [r.token for r in found] == expected
