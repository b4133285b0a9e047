"""How far to draft: always the argmax over every length, whatever shape T(m) has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daari_mlx.cost.length import CALIBRATION_EDGES, CONTEXT_STEP, Calibration, Cost, best_length

PROBABILITIES = st.lists(st.floats(0.0, 1.0), max_size=24)


@st.composite
def costs(draw: st.DrawFn) -> Cost:
    """Curves with cliffs, flat bands and even falling stretches, measured at some rows only."""
    rows = sorted(draw(st.sets(st.integers(2, 40), max_size=8)))
    steps = [draw(st.sampled_from([0.0, 0.0, 0.01, 0.5, 3.0, -0.2])) for _ in rows]
    times, now = [1.0], 1.0
    for step in steps:
        now = max(0.3, now + step)
        times.append(now)
    return Cost((1, *rows), tuple(times))


def rate(
    length: int, probabilities: list[float], cost: Cost, pending: int, draft_cost: float = 0.0, drafted: int = 0
) -> float:
    """Expected tokens per unit of time, from its definition: the sum over outcomes of tokens × chance."""
    expected, reach = 0.0, 1.0
    for position in range(length):
        expected += (position + 1) * reach * (1 - probabilities[position])
        reach *= probabilities[position]
    expected += (length + 1) * reach
    return expected / (cost(1 + pending + length) + max(length, drafted) * draft_cost)


@given(PROBABILITIES, costs(), st.integers(0, 8), st.floats(0.0, 1.5), st.integers(0, 12))
def test_no_other_length_is_better_where_drafting_costs(
    probabilities: list[float], cost: Cost, pending: int, draft_cost: float, drafted: int
) -> None:
    rates = [rate(n, probabilities, cost, pending, draft_cost, drafted) for n in range(len(probabilities) + 1)]
    chosen = best_length(probabilities, cost, pending, draft_cost=draft_cost, drafted=drafted)
    assert rates[chosen] >= max(rates) * (1 - 1e-9)


def test_drafting_cost_shortens_until_it_is_spent() -> None:
    flat, sure = Cost((1, 32), (1.0, 1.5)), [0.9] * 12
    free = best_length(sure, flat)
    assert best_length(sure, flat, draft_cost=0.2) < free
    assert best_length(sure, flat, draft_cost=1.0) == 0, "a drafter as slow as the teacher"
    assert best_length(sure, flat, draft_cost=1.0, drafted=12) == 12, "what is drafted may as well be verified"


@given(PROBABILITIES, costs(), st.integers(0, 8))
def test_no_other_length_is_better(probabilities: list[float], cost: Cost, pending: int) -> None:
    rates = [rate(n, probabilities, cost, pending) for n in range(len(probabilities) + 1)]
    chosen = best_length(probabilities, cost, pending)
    assert 0 <= chosen <= len(probabilities)
    assert rates[chosen] >= max(rates) * (1 - 1e-9)


@given(PROBABILITIES, costs(), st.integers(0, 8))
def test_of_equal_lengths_the_shortest(probabilities: list[float], cost: Cost, pending: int) -> None:
    chosen = best_length(probabilities, cost, pending)
    shorter = [rate(n, probabilities, cost, pending) for n in range(chosen)]
    assert all(r < rate(chosen, probabilities, cost, pending) * (1 + 1e-9) for r in shorter)


@given(PROBABILITIES)
def test_nothing_is_drafted_when_rows_cost_what_they_give(probabilities: list[float]) -> None:
    """T(m) = m, as without a real BLAS: even sure tokens gain nothing."""
    assert best_length(probabilities, Cost((1,), (1.0,))) == 0


def test_nothing_is_drafted_without_a_chance() -> None:
    free = Cost((1, 32), (1.0, 1.0))
    assert best_length([], free) == 0
    assert best_length([0.0, 1.0, 1.0], free) == 0
    assert best_length([0.5, 0.0], free) == 1, "a token that cannot be right adds nothing"


def test_a_cliff_is_jumped_when_the_band_behind_it_pays() -> None:
    """Narrow or wide, never in between: 4-bit on a Mac is flat to 4 rows, jumps, and is flat again to 32."""
    cliff = Cost((1, 4, 5, 32), (1.0, 1.1, 3.0, 3.1))
    assert best_length([0.9] * 31, cliff) == 3, "3.4 tokens for 1.1 beat 9.6 for 3.1"
    assert best_length([0.99] * 31, cliff) == 31
    assert best_length([0.3] * 31, cliff) < 4
    assert best_length([0.99] * 6, cliff) == 3, "too short a path for the wide band"


def test_pending_rows_change_the_choice() -> None:
    """Rows that are carried anyway may use up the cheap band, or make further ones relatively cheap."""
    cost = Cost((1, 4, 5, 40), (1.0, 1.0, 2.5, 40.0))
    assert best_length([0.8] * 8, cost, pending=0) == 3
    assert best_length([0.8] * 8, cost, pending=3) == 0


@given(costs(), st.integers(1, 80))
def test_cost_is_linear_between_measured_rows_and_beyond(cost: Cost, rows: int) -> None:
    measured = dict(zip(cost.rows, cost.relative, strict=True))
    found = cost(rows)
    if rows in measured:
        assert found == pytest.approx(measured[rows])
    elif len(measured) == 1:
        assert found == pytest.approx(measured[1] * rows)
    elif rows < cost.rows[-1]:
        left, right = max(m for m in measured if m < rows), min(m for m in measured if m > rows)
        share = (rows - left) / (right - left)
        assert found == pytest.approx(measured[left] * (1 - share) + measured[right] * share)
    else:
        last, before = cost.rows[-1], cost.rows[-2]
        drawn_on = [(measured[last] - measured[m]) / (last - m) for m in (1, before)]
        assert found == pytest.approx(measured[last] + max(0.0, *drawn_on) * (rows - last))


@pytest.mark.parametrize(
    ("rows", "times"),
    [
        ((), ()),
        ((2, 3), (1.0, 1.1)),
        ((1, 3, 2), (1.0, 1.1, 1.2)),
        ((1, 2, 2), (1.0, 1.1, 1.2)),
        ((1, 2), (1.0,)),
        ((1, 2), (1.0, 0.0)),
        ((1, 2), (1.0, -1.0)),
        ((1, 2), (1.0, float("nan"))),
        ((1, 2), (1.0, float("inf"))),
    ],
)
def test_a_curve_that_is_none_is_refused(rows: tuple[int, ...], times: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="cost curve"):
        Cost(rows, times)


def test_a_falling_end_is_not_drawn_on_below_nothing() -> None:
    """Noise can make the last measured pair fall; drawn on, its line would reach zero and make long drafts free."""
    falling = Cost((1, 31, 32), (1.0, 2.0, 1.9))
    assert all(falling(rows) > 0 for rows in range(1, 200))


# --- calibration

BINS = len(CALIBRATION_EDGES) + 1


@given(st.floats(0.0, 1.0))
def test_a_promise_is_believed_until_something_was_judged(promised: float) -> None:
    assert Calibration()(promised) == pytest.approx(promised)


@given(st.floats(0.0, 1.0), st.lists(st.booleans(), max_size=60))
def test_calibrated_promises_stay_probabilities(promised: float, outcomes: list[bool]) -> None:
    calibration = Calibration()
    for right in outcomes:
        calibration.learn(promised, right)
    assert 0.0 <= calibration(promised) <= 1.0


def test_what_comes_true_is_learnt_for_like_promises_only() -> None:
    calibration = Calibration()
    for number in range(400):
        calibration.learn(0.95, number % 2 == 0)
    assert calibration(0.94) == pytest.approx(0.5, abs=0.06)
    assert calibration(0.5) == 0.5
    for _ in range(400):
        calibration.learn(0.95, True)
    assert calibration(0.94) > 0.97, "it forgets"


def test_an_earlier_text_counts_without_drowning_the_new_one() -> None:
    calibration = Calibration([0.0] * (BINS - 1) + [600.0], [0.0] * (BINS - 1) + [1000.0])
    assert calibration(0.999) == pytest.approx(0.6, abs=0.05)
    for _ in range(100):
        calibration.learn(0.999, True)
    assert calibration(0.999) > 0.9


@pytest.mark.parametrize(
    ("kept", "judged"), [([1.0], [1.0]), ([2.0] * BINS, [1.0] * BINS), ([-1.0] * BINS, [1.0] * BINS)]
)
def test_counts_that_are_none_are_refused(kept: list[float], judged: list[float]) -> None:
    with pytest.raises(ValueError, match="bins"):
        Calibration(kept, judged)


# --- longer contexts


@st.composite
def costs_by_context(draw: st.DrawFn) -> Cost:
    """Curves at two to four contexts; what m rows cost may fall with the context, as noise has it."""
    base = draw(costs())
    contexts = sorted(draw(st.sets(st.integers(300, 40_000), min_size=1, max_size=3)))
    times, longer = list(base.relative), []
    for context in contexts:
        times = [max(0.2, t + draw(st.sampled_from([0.0, 0.05, 0.5, 2.0, -0.1]))) for t in times]
        longer.append((context, tuple(times)))
    return Cost(base.rows, base.relative, 256, tuple(longer))


@given(costs_by_context())
def test_a_measured_context_has_its_own_curve(cost: Cost) -> None:
    assert cost.at(0) is cost and cost.at(256) is cost
    for context, times in cost.longer:
        middle = context // CONTEXT_STEP * CONTEXT_STEP + CONTEXT_STEP // 2  # of the step that the context lies in
        longer = tuple((c + middle - context, t) for c, t in cost.longer)
        if longer[0][0] > 256:
            found = Cost(cost.rows, cost.relative, 256, longer).at(middle)
            assert [found(m) for m in cost.rows] == pytest.approx([t / times[0] for t in times])


@given(costs_by_context(), st.integers(0, 200_000), st.integers(1, 60))
def test_every_context_has_a_curve_that_starts_at_one(cost: Cost, context: int, rows: int) -> None:
    found = cost.at(context)
    assert found(1) == pytest.approx(1.0 if found is not cost else cost.relative[0])
    assert 0 < found(rows) < float("inf")
    assert found is cost or found.at(3 * context) is found, "the curve of a context is final"
    assert cost.at(context) is found, "and looked up the second time"


def test_between_measured_contexts_times_are_linear_and_beyond_as_steep() -> None:
    cost = Cost((1, 8), (1.0, 1.5), 256, ((2048, (1.2, 3.0)), (4352, (1.6, 6.0))))
    # each of these is the middle of its step, half-way between two contexts or half a stretch beyond the last
    assert cost.at(1152)(8) == pytest.approx((1.5 + 3.0) / 2 / 1.1)
    assert cost.at(3200)(8) == pytest.approx((3.0 + 6.0) / 2 / 1.4)
    assert cost.at(5504)(8) == pytest.approx((6.0 + 3.0 / 2) / (1.6 + 0.4 / 2))
    falling = Cost((1, 8), (1.0, 3.0), 256, ((2304, (1.0, 2.0)),))
    assert falling.at(10**6)(8) == pytest.approx(2.0), "noise is not drawn on until long blocks are free"


def test_a_draft_shrinks_where_rows_cost_more_with_context() -> None:
    """The attention of every further row reads the whole context anew."""
    rows = (1, 2, 4, 8, 16, 33)
    times = [tuple(1.0 + 0.01 * (m - 1) + c / 8192 * (0.2 + 0.3 * (m - 1)) for m in rows) for c in (0, 2048, 8192)]
    cost = Cost(rows, times[0], 256, ((2048, times[1]), (8192, times[2])))
    lengths = [best_length([0.8] * 32, cost.at(context)) for context in (100, 1000, 2048, 4096, 8192, 32_768)]
    assert lengths == sorted(lengths, reverse=True) and lengths[0] > 8 > 3 > lengths[-1]


@pytest.mark.parametrize(
    "longer",
    [
        ((100, (1.0, 2.0)),),
        ((500, (1.0, 2.0)), (400, (1.0, 2.0))),
        ((500, (1.0,)),),
        ((500, (1.0, 0.0)),),
        ((500, (1.0, float("inf"))),),
    ],
)
def test_contexts_that_are_none_are_refused(longer: tuple[tuple[int, tuple[float, ...]], ...]) -> None:
    with pytest.raises(ValueError, match="cost curve"):
        Cost((1, 2), (1.0, 1.2), 256, longer)
