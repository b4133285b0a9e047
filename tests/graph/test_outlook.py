"""Outlook and forecast: promises of graphs that do not know the answers, and rounds that are those of replay."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import numpy as np
import pytest
from graphs import FULL_STATES, FULL_VOCABULARY, Said, corpus_of, full_corpus, full_graph, full_nodes, full_sequences
from hypothesis import given, settings
from hypothesis import strategies as st

from daari_mlx.compile.build import build
from daari_mlx.compile.calibrate import parts
from daari_mlx.cost.curves import CURVES, Curve
from daari_mlx.cost.length import MAX_DRAFT, Cost
from daari_mlx.draft.drafter import GraphDrafter
from daari_mlx.graph import outlook as module
from daari_mlx.graph.outlook import HeldOut, Outlook, Promise
from daari_mlx.ground.errors import DaariError
from daari_mlx.measure.forecast import FREE, forecast, go_through
from daari_mlx.measure.own_text import promised_on
from daari_mlx.measure.replay import replay
from daari_mlx.measure.streams import SHOWN, Stream, Streams

END = 2


def streams_of(sequences: list[Said]) -> Streams:
    items = []
    for said in sequences:
        tokens, start = [*said.before, *said.tokens], len(said.before) + said.lead
        top = np.zeros((len(said.tokens), SHOWN), np.int32)
        items.append(Stream(tokens, start, {"final": FULL_STATES[said.labels]}, top))
    return Streams(tuple(items), -1, None, (END,), {})


def mixed(seed: int) -> list[Said]:
    """Answers of the graph's form, and long ones that it cannot know: drafting rests and wakes up in them."""
    random, made = np.random.default_rng(seed), full_sequences(4, seed=seed + 100)
    for known in full_sequences(4, seed=seed + 200):
        noise = random.integers(3, FULL_VOCABULARY, size=30).tolist()
        labels = random.integers(len(FULL_STATES), size=30).tolist()
        made.append(Said(known.before, [*known.tokens[:6], *noise, *known.tokens[6:]], [*labels[:30], *known.labels]))
    return made


# --- the rounds


costs = st.lists(st.floats(0.0, 0.6), min_size=MAX_DRAFT, max_size=MAX_DRAFT).map(
    lambda steps: Cost(tuple(range(1, MAX_DRAFT + 2)), tuple(np.cumsum([1.0, *steps]).tolist()))
)


@settings(max_examples=25)
@given(costs, st.integers(0, 20), st.integers(1, MAX_DRAFT))
def test_the_rounds_are_those_of_a_replay(cost: Cost, seed: int, most: int) -> None:
    graph, streams = full_graph(), streams_of(mixed(seed))
    replayed = replay(streams, lambda stream: GraphDrafter(graph, cost=cost, ends=[END]), most=most)
    gone_through = go_through(promised_on(graph, streams), cost, most)
    assert [a.rounds for a in gone_through.answers] == [a.rounds for a in replayed.answers]
    assert gone_through.speedup(cost) == replayed.speedup(cost)


def test_drafts_and_rests_were_among_those_rounds() -> None:
    graph, streams, cost = full_graph(), streams_of(mixed(0)), CURVES["m3-ultra-bf16"].cost
    rounds = [r for a in go_through(promised_on(graph, streams), cost, MAX_DRAFT).answers for r in a.rounds]
    assert sum(drafted > 0 for drafted, _, _ in rounds) > 5
    assert max(map(len, "".join("-" if r[0] == 0 else " " for r in rounds).split())) > 4


def test_longer_contexts_cost_what_they_cost_there() -> None:
    cost = Cost((1, 33), (1.0, 1.5), 8, ((600, (1.0, 30.0)),))
    chances = tuple([0.9] * 8)
    near, far = (Outlook((HeldOut(before, (Promise(chances, 8),) * 9),)) for before in (4, 600))
    assert go_through(near, cost, MAX_DRAFT).forwards == 1
    assert go_through(far, cost, MAX_DRAFT).forwards > 4


# --- who promises


def held_apart(bodies: int) -> tuple[list[Said], list[list[int]]]:
    """Sequences in the order of a corpus; those that are held out together say the same, which no other says."""
    count = 5 * bodies
    folds, _ = parts(count, 0)
    sequences: list[Any] = [None] * count
    told = []
    for number, fold in enumerate(folds):
        body = list(range(20 + 8 * number, 28 + 8 * number))
        told.append(body)
        for place in fold.tolist():
            sequences[place] = Said([10], [11, *body, END], [place % 12 for place in range(10)])
    return sequences, told


def test_no_graph_that_is_listened_to_knows_the_answers() -> None:
    """Neither its tables nor what it heard of other held-out answers tell what only those say."""
    sequences, _ = held_apart(10)
    found = build(full_nodes(), corpus_of(sequences), layer="final", vocab_size=FULL_VOCABULARY).outlook
    assert found is not None and len(found.answers) == 50
    for answer in found.answers:
        assert answer.before == 2 and len(answer.promises) == 9
        assert [promise.right for promise in answer.promises[:-1]] == [0] * 8
    assert sum(len(promise.probabilities) for promise in found.promises()) > 0, "nothing was promised"


def test_what_other_parts_say_too_is_promised_and_kept() -> None:
    found = build(full_nodes(), full_corpus(full_sequences()), layer="final", vocab_size=FULL_VOCABULARY).outlook
    assert found is not None
    assert forecast(found, CURVES["linear"]).tokens_per_forward > 2
    assert all(len(promise.probabilities) <= MAX_DRAFT for promise in found.promises())


def test_too_few_sequences_give_no_outlook() -> None:
    assert build(full_nodes(), corpus_of(full_sequences(19)), layer="final", vocab_size=60).outlook is None


def test_answers_that_the_arbiter_was_not_fitted_on_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWERS", 3)
    corpus, graph = corpus_of(full_sequences(12)), full_graph()
    asked = []
    monkeypatch.setattr(
        module, "propose_along", lambda graph, tokens, *rest: asked.append(tokens) or HeldOut(1, (Promise((), 0),))
    )
    module.outlook_of([graph], graph.arbiter, corpus, [np.arange(12)], 10)
    want = [[*s.before, *s.tokens] for s in full_sequences(12)]
    assert asked == [want[10], want[11], want[0]]


def test_listening_ends_with_its_allowance(monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = corpus_of(full_sequences())
    whole = build(full_nodes(), corpus, layer="final", vocab_size=60).outlook
    monkeypatch.setattr(module, "DRAFT_TOKENS", 200)
    some = build(full_nodes(), corpus, layer="final", vocab_size=60).outlook
    assert whole is not None and some is not None
    assert 5 <= len(some.answers) < len(whole.answers)
    monkeypatch.setattr(module, "PLACES", 3)
    cut = build(full_nodes(), corpus, layer="final", vocab_size=60).outlook
    assert cut is not None and {len(a.promises) for a in cut.answers} == {3}


def test_ends_are_the_tokens_that_only_end() -> None:
    corpus = corpus_of([Said([1], [3, 4, 5, 2], [0] * 4), Said([2], [9, 4, 2], [0] * 3), Said([1], [3, 7, 4], [0] * 3)])
    assert module._ends(corpus) == {2}


# --- the record


promises = st.lists(st.floats(1e-5, 1 - 1e-5), max_size=MAX_DRAFT).flatmap(
    lambda chances: st.integers(0, len(chances)).map(lambda right: Promise(tuple(chances), right))
)
outlooks = st.lists(
    st.builds(HeldOut, st.integers(0, 10**6), st.lists(promises, min_size=1, max_size=6).map(tuple)),
    min_size=1,
    max_size=5,
).map(lambda answers: Outlook(tuple(answers)))


@given(outlooks)
def test_a_record_brings_everything_back_but_the_last_digits(outlook: Outlook) -> None:
    back = Outlook.of_record(json.loads(json.dumps(outlook.as_record())))
    assert [a.before for a in back.answers] == [a.before for a in outlook.answers]
    for own, other in zip(back.promises(), outlook.promises(), strict=True):
        assert own.right == other.right
        np.testing.assert_allclose(own.probabilities, other.probabilities, atol=0.013)


def test_a_record_keeps_within_its_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    answers = tuple(
        HeldOut(7, tuple(Promise(tuple(random.uniform(0.01, 0.99, 20).tolist()), 3) for _ in range(20)))
        for _ in range(40)
    )
    monkeypatch.setattr(module, "CHARACTERS", 5000)
    record = Outlook(answers).as_record()
    assert len(record["promises"]) <= 5000 and 1 < record["answers"] < 40
    assert Outlook.of_record(record).answers[0].before == 7


def packed(data: bytes) -> str:
    return base64.urlsafe_b64encode(zlib.compress(data)).decode()


SOUND = Outlook((HeldOut(3, (Promise((0.5, 0.9), 1), Promise((), 0))),)).as_record()
DAMAGE: list[Any] = [
    None,
    [],
    "text",
    {},
    {**SOUND, "answers": 0},
    {**SOUND, "answers": True},
    {**SOUND, "answers": "1"},
    {**SOUND, "answers": 2},
    {**SOUND, "tokens": 3},
    {**SOUND, "tokens": -2},
    {**SOUND, "draft_tokens": 10**12},
    {**SOUND, "draft_tokens": 3 << 20, "tokens": 3 << 20},
    {**SOUND, "promises": 5},
    {**SOUND, "promises": "é"},
    {**SOUND, "promises": SOUND["promises"][:-5]},
    {**SOUND, "promises": base64.urlsafe_b64encode(b"no zlib").decode()},
    {**SOUND, "promises": packed(b"\0" * (50 << 20))},
    {**SOUND, "promises": packed(b"\0" * 14)},
    {**SOUND, "promises": packed(np.array([-1, 2], "<i4").tobytes() + bytes([2, 0, 1, 0, 0, 0]))},
    {**SOUND, "promises": packed(np.array([3, -2], "<i4").tobytes() + bytes([2, 0, 1, 0, 0, 0]))},
    {**SOUND, "promises": packed(np.array([3, 2], "<i4").tobytes() + bytes([2, 0, 3, 0, 0, 0]))},
    {**SOUND, "promises": packed(np.array([3, 2], "<i4").tobytes() + bytes([1, 0, 1, 0, 0, 0]))},
]


@pytest.mark.parametrize("record", DAMAGE, ids=range(len(DAMAGE)))
def test_a_damaged_record_is_told_and_not_believed(record: Any) -> None:
    assert Outlook.of_record(SOUND).tokens == 2
    with pytest.raises(DaariError, match="The record of held-out answers"):
        Outlook.of_record(record)


# --- what is told


def steady(chance: float, right: int, length: int, *, places: int = 40, answers: int = 6) -> Outlook:
    """The same promise everywhere."""
    return Outlook((HeldOut(10, (Promise((chance,) * length, right),) * places),) * answers)


def test_reliability_counts_tokens_up_to_the_first_wrong_one() -> None:
    one = Promise((0.95, 0.99, 0.31, 0.4), 2)  # 0.31 is wrong, and 0.4 was never judged
    bins = Outlook((HeldOut(1, (one, Promise((0.93,), 0))), HeldOut(1, (Promise((1.0,), 1),)))).reliability()
    assert [b.tokens for b in bins] == [0, 0, 0, 1, 0, 0, 0, 0, 0, 4]
    assert bins[9].right == 3 and bins[9].promised == pytest.approx((0.95 + 0.99 + 0.93 + 1.0) / 4)
    assert bins[3].right == 0 and bins[3].promised == pytest.approx(0.31) and (bins[3].low, bins[3].high) == (0.3, 0.4)


def test_a_forecast_by_hand() -> None:
    """Four right tokens and a bonus a forward over five rows."""
    curve = Curve("here", Cost((1, 5), (1.0, 1.4)), "by hand")
    found = forecast(steady(0.999, 4, 4), curve)
    assert found.tokens_per_forward == 5 and found.speedup == pytest.approx(5 / 1.4)
    assert found.low == pytest.approx(found.high) == pytest.approx(5 / 1.4)
    assert (found.answers, found.losing, found.rows, found.first_right) == (6, 0, 5.0, 1.0)
    assert found.pays and found.why_not is None


def test_the_interval_is_wider_where_answers_differ() -> None:
    curve = CURVES["linear"]
    good, bad = steady(0.98, 8, 8, answers=3), steady(0.1, 0, 2, answers=3)
    both = forecast(Outlook(good.answers + bad.answers), curve)
    assert forecast(bad, curve).speedup < both.low < both.speedup < both.high < forecast(good, curve).speedup


def test_it_says_why_it_will_not_pay() -> None:
    unknown = forecast(steady(0.3, 0, 3), CURVES["m4-pro-4bit"])
    assert not unknown.pays and unknown.speedup <= 1
    assert unknown.why_not is not None and "hard to predict" in unknown.why_not
    assert "right in 0% of places" in unknown.why_not and "2 tokens takes 1.03" in unknown.why_not
    dear = forecast(steady(0.97, 8, 8), Curve("dear", Cost((1, 33), (1.0, 33.0)), "each row as dear as a forward"))
    assert not dear.pays and dear.speedup <= 1.001
    assert dear.why_not is not None and "too long for what drafts save" in dear.why_not and "8.0 tokens" in dear.why_not
    assert "a forward over 2 tokens takes 2.00" in dear.why_not


def test_no_draft_is_longer_than_what_was_measured() -> None:
    found = go_through(steady(0.99, 20, 20), FREE, 3)
    assert {r[0] for a in found.answers for r in a.rounds} == {3}
