"""Answers that end otherwise than they should: the cache is exact, the limits are restored, the next one is served."""

from __future__ import annotations

import asyncio
from typing import Any

import bench_requests
import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.tokenizer_utils import TokenizerWrapper

from daari_mlx import stream_generate

PROMPT = bench_requests.PROMPT
TOKENS = 14


@pytest.fixture(scope="module")
def teacher(tiny_teacher: tuple[Any, Any]) -> tuple[Any, Any]:
    """The tiny teacher with an end token that it never says."""
    return tiny_teacher[0], TokenizerWrapper(tiny_teacher[1]._tokenizer, eos_token_ids={639})


@pytest.fixture(scope="module")
def expected(teacher: tuple[Any, Any]) -> list[int]:
    return [r.token for r in mlx_lm.stream_generate(*teacher, PROMPT, max_tokens=TOKENS)]


def drafters() -> list[Any]:
    return [bench_requests.Turns(), None]


def check(teacher: tuple[Any, Any], cache: list[Any], tokens: list[int], expected: list[int]) -> None:
    """The cache holds prompt + tokens, and the next request is answered as ever."""
    model = teacher[0]
    assert tokens == expected[: len(tokens)]
    held = [*PROMPT, *tokens]
    assert {c.offset for c in cache} == {len(held)}
    fresh = make_prompt_cache(model)
    model(mx.array([held]), cache=fresh)
    after = [np.array(model(mx.array([[77]]), cache=c)[0, -1]) for c in (fresh, cache)]
    np.testing.assert_allclose(after[1], after[0], rtol=1e-3, atol=1e-3)
    again = stream_generate(*teacher, PROMPT, TOKENS, drafter=bench_requests.Turns())
    assert [r.token for r in again] == expected


@pytest.mark.parametrize("stop", range(1, TOKENS + 1))
@pytest.mark.parametrize("drafts", [0, 1])
def test_closing_at_every_yield(teacher: tuple[Any, Any], expected: list[int], drafts: int, stop: int) -> None:
    cache = make_prompt_cache(teacher[0])
    stream = stream_generate(*teacher, PROMPT, TOKENS, drafter=drafters()[drafts], prompt_cache=cache)
    tokens = [next(stream).token for _ in range(stop)]
    stream.close()
    check(teacher, cache, tokens, expected)


@pytest.mark.parametrize("call", [1, 2, 5, 8, TOKENS])
@pytest.mark.parametrize("where", ["add_token", "finalize"])
@pytest.mark.parametrize("drafts", [0, 1])
def test_text_that_cannot_be_made(
    teacher: tuple[Any, Any], expected: list[int], drafts: int, where: str, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token that the caller never saw is in the cache all the same, as in plain decoding."""
    cls, calls = type(teacher[1].detokenizer), 0
    method = getattr(cls, where)

    def failing(self: Any, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == (call if where == "add_token" else 1):
            raise bench_requests.Expected
        return method(self, *args)

    monkeypatch.setattr(cls, where, failing)
    cache, tokens = make_prompt_cache(teacher[0]), []
    with pytest.raises(bench_requests.Expected):
        for response in stream_generate(*teacher, PROMPT, TOKENS, drafter=drafters()[drafts], prompt_cache=cache):
            tokens.append(response.token)
    assert len(tokens) == (call if where == "add_token" else TOKENS) - 1
    monkeypatch.undo()
    check(teacher, cache, expected[: len(tokens) + 1], expected)


def test_wired_limits_are_restored(teacher: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """On exit, on an exception, on close, and where answers overlap and end in the order they began."""
    limit = 7

    def set_limit(new: int) -> int:
        nonlocal limit
        limit, old = new, limit
        return old

    monkeypatch.setattr(mx, "device_info", lambda *_: {"max_recommended_working_set_size": 10**12})
    monkeypatch.setattr(mx, "set_wired_limit", set_limit)

    def start(**options: Any) -> Any:
        stream = stream_generate(*teacher, PROMPT, 6, **options)
        next(stream)
        assert limit == 10**12
        return stream

    list(start(drafter=bench_requests.Turns()))
    assert limit == 7
    with pytest.raises(bench_requests.Expected):
        list(start(drafter=bench_requests.Turns(fail=True)))
    assert limit == 7
    first, second = start(), start(drafter=bench_requests.Turns())
    first.close()
    assert limit == 10**12, "the second is still under way"
    list(second)
    assert limit == 7


def test_a_cancelled_request_ends_within_a_round_and_the_next_is_served(
    teacher: tuple[Any, Any], expected: list[int]
) -> None:
    cache = make_prompt_cache(teacher[0])
    told: list[int] = []

    async def answer() -> None:
        stream = stream_generate(*teacher, PROMPT, 500, drafter=bench_requests.Turns(), prompt_cache=cache)
        try:
            while (response := await asyncio.to_thread(next, stream, None)) is not None:
                told.append(response.token)
                if len(told) == 5:
                    raise asyncio.CancelledError
        finally:
            await asyncio.to_thread(stream.close)

    async def run() -> list[int]:
        with pytest.raises(asyncio.CancelledError):
            await answer()
        again = stream_generate(*teacher, PROMPT, TOKENS, drafter=bench_requests.Turns())
        return await asyncio.to_thread(lambda: [r.token for r in again])

    assert asyncio.run(run()) == expected
    check(teacher, cache, told, expected)


def test_requests_leave_no_memory_behind() -> None:
    (_, before), (_, after) = bench_requests.run(60)
    assert bench_requests.growth(before, after)["growth"] <= bench_requests.MOST_GROWTH


def test_a_reference_kept_for_each_request_would_show() -> None:
    """The negative control: one row of log-probabilities a request."""
    kept: list[mx.array] = []

    def keep() -> None:
        kept.append(mx.ones(640))
        mx.eval(kept[-1])

    (_, before), (_, after) = bench_requests.run(60, keep)
    assert bench_requests.growth(before, after)["growth"] > bench_requests.MOST_GROWTH
