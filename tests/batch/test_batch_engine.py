"""Many answers at once: every row has the tokens that it has alone, whatever the others do."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from bench_dropin import tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.sample_utils import make_logits_processors, make_sampler
from random_batches import live
from zoo import CONFIGS, Oracle, build, plain_tokens

from daari_mlx.batch.engine import BatchEngine
from daari_mlx.batch.request import Event, Request
from daari_mlx.cost.batch_cost import BatchCost
from daari_mlx.cost.length import Cost
from daari_mlx.ground.errors import DaariError
from daari_mlx.teacher.ragged import RaggedCache
from daari_mlx.teacher.tap import tap_model

LENGTHS = (1, 2, 7, 30, 5, 64, 19)
TOKENS = 24  # of an answer; past every window of 16


@pytest.fixture(scope="module", params=sorted(CONFIGS))
def model(request: pytest.FixtureRequest) -> Any:
    return build(request.param)


def prompts_of(seed: int = 0, lengths: tuple[int, ...] = LENGTHS, shared: int = 40) -> list[list[int]]:
    random = np.random.default_rng(seed)
    beginning = random.integers(3, 120, shared).tolist()
    alone = [random.integers(3, 120, n).tolist() for n in lengths]
    return alone + [beginning + random.integers(3, 120, n).tolist() for n in (3, 9, 21)]


def engine_of(model: Any, **options: Any) -> BatchEngine:
    options = {"most_rows": 4, "prefill_step_size": 16, "tap": tap_model(model)[0], **options}
    return BatchEngine(model, tokenizer(()), **options)


def run(engine: BatchEngine, requests: list[Request]) -> tuple[dict[int, list[int]], dict[int, Event]]:
    """The tokens of every request, and its last event."""
    said: dict[int, list[int]] = {engine.add(request): [] for request in requests}
    last: dict[int, Event] = {}
    while len(engine):
        for event in engine.step():
            assert event.uid not in last, "nothing comes after the last event"
            said[event.uid] += [response.token for response in event.responses]
            if event.ended:
                last[event.uid] = event
    return said, last


@pytest.mark.parametrize("drafts", [False, True])
def test_rows_have_the_tokens_that_they_have_alone(model: Any, drafts: bool) -> None:
    prompts = prompts_of()
    expected = [plain_tokens(model, prompt, TOKENS) for prompt in prompts]
    requests = [
        Request(p, TOKENS, drafter=Oracle(p + e, block=5, right=0.8) if drafts else None, keep_cache=True)
        for p, e in zip(prompts, expected, strict=True)
    ]
    said, last = run(engine_of(model), requests)
    assert list(said.values()) == expected
    for (uid, event), prompt, answer in zip(sorted(last.items()), prompts, expected, strict=True):
        statistics = event.responses[-1].statistics
        assert (event.uid, event.responses[-1].finish_reason, statistics.tokens) == (uid, "length", TOKENS)
        assert (statistics.accepted > 5) == drafts and (statistics.forwards < TOKENS) == drafts
        assert event.prompt_cache is not None
        after = plain_tokens(model, [77], 4, prompt_cache=event.prompt_cache)
        assert after == plain_tokens(model, [*prompt, *answer, 77], 4), "the cache holds prompt and answer"


@pytest.mark.parametrize("rows", [1, 2, 32])
def test_any_number_of_rows_shares_a_forward(rows: int) -> None:
    model = build("llama")
    prompts = prompts_of(1, tuple(range(1, 60, 3)))
    expected = [plain_tokens(model, prompt, 20) for prompt in prompts]
    requests = [Request(p, 20, drafter=Oracle(p + e, block=4)) for p, e in zip(prompts, expected, strict=True)]
    said, _ = run(engine_of(model, most_rows=rows), requests)
    assert list(said.values()) == expected


def test_a_prompt_cache_is_gone_on_from_and_left_as_it_is(model: Any) -> None:
    before, prompt = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22], [42, 17, 3]
    cache = make_prompt_cache(model)
    model(mx.array([before]), cache=cache)
    expected = plain_tokens(model, before + prompt, TOKENS)
    for _ in range(2):
        said, _ = run(engine_of(model), [Request(prompt, TOKENS, prompt_cache=cache), Request([3, 4], 5)])
        assert said[0] == expected


def test_what_prompts_share_is_read_anew_once_the_model_changed() -> None:
    model: Any = build("llama")
    engine = engine_of(model)
    prompts = prompts_of(lengths=())
    for seed in (0, 1):
        model.load_weights([(k, v + 0) for k, v in tree_flatten(build("llama", seed=seed).parameters())])
        expected = [plain_tokens(model, prompt, 8) for prompt in prompts]
        assert list(run(engine, [Request(p, 8) for p in prompts])[0].values()) == expected


# --- no row changes another


class Fails:
    """A processor that raises at its n-th call."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        self.left -= 1
        if self.left < 0:
            raise ZeroDivisionError("this row's own")
        return logits


@pytest.mark.parametrize("at", [0, 1, 5, 9])
def test_an_error_is_its_own_rows(model: Any, at: int) -> None:
    prompts = prompts_of(2)[:5]
    expected = [plain_tokens(model, prompt, TOKENS) for prompt in prompts]
    requests = [Request(p, TOKENS, drafter=Oracle(p + e, block=4)) for p, e in zip(prompts, expected, strict=True)]
    requests[1].logits_processors = [Fails(at)]
    said, last = run(engine_of(model), requests)
    assert isinstance(last[1].error, ZeroDivisionError) and said[1] == expected[1][:at]
    assert [said[k] for k in (0, 2, 3, 4)] == [expected[k] for k in (0, 2, 3, 4)]


def test_cancelled_rows_are_gone_within_a_step(model: Any) -> None:
    prompts = prompts_of(3)
    expected = [plain_tokens(model, prompt, TOKENS) for prompt in prompts]
    engine, said = engine_of(model), {}
    for prompt in prompts:
        said[engine.add(Request(prompt, TOKENS))] = list[int]()
    gone = {0: 4, 5: 2, 2: 9, 9: 1}  # request -> the step after which nobody wants it
    for step in range(10_000):
        if not len(engine):
            break
        for uid in [uid for uid, when in gone.items() if when == step]:
            engine.cancel(uid)
        for event in engine.step():
            assert gone.get(event.uid, step + 1) > step, "no event of a cancelled row"
            said[event.uid] += [response.token for response in event.responses]
    assert all(said[k] == expected[k] for k in said if k not in gone)
    assert all(said[k] == expected[k][: len(said[k])] for k in gone)


SAMPLING = [{"temp": 0.9}, {"temp": 1.0, "top_p": 0.9}, {"temp": 0.7, "top_k": 20}, {"temp": 1.0, "min_p": 0.05}, None]


@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize("penalties", [False, True])
def test_seeded_rows_draw_what_they_draw_alone(drafts: bool, penalties: bool) -> None:
    model, prompts = build("llama"), prompts_of(4)[:5]
    requests, expected = [], []
    for seed, (prompt, sampling) in enumerate(zip(prompts, SAMPLING, strict=True)):
        sampler = make_sampler(**sampling) if sampling else None
        processors = make_logits_processors(repetition_penalty=1.2) if penalties else None
        mx.random.seed(seed)
        expected.append(plain_tokens(model, prompt, TOKENS, sampler=sampler, logits_processors=processors))
        drafter = Oracle(prompt + expected[-1], block=4) if drafts else None
        requests.append(
            Request(prompt, TOKENS, sampler=sampler, logits_processors=processors, seed=seed, drafter=drafter)
        )
    mx.random.seed(99)
    before = mx.random.state[0].tolist()
    said, last = run(engine_of(model), requests)
    assert list(said.values()) == expected
    assert mx.random.state[0].tolist() == before, "nobody else's random numbers were used"
    assert not drafts or all(event.responses[-1].statistics.accepted for event in last.values())


def test_stops_and_budgets_are_each_rows_own() -> None:
    model, prompts = build("llama"), prompts_of(5)[:4]
    expected = [plain_tokens(model, prompt, TOKENS) for prompt in prompts]
    words = tokenizer(())
    stop = words.decode(expected[1][5:7])
    requests = [
        Request(prompts[0], 3),
        Request(prompts[1], TOKENS, stop=[stop]),
        Request(prompts[2], 1),
        Request(prompts[3], TOKENS),
    ]
    for request, answer in zip(requests, expected, strict=True):
        request.drafter = Oracle(request.prompt + answer, block=6, right=1.0)
    said, last = run(engine_of(model), requests)
    assert [len(s) for s in said.values()][::2] == [3, 1] and said[3] == expected[3]
    assert last[1].responses[-1].finish_reason == "stop" and len(said[1]) <= 7
    assert all(s == e[: len(s)] for s, e in zip(said.values(), expected, strict=True))


# --- rounds that run ahead


@pytest.mark.parametrize("seed", [None, 7])
def test_without_drafts_the_next_forward_is_under_way_before_a_token_is_told(model: Any, seed: int | None) -> None:
    sampler = None if seed is None else make_sampler(temp=0.9)
    prompts = prompts_of(10)[:4]
    expected = []
    for prompt in prompts:
        mx.random.seed(seed or 0)
        expected.append(plain_tokens(model, prompt, TOKENS, sampler=sampler))
    engine = engine_of(model, most_rows=8)
    told: dict[int, list[int]] = {}
    running = engine._running
    under_way = 0
    for step in range(100):
        if step in (0, 3, 4, 9):  # newcomers come while a forward is under way
            told[engine.add(Request(prompts[len(told)], TOKENS, sampler=sampler, seed=seed))] = []
        if step == 12:
            engine.cancel(0)
        for event in engine.step():
            told[event.uid] += [response.token for response in event.responses]
        under_way += running.started
    assert told[0] == expected[0][: len(told[0])] and 4 < len(told[0]) < TOKENS
    assert [told[k] for k in (1, 2, 3)] == expected[1:]
    assert under_way > 15 and not len(engine) and engine.counts.rounds <= 40


class Counts:
    """A sampler of the user's own, which remembers how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, logprobs: mx.array) -> mx.array:
        self.asked += 1
        return mx.argmax(logprobs, axis=-1)


def test_a_sampler_is_asked_once_a_token_and_its_batch_mates_do_not_run_ahead_of_it(model: Any) -> None:
    prompts, sampler = prompts_of(11)[:3], Counts()
    expected = [plain_tokens(model, prompt, TOKENS) for prompt in prompts]
    requests = [Request(p, TOKENS) for p in prompts]
    requests[1].sampler, requests[1].max_tokens = sampler, 9
    said, _ = run(engine_of(model), requests)
    assert list(said.values()) == [expected[0], expected[1][:9], expected[2]] and sampler.asked == 9


def test_a_forward_that_was_started_and_fails_ends_all_rows_and_the_next_are_served(model: Any) -> None:
    expected = plain_tokens(model, [3, 4, 5], 10)
    engine = engine_of(model)
    for _ in range(3):
        engine.add(Request([3, 4, 5], 10))
    said: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for _ in range(3):
        for event in engine.step():
            said[event.uid] += [response.token for response in event.responses]
    assert engine._running.started
    cls = type(model.layers[-1])

    def broken(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise MemoryError

    model.layers[-1].__class__ = type("Broken", (cls,), {"__call__": broken})
    errors = []
    while len(engine):
        for event in engine.step():
            said[event.uid] += [response.token for response in event.responses]
            errors += [event.error] if event.ended else []
    model.layers[-1].__class__ = cls
    assert all(isinstance(error, MemoryError) for error in errors) and len(errors) == 3
    assert all(tokens == expected[: len(tokens)] for tokens in said.values())
    assert run(engine, [Request([3, 4, 5], 10)])[0] == {3: expected}


# --- order, cost, what cannot be


def test_nobody_waits_for_more_than_a_chunk_of_somebodys_prompt() -> None:
    model = build("llama")
    engine = engine_of(model, prefill_step_size=8)
    engine.add(Request([3, 4, 5], 60))
    for _ in range(4):
        engine.step()
    engine.add(Request(prompts_of(6)[5], 5))  # 64 tokens: eight chunks
    events = [engine.step() for _ in range(7)]
    assert all({event.uid for event in found} == {0} for found in events), "a token of the first row at every step"
    assert any(event.uid == 1 for _ in range(3) for event in engine.step())


def test_a_row_that_finds_no_room_waits_and_comes_in_its_order() -> None:
    model = build("llama")
    prompts = prompts_of(7)
    expected = [plain_tokens(model, prompt, 12) for prompt in prompts]
    engine, said, order = engine_of(model, most_bytes=1), {}, []
    for prompt in prompts:
        said[engine.add(Request(prompt, 12))] = list[int]()
    while len(engine):
        for event in engine.step():
            said[event.uid] += [response.token for response in event.responses]
            order += [event.uid] if event.ended else []
    assert list(said.values()) == expected and order == sorted(order)


def test_caches_of_running_rows_stay_within_their_bytes(model: Any) -> None:
    prompts = prompts_of(12)
    most = RaggedCache(model).bytes_for([90] * 3)
    engine, rows, said = engine_of(model, most_rows=8, most_bytes=most), 0, dict[int, list[int]]()
    for prompt in prompts:
        said[engine.add(Request(prompt, 12))] = []
    while len(engine):
        for event in engine.step():
            said[event.uid] += [response.token for response in event.responses]
        rows = max(rows, len(engine._running))
        assert engine._running.teacher.cache.nbytes <= most
    assert list(said.values()) == [plain_tokens(model, prompt, 12) for prompt in prompts] and 2 <= rows <= 4


def test_rows_that_cannot_share_are_answered_one_at_a_time_and_say_why(model: Any) -> None:
    prompts = prompts_of(8)[:3]
    expected = [plain_tokens(model, prompt, 20) for prompt in prompts]
    requests = [
        Request(p, 20, drafter=Oracle(p + e, block=4), keep_cache=True) for p, e in zip(prompts, expected, strict=True)
    ]
    said, last = run(engine_of(model, why_alone="its cache has no form for several rows"), requests)
    assert list(said.values()) == expected
    assert {event.alone for event in last.values()} == {"its cache has no form for several rows"}
    for event, prompt, answer in zip(last.values(), prompts, expected, strict=True):
        after = plain_tokens(model, [77], 4, prompt_cache=event.prompt_cache)
        assert after == plain_tokens(model, [*prompt, *answer, 77], 4)


@pytest.mark.parametrize("request_", [Request([]), Request([3], 0), Request([3], -2)])
def test_what_cannot_be_is_refused_when_it_is_added(request_: Request) -> None:
    with pytest.raises(DaariError):
        engine_of(build("llama")).add(request_)


@pytest.mark.parametrize("broken_steps", [1, 2])
def test_the_teachers_failure_ends_all_rows_and_the_next_are_served(broken_steps: int) -> None:
    """A forward that was started ahead and failed is tried again in its own round: only there it ends the rows."""
    model = build("llama")
    expected = plain_tokens(model, [3, 4, 5], 10)
    engine = engine_of(model)
    for _ in range(3):
        engine.add(Request([3, 4, 5], 10))
    told = engine.step()
    cls = type(model.layers[-1])

    def broken(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise MemoryError

    model.layers[-1].__class__ = type("Broken", (cls,), {"__call__": broken})
    for _ in range(broken_steps):
        told += engine.step()
    model.layers[-1].__class__ = cls
    failed = [event for event in told if event.error is not None]
    assert all(isinstance(event.error, MemoryError) for event in failed)
    assert len(failed) == (3 if broken_steps == 2 else 0) == 3 - len(engine)
    while len(engine):
        told += engine.step()
    if not failed:
        for uid in range(3):
            assert [r.token for event in told if event.uid == uid for r in event.responses] == expected
    assert run(engine, [Request([3, 4, 5], 10)])[0] == {3: expected}


FRESH = settings.default is not None and settings.default.max_examples > 100  # scripts/fresh_examples: 10,000 rounds


@given(seed=st.integers(0, 2**31), name=st.sampled_from(sorted(CONFIGS)), steps=st.integers(5, 40))
@settings(max_examples=250 if FRESH else 10)
def test_random_joins_leaves_cancels_failures_and_rejections(seed: int, name: str, steps: int) -> None:
    live(_built(name), seed, steps)


def _built(name: str) -> Any:
    if name not in _MODELS:
        _MODELS[name] = build(name)
    return _MODELS[name]


_MODELS: dict[str, Any] = {}


class Steady(BatchCost):
    """Learns nothing of how long rounds took here: what else this machine does changes no draft's length."""

    def learn(self, rows: int, columns: int, seconds: float) -> None:
        """Nothing."""


def test_a_batch_drafts_as_far_as_it_pays() -> None:
    """With rows that cost what they cost alone nothing is drafted; where they are free, much is."""
    model, prompts = build("llama"), prompts_of(9)[:4]
    expected = [plain_tokens(model, prompt, 24) for prompt in prompts]
    drafted = {}
    for name, curve in (("free", (1.0, 1.01)), ("dear", (1.0, 64.0))):
        cost = Steady(Cost((1, 64), curve))
        requests = [
            Request(p, 24, drafter=Oracle(p + e, block=6, right=0.7)) for p, e in zip(prompts, expected, strict=True)
        ]
        said, last = run(engine_of(model, cost=cost), requests)
        assert list(said.values()) == expected
        drafted[name] = sum(event.responses[-1].statistics.drafted for event in last.values())
    assert drafted["free"] > 100 and drafted["dear"] == 0
