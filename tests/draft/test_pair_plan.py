"""What a round is expected to give: pure arithmetic, held against its definition and its bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_length import costs

from daari_mlx.cost.length import Cost, best_length
from daari_mlx.draft.pair_plan import Agreement, Share, bound, either, graph_plan, instead, longest, model_plan

CHANCES = st.lists(st.floats(0.01, 1.0), max_size=20)
LINEAR = Cost((1, 33), (1.0, 2.44))


def agreement(anywhere: float, with_graph: float, against_graph: float) -> Agreement:
    found = Agreement(0.5)
    for share, value in ((found.anywhere, anywhere), (found.with_graph, with_graph)):
        share._right = value * share._judged
    found.against_graph._right = against_graph * found.against_graph._judged
    return found


@given(CHANCES, costs(), st.integers(0, 3))
def test_the_graph_alone_drafts_as_far_as_it_always_does(chances: list[float], cost: Cost, pending: int) -> None:
    plan = graph_plan(chances, cost, pending)
    assert plan.length == best_length(chances, cost, pending) and plan.read is None
    assert longest(chances, cost, pending, 0.0) == plan.length


@given(CHANCES, costs(), st.floats(0.0, 2.0), st.floats(0.01, 1.0), st.integers(0, 20))
def test_what_was_spent_makes_drafts_longer_never_shorter(
    chances: list[float], cost: Cost, sunk: float, step: float, drafted: int
) -> None:
    assert longest(chances, cost, 0, sunk) >= longest(chances, cost, 0, 0.0)
    drafted = min(drafted, len(chances))
    assert longest(chances, cost, 0, sunk, step, drafted) <= max(drafted, longest(chances, cost, 0, sunk))


@given(
    CHANCES,
    costs(),
    st.tuples(*[st.floats(0.0, 1.0)] * 3),
    st.floats(0.01, 1.0),
    st.integers(0, 40),
    st.integers(1, 32),
)
def test_no_model_gives_more_than_one_that_is_always_right_for_nothing(
    chances: list[float], cost: Cost, shares: tuple[float, float, float], draft_cost: float, behind: int, limit: int
) -> None:
    plan = model_plan(chances, agreement(*shares), cost, 0, lambda m: draft_cost * cost(m), behind, limit)
    assert 1 <= plan.tokens <= plan.length + 1 and 1 <= plan.length <= limit
    assert plan.read is not None and plan.read <= min(len(chances), plan.length)
    least = min(draft_cost * cost(behind + k) if behind + k else 0.0 for k in range(33))
    assert plan.rate <= bound(cost, 0, least, limit) + 1e-9


def test_a_model_that_is_always_right_reads_the_graphs_draft_instead_of_stepping() -> None:
    forward = lambda m: 0.3 * LINEAR(m)  # noqa: E731
    stepping = model_plan([], agreement(1.0, 1.0, 1.0), LINEAR, 0, forward, 1, 32)
    reading = model_plan([0.9] * 8, agreement(1.0, 1.0, 1.0), LINEAR, 0, forward, 1, 32)
    assert stepping.read == 0 and reading.read == 8
    assert reading.rate > 1.3 * stepping.rate


def test_a_long_way_behind_costs_and_a_model_of_no_use_is_worth_less_than_the_graph() -> None:
    forward = lambda m: 0.1 * LINEAR(m)  # noqa: E731
    near, far = (model_plan([], agreement(0.9, 0.9, 0.9), LINEAR, 0, forward, n, 16).rate for n in (1, 200))
    assert far < near
    useless = model_plan([0.9] * 8, agreement(0.0, 0.0, 0.0), LINEAR, 0, forward, 1, 16)
    assert useless.rate < graph_plan([0.9] * 8, LINEAR, 0).rate


@given(st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_two_who_agree_are_surer_and_two_who_do_not_are_less_sure(graph: float, model: float) -> None:
    assert instead(graph, model) <= graph and instead(model, graph) <= model
    assert 0 <= either(graph, model) <= 1
    if graph >= 0.5 and model >= 0.5:
        assert either(graph, model) >= max(graph, model) - 1e-12
    assert instead(graph, model) + instead(model, graph) <= 1 + 1e-12


def test_certain_voices_divide_nothing_by_zero() -> None:
    assert either(1.0, 0.0) == either(0.0, 1.0) == 0.5
    assert instead(1.0, 1.0) == 0.5


def test_agreement_is_learnt_by_what_the_graph_said() -> None:
    found = Agreement(0.8)
    before = (found.anywhere.value, found.with_graph.value, found.against_graph.value)
    assert before[2] < before[0] < before[1]
    for _ in range(200):
        found.learn(True, True)
        found.learn(False, False)
        found.learn(None, True)
    assert found.with_graph.value > 0.95 and found.against_graph.value < 0.05
    assert found.anywhere.value == pytest.approx(2 / 3, abs=0.05)


@given(st.floats(0.0, 1.0), st.lists(st.booleans(), max_size=300))
def test_a_share_stays_one(expected: float, judged: list[bool]) -> None:
    share = Share(expected)
    for right in judged:
        share.learn(right)
        assert 0.0 <= share.value <= 1.0
