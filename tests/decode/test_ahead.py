"""Rounds without a draft: run ahead as mlx-lm's own, and nothing of the row ahead is left when they end anywhere."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import KVCache, make_prompt_cache
from mlx_lm.sample_utils import make_logits_processors, make_sampler
from zoo import CONFIGS, VOCABULARY, Oracle, build, plain_tokens

from daari_mlx.decode.answer import MAX_STATES
from daari_mlx.decode.emitted import Emitted
from daari_mlx.decode.limits import Options
from daari_mlx.decode.loop import generate_step
from daari_mlx.decode.options import CacheOptions
from daari_mlx.draft.drafter import Context, Draft
from daari_mlx.ground.accept import Statistics
from daari_mlx.teacher.tap import tap_model

PROMPT = [3, 17, 42, 99, 5, 64, 7]
LENGTH = 48
SAMPLING = {"temp": 0.9, "top_p": 0.95}


class Resting(Oracle):
    """An oracle that rests for ``rests[i]`` rounds after its i-th draft; every second draft is empty itself."""

    def __init__(self, truth: list[int], rests: list[int], **options: Any) -> None:
        super().__init__(truth, **{"block": 3, **options})
        self.rests = rests
        self.seen: list[Context] = []

    def draft(self, context: Context, limit: int, pending: int = 0) -> Draft:
        number = len(self.seen)
        states = None if context.states is None else context.states.copy()
        self.seen.append(Context(list(context.tokens), context.state, states))
        draft = Draft() if number % 2 else super().draft(context, limit, pending)
        draft.rest = self.rests[number % len(self.rests)]
        return draft


@pytest.fixture(scope="module", params=sorted(CONFIGS))
def model(request: pytest.FixtureRequest) -> Any:
    return build(request.param)


@pytest.fixture(scope="module")
def sampled(model: Any) -> list[int]:
    """What plain draws."""
    mx.random.seed(5)
    return plain_tokens(model, PROMPT, LENGTH, sampler=make_sampler(**SAMPLING))


def steps_of(model: Any, drafter: Any, cache: list[Any], statistics: Statistics | None = None, **options: Any) -> Any:
    return generate_step(
        PROMPT,
        model,
        cache,
        options=Options(**options),
        drafter=drafter,
        tap=tap_model(model)[0] if drafter else None,
        statistics=statistics or Statistics(),
        vocabulary=VOCABULARY,
    )


@contextlib.contextmanager
def calls_of(module: Any, fail_at: int = 0) -> Iterator[list[int]]:
    """The rows of each call of ``module``; the call of number ``fail_at`` raises, and after a draft its retry too."""
    cls, rows = type(module), []

    def call(self: Any, x: mx.array, *args: Any, **kwargs: Any) -> Any:
        rows.append(x.shape[1])
        if fail_at and (len(rows) == fail_at or (len(rows) == fail_at + 1 and rows[-2] > 1)):
            raise ZeroDivisionError
        return cls.__call__(self, x, *args, **kwargs)

    own = {"__call__": call, "__module__": "daari_mlx.teacher.tests"}  # as a tap's: it is no change of the model
    module.__class__ = type(cls.__name__, (cls,), own)
    try:
        yield rows
    finally:
        module.__class__ = cls


@pytest.mark.parametrize("rests", [[0], [1], [2, 0, 5], [9], [10_000]])
def test_tokens_counts_and_states(model: Any, rests: list[int]) -> None:
    expected = plain_tokens(model, PROMPT, LENGTH)
    drafter, statistics = Resting(PROMPT + expected, rests), Statistics()
    tap, _ = tap_model(model)
    with calls_of(model.layers[0]) as rows:
        emitted = list(steps_of(model, drafter, make_prompt_cache(model), statistics, max_tokens=LENGTH))
    assert [e.token for e in emitted] == expected
    owed = 1 if model.model_type in ("mamba2", "lfm2") else 0  # rows that are still owed at the end are fed then
    assert statistics.forwards <= len(rows) - 1 <= statistics.forwards + owed, "a forward was wasted"
    assert statistics.tokens == LENGTH == sum(statistics.sources.values())
    assert statistics.rounds_drafted < statistics.forwards
    with tap.reading() as seen:
        model(mx.array([PROMPT + expected[:-1]]), cache=make_prompt_cache(model))
    fresh = np.array(seen[-1][0].astype(mx.float32))
    before = len(PROMPT)
    for context in drafter.seen[1:]:
        assert context.states is not None and context.state is not None
        new = len(context.tokens) - before
        assert 1 <= len(context.states) <= min(new, MAX_STATES) and (context.states[-1] == context.state).all()
        here = fresh[: len(context.tokens) - 1][-len(context.states) :]
        np.testing.assert_allclose(context.states, here, rtol=2e-3, atol=4e-4)
        before = len(context.tokens)


def test_the_next_forward_is_under_way_before_a_token_is_told(model: Any) -> None:
    class Never:
        def draft(self, context: Context, limit: int, pending: int) -> Draft:
            return Draft(rest=9)  # rounds of ten

    with calls_of(model.layers[0]) as rows:
        steps = steps_of(model, Never(), make_prompt_cache(model), max_tokens=25)
        started = [len(rows) for _ in steps]
    prefill = 1
    ends = {10, 20, 25}  # of the stretches and of the budget: no row may be started there
    assert started == [prefill + n + (n not in ends) for n in range(1, 26)]


def test_without_a_drafter_every_cache_runs_ahead(model: Any) -> None:
    with calls_of(model.layers[0]) as rows:
        steps = steps_of(model, None, make_prompt_cache(model), max_tokens=9)
        started = [len(rows) for _ in steps]
    assert started[:-1] == list(range(3, 11))


@pytest.mark.parametrize("stop", [1, 2, 5, 8, 13, 30, 31])
def test_closing_anywhere_leaves_an_exact_cache_and_the_draws_of_its_tokens(
    model: Any, sampled: list[int], stop: int
) -> None:
    expected = sampled
    mx.random.seed(5)
    for _ in range(stop + 1):  # plain has drawn the token behind the last one too
        make_sampler(**SAMPLING)(mx.zeros((1, 128)))
    drawn = mx.random.state[0].tolist()
    mx.random.seed(5)
    cache = make_prompt_cache(model)
    steps = steps_of(
        model, Resting(PROMPT + expected, [3, 6]), cache, max_tokens=LENGTH, sampler=make_sampler(**SAMPLING)
    )
    tokens = [next(steps).token for _ in range(stop)]
    steps.close()
    assert tokens == expected[:stop]
    assert mx.random.state[0].tolist() == drawn, "as many random numbers are used as plain uses"
    fresh, ours = make_prompt_cache(model), cache
    model(mx.array([PROMPT + tokens[:-1]]), cache=fresh)
    after = [np.array(model(mx.array([tokens[-1:]]), cache=c)[0, -1]) for c in (fresh, ours)]
    np.testing.assert_allclose(after[1], after[0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("where", ["first layer", "last layer", "sampler", "processor", "progress"])
def test_a_failure_anywhere_leaves_an_exact_cache(model: Any, where: str) -> None:
    """In prefill too, and whether the failing row is ahead of what was emitted or not."""
    expected = plain_tokens(model, PROMPT, 30)
    for number in (1, 2, 4, 5, 9, 14):
        calls = 0

        def failing(*args: Any, at: int = number) -> Any:
            nonlocal calls
            calls += 1
            if calls == at:
                raise ZeroDivisionError
            return args[-1]

        options: dict[str, Any] = {
            "sampler": {"sampler": lambda x: mx.argmax(failing(x), axis=-1)},
            "processor": {"logits_processors": [failing]},
            "progress": {"prompt_progress_callback": failing},
        }.get(where, {})
        layer = model.layers[-1 if where == "last layer" else 0]
        cache, tokens = make_prompt_cache(model), []
        steps = steps_of(
            model,
            Resting(PROMPT + expected, [2, 4]),
            cache,
            max_tokens=20,
            caching=CacheOptions(prefill_step_size=2),
            **options,
        )
        reached = 20
        with calls_of(layer, fail_at=number if "layer" in where else 0) as rows:
            try:
                for step in steps:
                    tokens.append(step.token)
            except ZeroDivisionError:
                reached = len(rows)
            else:
                assert where == "progress" and number > 5
        assert len(tokens) <= reached <= 20
        held = PROMPT[:-1] + ([PROMPT[-1], *tokens[:-1]] if tokens else [])
        if not tokens and where in ("first layer", "last layer", "progress") and number < 5:
            held = PROMPT[: 2 * (number - 1)]  # of the prompt, what was done
        assert tokens == expected[: len(tokens)]
        fresh = make_prompt_cache(model)
        if held:
            model(mx.array([held]), cache=fresh)
        after = [np.array(model(mx.array([[77]]), cache=c)[0, -1]) for c in (fresh, cache)]
        np.testing.assert_allclose(after[1], after[0], rtol=1e-3, atol=1e-3)


def test_processors_see_the_calls_that_plain_makes() -> None:
    model = build("llama")

    def logging(calls: list[list[int]]) -> Any:
        return lambda tokens, logits: (calls.append(tokens.tolist()), logits)[1]

    plain_calls: list[list[int]] = []
    own_calls: list[list[int]] = []
    penalty = make_logits_processors(repetition_penalty=1.3, repetition_context_size=12)
    expected = plain_tokens(model, PROMPT, 40, logits_processors=[logging(plain_calls), *penalty])
    drafter, statistics = Resting(PROMPT + expected, [3, 0, 6]), Statistics()
    cache, options = make_prompt_cache(model), {"max_tokens": 40, "logits_processors": [logging(own_calls), *penalty]}
    assert [e.token for e in steps_of(model, drafter, cache, statistics, **options)] == expected
    assert own_calls == plain_calls[:40] and statistics.accepted > 0


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "lfm2"])
@pytest.mark.parametrize("sampling", [SAMPLING, {"temp": 0.7, "top_k": 20}])
def test_seeded_sampling_equals_plain(name: str, sampling: dict[str, Any]) -> None:
    model = build(name)
    mx.random.seed(11)
    expected = plain_tokens(model, PROMPT, 60, sampler=make_sampler(**sampling))
    mx.random.seed(11)
    drafter, options = Resting(PROMPT + expected, [3, 0, 8]), {"max_tokens": 60, "sampler": make_sampler(**sampling)}
    assert [e.token for e in steps_of(model, drafter, make_prompt_cache(model), **options)] == expected


@pytest.mark.parametrize("start", [0, 20])
def test_a_cache_is_quantised_where_plain_does_it_and_not_by_a_row_that_is_taken_back(
    start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 2}
    monkeypatch.setitem(CONFIGS, "llama64", {**CONFIGS["llama"], **shape})
    model = build("llama64")
    options = {"kv_bits": 8, "quantized_kv_start": start}
    expected = plain_tokens(model, PROMPT, 40, **options)
    for stop in sorted({1, 2, 39, *range(max(1, start - 8), start)} | {5, 30}):
        cache = make_prompt_cache(model)
        steps = steps_of(model, Resting(PROMPT + expected, [9]), cache, max_tokens=40, caching=CacheOptions(**options))
        assert [next(steps).token for _ in range(stop)] == expected[:stop]
        steps.close()
        held = len(PROMPT) + stop - 1
        assert {c.offset for c in cache} == {held}
        assert {type(c) is KVCache for c in cache} == {held < start}


@pytest.mark.parametrize("limits", [{"context_length": 20}, {"blocks_until": 20}])
def test_where_nothing_can_be_drafted_any_more_the_rest_runs_ahead_and_says_why(limits: dict[str, int]) -> None:
    model = build("llama")
    expected, statistics = plain_tokens(model, PROMPT, 40), Statistics()
    drafter = Resting(PROMPT + expected, [0])
    with calls_of(model.layers[0]) as rows:
        steps = steps_of(model, drafter, make_prompt_cache(model), statistics, max_tokens=40, **limits)
        emitted: list[tuple[Emitted, int]] = [(step, len(rows)) for step in steps]
    assert [e.token for e, _ in emitted] == expected and statistics.drafting_off is not None
    late = [started for _, started in emitted[20:-1]]
    assert late == list(range(late[0], late[0] + len(late))), "one forward a token"
    assert max(len(c.tokens) for c in drafter.seen) <= 20


def test_grammars_are_asked_with_every_token_known() -> None:
    """A block processor cannot run ahead: it is shown ids, and the rounds of rest are single ones."""

    class Even:
        shown: list[list[int]] = []  # noqa: RUF012

        def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
            return self.process_rows(tokens.tolist(), [], logits)  # type: ignore[arg-type]

        def allowed(self, history: list[int], draft: list[int]) -> int:
            return next((i for i, t in enumerate(draft) if t % 2), len(draft))

        def process_rows(self, history: list[int], draft: list[int], logits: mx.array) -> mx.array:
            self.shown.append(list(history))
            return mx.where(mx.arange(logits.shape[-1]) % 2 == 0, logits, -mx.inf)

    model, even = build("llama"), Even()
    expected = plain_tokens(model, PROMPT, 30, logits_processors=[even])
    even.shown.clear()
    steps = steps_of(
        model, Resting(PROMPT + expected, [5]), make_prompt_cache(model), max_tokens=30, logits_processors=[even]
    )
    tokens = [step.token for step in steps]
    assert tokens == expected and all(t % 2 == 0 for t in tokens)
    assert all(h == (PROMPT + tokens)[: len(h)] for h in even.shown)
