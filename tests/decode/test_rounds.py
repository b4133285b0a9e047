"""The loop against mlx-lm itself, on every kind of cache: same tokens, exact cache, exact counts."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.sample_utils import make_logits_processors, make_sampler
from zoo import CONFIGS, VOCABULARY, Oracle, build, plain_tokens

from daari_mlx.decode.emitted import Emitted
from daari_mlx.decode.limits import Options
from daari_mlx.decode.loop import generate_step
from daari_mlx.decode.options import CacheOptions
from daari_mlx.ground.accept import Statistics
from daari_mlx.teacher.tap import tap_model

PROMPT = [3, 17, 42, 99, 5, 64, 7]
LENGTH = 90  # far past the window of 16


@pytest.fixture(scope="module", params=sorted(CONFIGS))
def model(request: pytest.FixtureRequest) -> Any:
    return build(request.param)


def run(
    model: Any, drafter: Any, cache: list[Any] | None = None, prompt: list[int] = PROMPT, **options: Any
) -> tuple[list[Emitted], Statistics]:
    statistics = Statistics()
    steps = generate_step(
        prompt,
        model,
        make_prompt_cache(model) if cache is None else cache,
        options=Options(**options),
        drafter=drafter,
        tap=tap_model(model)[0] if drafter else None,
        statistics=statistics,
    )
    return list(steps), statistics


@pytest.mark.parametrize("block", [1, 2, 5, 8])
def test_greedy_tokens_equal_plain(model: Any, block: int) -> None:
    expected = plain_tokens(model, PROMPT, LENGTH)
    assert len(set(expected)) > 10, "this model's answer would not show a damaged state"
    emitted, statistics = run(model, Oracle(PROMPT + expected, block=block), max_tokens=LENGTH)
    assert [e.token for e in emitted] == expected
    assert statistics.tokens == LENGTH == sum(statistics.sources.values())
    assert 0 < statistics.accepted < statistics.drafted
    assert statistics.forwards < LENGTH


def test_no_rewind_would_show(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: with rejected rows left in the cache the tokens differ."""
    from daari_mlx.teacher.row import Row

    monkeypatch.setattr(Row, "settle", lambda self, emitted: None)
    expected = plain_tokens(model, PROMPT, LENGTH)
    emitted, _ = run(model, Oracle(PROMPT + expected, block=5), max_tokens=LENGTH)
    assert [e.token for e in emitted] != expected


def test_states_are_those_of_a_fresh_forward(model: Any) -> None:
    """Before every draft, the state is the one from which the newest token was chosen."""
    expected = plain_tokens(model, PROMPT, 40)
    oracle = Oracle(PROMPT + expected, block=4)
    run(model, oracle, max_tokens=40)
    tap, width = tap_model(model)
    for context in oracle.contexts:
        with tap.reading() as seen:
            logits = model(mx.array([context.tokens[:-1]]), cache=make_prompt_cache(model))
        fresh = np.array(seen[-1][0, -1].astype(mx.float32))
        assert context.state is not None and context.state.shape == (width,)
        np.testing.assert_allclose(context.state, fresh, rtol=2e-3, atol=2e-4)
        if len(context.tokens) > len(PROMPT):
            assert int(mx.argmax(logits[0, -1])) == context.tokens[-1]


@pytest.mark.parametrize("drafts", [True, False])
@pytest.mark.parametrize("stop", [1, 2, 3, 6, 17, 30])
def test_closing_anywhere_leaves_an_exact_cache(model: Any, stop: int, drafts: bool) -> None:
    expected = plain_tokens(model, PROMPT, 50)
    cache = make_prompt_cache(model)
    steps = generate_step(
        PROMPT,
        model,
        cache,
        options=Options(max_tokens=40),
        drafter=Oracle(PROMPT + expected, block=6) if drafts else None,
        tap=tap_model(model)[0] if drafts else None,
        statistics=Statistics(),
    )
    emitted = [next(steps).token for _ in range(stop)]
    steps.close()
    assert emitted == expected[:stop]
    assert plain_tokens(model, emitted[-1:], 8, prompt_cache=cache) == expected[stop : stop + 8]


@pytest.mark.parametrize("maximum", range(1, 21))
def test_max_tokens_is_exact(maximum: int) -> None:
    model = build("llama")
    expected = plain_tokens(model, PROMPT, 40)
    for block in (1, 3, 8):
        cache = make_prompt_cache(model)
        emitted, statistics = run(model, Oracle(PROMPT + expected, block=block, right=0.9), cache, max_tokens=maximum)
        assert [e.token for e in emitted] == expected[:maximum]
        assert statistics.tokens == maximum
        assert cache[0].offset == len(PROMPT) + maximum - 1


def test_plain_is_never_asked_for_more_rows_than_the_answer_has() -> None:
    """With one token left nothing is drafted: its verify row would be thrown away."""
    model = build("llama")
    oracle = Oracle(PROMPT + plain_tokens(model, PROMPT, 9), block=8, right=1.0)
    _, statistics = run(model, oracle, max_tokens=9)
    assert (statistics.forwards, statistics.drafted, statistics.accepted) == (1, 8, 8)


@pytest.mark.parametrize(
    "sampling",
    [{"temp": 0.8}, {"temp": 1.0, "top_p": 0.9}, {"temp": 0.7, "top_k": 20}, {"temp": 1.0, "min_p": 0.05}],
)
def test_seeded_sampling_equals_plain(sampling: dict[str, Any]) -> None:
    model = build("llama")
    mx.random.seed(11)
    expected = plain_tokens(model, PROMPT, 60, sampler=make_sampler(**sampling))
    mx.random.seed(11)
    emitted, statistics = run(
        model, Oracle(PROMPT + expected, block=5), max_tokens=60, sampler=make_sampler(**sampling)
    )
    assert [e.token for e in emitted] == expected
    assert statistics.acceptance_rate > 0.2


def test_processors_see_the_calls_that_plain_makes() -> None:
    model = build("llama")

    def logging(calls: list[list[int]]) -> Any:
        def processor(tokens: mx.array, logits: mx.array) -> mx.array:
            calls.append(tokens.tolist())
            return logits

        return processor

    plain_calls: list[list[int]] = []
    own_calls: list[list[int]] = []
    penalty = make_logits_processors(repetition_penalty=1.3, repetition_context_size=12)
    expected = plain_tokens(model, PROMPT, 40, logits_processors=[logging(plain_calls), *penalty])
    emitted, statistics = run(
        model,
        Oracle(PROMPT + expected, block=5),
        max_tokens=40,
        logits_processors=[logging(own_calls), *penalty],
    )
    assert [e.token for e in emitted] == expected
    assert own_calls == plain_calls[: len(own_calls)] and len(own_calls) == 40
    assert statistics.accepted > 0


@pytest.mark.parametrize("where", ["processor", "drafter", "teacher"])
def test_an_exception_leaves_an_exact_cache(model: Any, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = plain_tokens(model, PROMPT, 60)
    cache = make_prompt_cache(model)
    oracle = Oracle(PROMPT + expected, block=5)
    calls = 0

    def failing(tokens: mx.array, logits: mx.array) -> mx.array:
        nonlocal calls
        calls += 1
        if calls == 13:
            raise KeyboardInterrupt
        return logits

    if where == "drafter":
        draft = oracle.draft
        monkeypatch.setattr(oracle, "draft", lambda *a: 1 / 0 if len(oracle.contexts) == 6 else draft(*a))
    if where == "teacher":
        last = model.layers[-1]
        cls = type(last)

        def broken(self: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls >= 8:  # without the draft too
                raise ZeroDivisionError
            return cls.__call__(self, *args, **kwargs)

        last.__class__ = type("Broken", (cls,), {"__call__": broken})
    tokens = []
    try:
        with pytest.raises((KeyboardInterrupt, ZeroDivisionError)):
            steps = generate_step(
                PROMPT,
                model,
                cache,
                options=Options(max_tokens=60, logits_processors=[failing] if where == "processor" else None),
                drafter=oracle,
                tap=tap_model(model)[0],
                statistics=Statistics(),
            )
            for step in steps:
                tokens.append(step.token)
    finally:
        if where == "teacher":
            last.__class__ = cls
    assert tokens and tokens == expected[: len(tokens)]
    assert plain_tokens(model, tokens[-1:], 8, prompt_cache=cache) == expected[len(tokens) : len(tokens) + 8]


@pytest.mark.parametrize("start", [0, 20, 31])
def test_quantised_cache_equals_plain(start: int) -> None:
    config = {**CONFIGS["llama"], "hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 2}
    CONFIGS["llama64"] = config
    try:
        model = build("llama64")
    finally:
        del CONFIGS["llama64"]
    options = {"kv_bits": 8, "quantized_kv_start": start}
    expected = plain_tokens(model, PROMPT, 60, **options)
    emitted, statistics = run(model, Oracle(PROMPT + expected, block=5), max_tokens=60, caching=CacheOptions(**options))
    assert [e.token for e in emitted] == expected
    assert statistics.accepted > 10


def test_logprobs_equal_plain() -> None:
    import importlib

    model = build("qwen3")
    steps = importlib.import_module("mlx_lm.generate").generate_step(
        prompt=mx.array(PROMPT), model=model, max_tokens=20
    )
    expected = [(int(t), np.array(p)) for t, p in steps]
    emitted, _ = run(model, Oracle(PROMPT + [t for t, _ in expected], block=4), max_tokens=20)
    for step, (token, logprobs) in zip(emitted, expected, strict=True):
        assert step.token == token and step.logprobs.shape == (VOCABULARY,)
        np.testing.assert_allclose(np.array(step.logprobs), logprobs, atol=1e-4)
