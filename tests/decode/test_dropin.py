"""Ours stands where mlx-lm's own loops call ``stream_generate``: the cache, the draws and the tokens are plain's."""

from __future__ import annotations

from typing import Any

import bench_dropin
import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
from bench_dropin import Player, differences, end_of, plain, tokenizer
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.sample_utils import make_logits_processors
from zoo import CONFIGS, Oracle, build, plain_tokens

from daari_mlx import stream_generate

PROMPT = [3, 17, 42, 99, 5, 64, 7]


@pytest.fixture(scope="module", params=sorted(CONFIGS))
def model(request: pytest.FixtureRequest) -> Any:
    return build(request.param)


def test_chats_and_served_requests_equal_mlx_lms(model: Any) -> None:
    assert differences(model) == []


def test_a_cache_that_lacks_the_newest_token_would_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: with one row too few the second turn differs."""
    model = build("llama")
    ends = end_of(model)
    expected = Player(model, plain, ends).chat()
    real = bench_dropin.drafted(expected, 4)

    def short(*args: Any) -> Any:
        yield from real(*args)
        for layer in args[5]:
            layer.trim(1)

    said = Player(model, lambda *args: (r for r in short(*args)), ends).chat()
    assert said[0] == expected[0] and said != expected


@pytest.mark.parametrize("block", [0, 1, 3, 8])
@pytest.mark.parametrize("end", ["end token", "budget", "close", "processor", "after the first"])
def test_what_the_cache_holds_afterwards(model: Any, block: int, end: str) -> None:
    """Prompt and all emitted tokens, whatever ended the answer: plain goes on from there without feeding any again."""
    expected = plain_tokens(model, PROMPT, 40)
    said: list[int] = []

    def failing(tokens: mx.array, logits: mx.array) -> mx.array:
        if end == "processor" and len(tokens) >= len(PROMPT) + 6:
            raise ZeroDivisionError
        return logits

    ends = [next(t for k, t in enumerate(expected) if k > 4 and t not in expected[:k])] if end == "end token" else []
    cache = make_prompt_cache(model)
    drafts = {"drafter": Oracle(PROMPT + expected, block=block), "num_draft_tokens": block} if block else {}
    budget = 11 if end == "budget" else 30
    words, processors = tokenizer(tuple(ends)), [failing] if end == "processor" else None
    steps = stream_generate(model, words, PROMPT, budget, prompt_cache=cache, logits_processors=processors, **drafts)
    try:
        for response in steps:
            said.append(response.token)
            if (end, len(said)) in (("close", 9), ("after the first", 1)):
                break
    except ZeroDivisionError:
        assert end == "processor"
    steps.close()
    assert said == expected[: len(said)] and said
    fresh = make_prompt_cache(model)
    model(mx.array([PROMPT + said]), cache=fresh)
    after = [np.array(model(mx.array([[77]]), cache=c)[0, -1]) for c in (fresh, cache)]
    np.testing.assert_allclose(after[1], after[0], rtol=1e-3, atol=1e-3)


def test_an_answers_own_cache_costs_no_forward_more() -> None:
    """Nobody sees it, so the row of the last token is not run."""
    model = build("llama")
    expected = plain_tokens(model, PROMPT, 12)
    cls, rows = type(model.layers[0]), []

    def counted(self: Any, x: mx.array, *args: Any, **kwargs: Any) -> Any:
        rows.append(x.shape[1])
        return cls.__call__(self, x, *args, **kwargs)

    oracle = Oracle(PROMPT + expected, block=3, right=1.0)
    list(stream_generate(model, tokenizer(()), PROMPT, 1, drafter=oracle, num_draft_tokens=3))  # taps are there
    own = {"__call__": counted, "__module__": "daari_mlx.teacher.tests"}  # as a tap's: it is no change of the model
    model.layers[0].__class__ = type("Counted", (cls,), own)
    list(stream_generate(model, tokenizer(()), PROMPT, 12, drafter=oracle, num_draft_tokens=3))
    assert rows == [len(PROMPT) - 1, 4, 4, 4]
    rows.clear()
    cache = make_prompt_cache(model)
    list(stream_generate(model, tokenizer(()), PROMPT, 12, drafter=oracle, num_draft_tokens=3, prompt_cache=cache))
    assert rows == [len(PROMPT) - 1, 4, 4, 4, 1] and cache[0].offset == len(PROMPT) + 12


# --- what a caller hands in sees only what plain shows it


class Numpy:
    """Draws with a generator of its own."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(3)

    def __call__(self, logprobs: mx.array) -> mx.array:
        chances = np.exp(np.array(logprobs[0], dtype=np.float64))
        return mx.array([self.random.choice(len(chances), p=chances / chances.sum())])


class Keys:
    """Draws with a chain of keys."""

    def __init__(self) -> None:
        self.key = mx.random.key(3)

    def __call__(self, logprobs: mx.array) -> mx.array:
        self.key, now = mx.random.split(self.key)
        return mx.random.categorical(logprobs, key=now)


class Mirostat:
    """Keeps a running surprise, and cuts what is less likely than it."""

    def __init__(self) -> None:
        self.most = 6.0

    def __call__(self, logprobs: mx.array) -> mx.array:
        allowed = mx.where(logprobs >= min(-self.most, float(logprobs.max())), logprobs, -mx.inf)
        token = mx.random.categorical(allowed, key=mx.random.key(int(self.most * 1000)))
        self.most -= 0.3 * (-float(logprobs[0, token.item()]) - 3.0)
        return token


class Counts:
    """Greedy, but for every seventh token that it is asked for."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, logprobs: mx.array) -> mx.array:
        self.asked += 1
        return mx.argsort(-logprobs, axis=-1)[:, int(self.asked % 7 == 0)]


@pytest.mark.parametrize("sampler", [Numpy, Keys, Mirostat, Counts])
@pytest.mark.parametrize("processed", [False, True])
@pytest.mark.parametrize("block", [1, 4, 8])
def test_samplers_with_a_memory_draw_what_they_draw_in_plain(sampler: Any, processed: bool, block: int) -> None:
    model = build("llama")
    penalties = {"logits_processors": make_logits_processors(repetition_penalty=1.2)} if processed else {}
    words, own = tokenizer(()), sampler()
    plain_own = sampler()
    expected = [r.token for r in mlx_lm.stream_generate(model, words, PROMPT, 40, sampler=plain_own, **penalties)]
    oracle = Oracle(PROMPT + expected, block=block, right=0.8)
    cache = make_prompt_cache(model)
    found = list(
        stream_generate(
            model,
            words,
            PROMPT,
            40,
            drafter=oracle,
            num_draft_tokens=block,
            sampler=own,
            prompt_cache=cache,
            **penalties,
        )
    )
    assert [r.token for r in found] == expected and found[-1].statistics.accepted > 5
    if sampler is Numpy:
        assert own.random.bit_generator.state == plain_own.random.bit_generator.state, "asked as often as in plain"


@pytest.mark.parametrize("stop", [1, 2, 3, 5, 8])
def test_a_sampler_is_not_asked_behind_the_token_where_a_reader_leaves(stop: int) -> None:
    model = build("llama")
    plain_own, own = Counts(), Counts()
    steps = mlx_lm.stream_generate(model, tokenizer(()), PROMPT, 40, sampler=plain_own)
    expected = [next(steps).token for _ in range(40)]
    plain_own = Counts()
    steps = mlx_lm.stream_generate(model, tokenizer(()), PROMPT, 40, sampler=plain_own)
    for _ in range(stop):
        next(steps)
    steps.close()
    oracle = Oracle(PROMPT + expected, block=8, right=1.0)
    ours = stream_generate(
        model, tokenizer(()), PROMPT, 40, drafter=oracle, num_draft_tokens=8, sampler=own,
        prompt_cache=make_prompt_cache(model),
    )  # fmt: skip
    assert [next(ours).token for _ in range(stop)] == expected[:stop]
    ours.close()
    assert own.asked == plain_own.asked


def test_a_stateful_processor_is_asked_as_often_as_in_plain() -> None:
    """Also behind the last token, as plain does, and never for a row that was not emitted."""
    model = build("llama")
    calls: dict[str, list[int]] = {"plain": [], "ours": []}

    def logging(name: str) -> Any:
        return lambda tokens, logits: (calls[name].append(len(tokens)), logits)[1]

    for stop in (3, 7, 20):
        calls["plain"].clear()
        calls["ours"].clear()
        steps = mlx_lm.stream_generate(model, tokenizer(()), PROMPT, 20, logits_processors=[logging("plain")])
        expected = [next(steps).token for _ in range(stop)]
        steps.close()
        more = plain_tokens(model, PROMPT, 30)
        ours = stream_generate(
            model, tokenizer(()), PROMPT, 20, drafter=Oracle(PROMPT + more, block=6, right=0.9), num_draft_tokens=6,
            logits_processors=[logging("ours")], prompt_cache=make_prompt_cache(model),
        )  # fmt: skip
        assert [next(ours).token for _ in range(stop)] == expected
        ours.close()
        assert calls["ours"] == calls["plain"]
