"""Replay: rounds are those of a live run, and those of counting by hand; the oracle bounds every drafter."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daari_mlx.cost.curves import CURVES, choose_curves
from daari_mlx.cost.length import Cost
from daari_mlx.draft.drafter import Context, Draft, GraphDrafter
from daari_mlx.draft.lookup import LookupDrafter
from daari_mlx.ground.errors import DaariError
from daari_mlx.measure.baselines import OracleDrafter, RecycledTokens, RecyclingDrafter, StepChances, answers_of
from daari_mlx.measure.bench import _rounds
from daari_mlx.measure.replay import replay
from daari_mlx.measure.streams import SHOWN, Stream, Streams, load_streams, record, save_streams
from daari_mlx.measure.suffix import SuffixDrafter

COST = Cost((1, 2, 4, 8, 33), (1.0, 1.1, 1.3, 1.9, 3.0))
MAX_TOKENS = 40


def stream_of(tokens: list[int], start: int) -> Stream:
    """A stream whose teacher likes what it says, and then the next ids."""
    rows = len(tokens) - start + 1
    likeliest = [[(t + k) % 97 for k in range(SHOWN)] for t in tokens[start - 1 :]]
    states = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2)
    return Stream(tokens, start, {"final": states}, np.array(likeliest, np.int32))


def streams_of(
    *items: tuple[list[int], int], max_tokens: int = -1, context: int | None = None, ends: tuple[int, ...] = ()
) -> Streams:
    return Streams(tuple(stream_of(*item) for item in items), max_tokens, context, ends, {})


# --- against live runs


@pytest.fixture(scope="module")
def recorded(compiled: Any, tmp_path_factory: pytest.TempPathFactory) -> Streams:
    """The tiny teacher's streams on prompts that its graph has not seen, saved and read back."""
    from graphs import write_rows

    from daari_mlx.text.data import read_prompts

    folder = tmp_path_factory.mktemp("streams")
    write_rows(folder / "test.jsonl", 10, seed=77)
    prompts = read_prompts(folder / "test.jsonl", compiled.teacher.tokenizer).items
    path = folder / "streams.safetensors"
    save_streams(record(compiled.teacher, prompts, ["final", 0], MAX_TOKENS), path)
    return load_streams(path)


def live(compiled: Any, prompt: list[int], drafter: Any) -> tuple[list[int], list[tuple[int, int, int]]]:
    from daari_mlx.decode.generate import stream_generate

    model, tokenizer = compiled.teacher.model, compiled.teacher.tokenizer
    steps = []
    for response in stream_generate(model, tokenizer, prompt, max_tokens=MAX_TOKENS, drafter=drafter):
        statistics = response.statistics
        steps.append((response.token, response.from_draft, statistics.forwards, statistics.drafted))
    return [step[0] for step in steps], _rounds(steps)


@pytest.mark.parametrize("name", ["graph", "fixed", "lookup", "suffix"])
def test_replayed_rounds_are_those_of_a_live_run(compiled: Any, recorded: Streams, name: str) -> None:
    def make() -> Any:
        if name == "graph":
            return GraphDrafter(compiled.graph, cost=COST, ends=recorded.ends)
        if name == "fixed":
            return GraphDrafter(compiled.graph, num_draft_tokens=6)
        if name == "lookup":
            return LookupDrafter(cost=COST)
        return SuffixDrafter(answers_of(compiled.graph), COST, recorded.ends)

    shared = make()
    afresh = name in ("graph", "fixed")
    replayed = replay(recorded, lambda stream: make() if afresh else shared)
    shared = make()
    drafted = 0
    for stream, answer in zip(recorded.items, replayed.answers, strict=True):
        ids, rounds = live(compiled, stream.prompt, make() if afresh else shared)
        assert ids == stream.answer
        assert list(answer.rounds) == rounds
        assert answer.tokens == len(ids) == sum(answer.sources.values())
        drafted += sum(r[0] for r in rounds)
    assert drafted > 0, "nothing was drafted: nothing was tested"


def test_recorded_states_are_the_teachers(compiled: Any, recorded: Streams) -> None:
    stream = recorded.items[0]
    for layer in ("final", 0):
        states = compiled.teacher.states(stream.tokens, layer, stream.start - 2)[: len(stream.top)]
        np.testing.assert_allclose(stream.states[layer], states, atol=1e-4)
    assert stream.top[1:, 0].tolist() == stream.answer


# --- against counting by hand


class Scripted:
    """Drafts what a script says: tokens and rounds of rest."""

    layer = "final"

    def __init__(self, script: list[tuple[list[int], int]]) -> None:
        self.script, self.limits, self.contexts = list(script), [], []

    def draft(self, context: Context, limit: int, pending: int) -> Draft:
        self.limits.append(limit)
        states = None if context.states is None else context.states[:, 0].tolist()
        self.contexts.append((len(context.tokens), None if context.state is None else context.state.tolist(), states))
        tokens, rest = self.script.pop(0) if self.script else ([], 0)
        return Draft(tokens[:limit], [0.5] * len(tokens[:limit]), [], -1, rest)


def by_hand(
    tokens: list[int], start: int, script: list[tuple[list[int], int]], limit_of: Any
) -> list[tuple[int, int, int]]:
    rounds, at, script = [], start, list(script)
    while at < len(tokens):
        limit = limit_of(at - start, at - 1)
        if limit == 0:
            rounds.append((0, 0, 1))
            at += 1
            continue
        draft, rest = script.pop(0) if script else ([], 0)
        draft = draft[:limit]
        if draft:
            right = 0
            while right < len(draft) and at + right < len(tokens) and draft[right] == tokens[at + right]:
                right += 1
            said = min(right + 1, len(tokens) - at)
            rounds.append((len(draft), right, said))
            at += said
        for _ in range(rest + (not draft)):
            if at < len(tokens):
                rounds.append((0, 0, 1))
                at += 1
    return rounds


ids = st.integers(0, 2)
texts = st.lists(ids, min_size=2, max_size=40)


@given(
    texts,
    st.integers(1, 39),
    st.lists(st.tuples(st.lists(ids, max_size=6), st.integers(0, 3)), max_size=30),
    st.integers(0, 3),
    st.integers(1, 9),
)
def test_rounds_are_counted_as_by_hand(
    tokens: list[int], start: int, script: list[tuple[list[int], int]], slack: int, most: int
) -> None:
    start = min(start, len(tokens) - 1)
    length = len(tokens) - start
    context = len(tokens) + slack
    streams = streams_of((tokens, start), max_tokens=length, context=context)
    drafter = Scripted(script)
    found = replay(streams, lambda stream: drafter, most=most)

    def limit_of(emitted: int, cached: int) -> int:
        return max(0, min(length - emitted - 1, context - cached - 1, most))

    rounds = by_hand(tokens, start, script, limit_of)
    assert list(found.answers[0].rounds) == rounds
    assert found.tokens == length and found.forwards == len(rounds)
    assert found.tokens_per_forward == length / len(rounds)
    assert found.answers[0].time(COST) == pytest.approx(sum(COST(1 + drafted) for drafted, _, _ in rounds))
    figures = found.as_dict(COST)
    assert figures["drafted"] == sum(r[0] for r in rounds) and figures["accepted"] == sum(r[1] for r in rounds)
    for said, state, states in drafter.contexts:
        row = said - start
        assert state == (None if row == 0 and start == 1 else [2.0 * row, 2.0 * row + 1])
        assert states is None if row == 0 else states[-1] == 2.0 * row


def test_what_draws_no_draft_is_plain_decoding() -> None:
    found = replay(streams_of(([1, 2, 3, 4, 5], 2)), lambda stream: Scripted([]))
    assert found.answers[0].rounds == ((0, 0, 1),) * 3
    assert found.speedup(COST) == found.tokens_per_forward == 1.0
    assert found.as_dict(COST)["losing"] == 0


def test_a_layer_that_was_not_recorded_is_refused() -> None:
    with pytest.raises(DaariError, match="layer 7"):
        replay(streams_of(([1, 2, 3], 1)), lambda stream: SimpleNamespace(layer=7))  # type: ignore[arg-type,return-value]


# --- bounds and curves


@given(st.lists(st.tuples(texts, st.integers(1, 20)), min_size=1, max_size=4), st.sampled_from(sorted(CURVES)))
def test_the_oracle_bounds_every_drafter(items: list[tuple[list[int], int]], name: str) -> None:
    curve = CURVES[name]
    streams = streams_of(*((tokens, min(start, len(tokens) - 1)) for tokens, start in items))
    bound = replay(streams, lambda stream: OracleDrafter(stream, curve.cost), most=curve.most)
    lookup, suffix = LookupDrafter(cost=curve.cost), SuffixDrafter([[0, 1, 2]], curve.cost)
    table, steps = RecycledTokens(), StepChances()
    for drafter_of in (
        lambda stream: lookup,
        lambda stream: suffix,
        lambda stream: RecyclingDrafter(stream, table, steps, curve.cost, ()),
        lambda stream: LookupDrafter(num_draft_tokens=5),
        lambda stream: Scripted([(stream.answer[:4], 0), (stream.answer[5:], 1)]),
    ):
        found = replay(streams, drafter_of, most=curve.most)
        assert found.tokens == bound.tokens
        for ours, best in zip(found.answers, bound.answers, strict=True):
            assert best.time(curve.cost) <= ours.time(curve.cost) + 1e-9


def test_curves_never_fall_and_end_where_they_were_measured() -> None:
    for curve in CURVES.values():
        times = [curve.cost(m) for m in range(1, curve.most + 2)]
        assert times == sorted(times) and times[0] == 1.0
        assert curve.most + 1 == curve.cost.rows[-1] and curve.source
    assert choose_curves("all") == list(CURVES.values())
    with pytest.raises(DaariError, match="m3-max-4bit"):
        choose_curves("m9")


# --- files


def damaged(**changed: Any) -> Any:
    def change(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {k: v for k, v in {**arrays, **changed}.items() if v is not None}

    return change


@pytest.mark.parametrize(
    "change",
    [
        *(damaged(**{name: None}) for name in ("tokens", "lengths", "starts", "top", "about", "states.final")),
        damaged(starts=np.array([0, 1])),
        damaged(starts=np.array([3, 3])),
        damaged(starts=np.array([1])),
        damaged(lengths=np.array([3, 4])),
        damaged(lengths=np.array([4, 4], np.int32)),
        damaged(tokens=np.full(8, -1, np.int32)),
        damaged(tokens=np.zeros((8, 1), np.int32)),
        damaged(top=np.zeros((3, SHOWN), np.int32)),
        damaged(about=np.frombuffer(b'{"layers": []}', np.uint8)),
        damaged(about=np.frombuffer(b"{nonsense", np.uint8)),
        damaged(**{"states.final": np.full((7, 2), np.nan, np.float32)}),
        damaged(**{"states.final": np.zeros((6, 2), np.float32)}),
        damaged(**{"states.final": np.zeros((7, 2), np.int32)}),
    ],
)
def test_damaged_streams_are_refused(change: Any, tmp_path: Any) -> None:
    from daari_mlx.ground.files import load_arrays, save_arrays

    path = tmp_path / "streams.safetensors"
    save_streams(streams_of(([1, 2, 3, 4], 1), ([5, 6, 7, 8], 2)), path)
    arrays = load_arrays(path)
    assert len(load_streams(path).items) == 2
    save_arrays(path, change(arrays))
    with pytest.raises(DaariError, match="damaged"):
        load_streams(path)


def test_a_cut_or_missing_file_is_refused(tmp_path: Any) -> None:
    path = tmp_path / "streams.safetensors"
    with pytest.raises(DaariError, match="There is no file of streams at"):
        load_streams(path)
    save_streams(streams_of(([1, 2, 3, 4], 1), max_tokens=9, context=50, ends=(2,)), path)
    again = load_streams(path)
    assert (again.max_tokens, again.context_length, again.ends, again.layers) == (9, 50, (2,), ["final"])
    assert again.items[0].tokens == [1, 2, 3, 4] and again.items[0].start == 1
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DaariError):
        load_streams(path)
