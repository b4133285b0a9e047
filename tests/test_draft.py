"""The walk: nothing but look-ups per token, limits kept, lengths chosen by what rows cost."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from graphs import chain, graph_of, naive_walk, random_graph
from hypothesis import given
from hypothesis import strategies as st

from daari_mlx.draft import Context, Draft, GraphDrafter
from daari_mlx.graph import NO_NODE, Graph
from daari_mlx.length import MAX_DRAFT, Cost, best_length

FREE = Cost((1, 64), (1.0, 1.0))
TOKENS = list(range(100, 180))
STATE = np.random.default_rng(0).normal(size=8).astype(np.float32)


def anchored(graph: Graph, node: int) -> Graph:
    """The graph with ``STATE`` lying exactly on a node."""
    graph.nodes.centroids[node] = graph.nodes.projection(STATE)
    graph.nodes.centroids[np.arange(graph.size) != node] += 100
    assert graph.nodes.anchor(STATE) == node
    return graph


# --- no matrix product per token


@contextmanager
def recorded_calls() -> Iterator[list[str]]:
    """The names of all functions called inside, those in C included."""
    calls: list[str] = []

    def record(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            calls.append(frame.f_code.co_qualname)
        elif event == "c_call":
            calls.append(f"{getattr(argument, '__module__', '')}.{argument.__qualname__}")

    before = sys.getprofile()
    sys.setprofile(record)
    try:
        yield calls
    finally:
        sys.setprofile(before)


def test_a_walk_calls_nothing_but_list_operations() -> None:
    graph = chain(TOKENS)
    drafter = GraphDrafter(graph, num_draft_tokens=50)
    drafter.walk(0, 1)  # the lists are made at the first use
    with recorded_calls() as calls:
        assert graph.follow(0, 50)[0] == TOKENS[:50]
    own = ("recorded_calls", "_GeneratorContextManager", "setprofile", "builtins.next")
    made_once = {c for c in calls if calls.count(c) <= 2 and c.split(".")[-1] in ("walk", "__init__", "list", "Draft")}
    assert {c for c in calls if not any(name in c for name in own)} - made_once == {"None.list.append", "builtins.len"}
    assert calls.count("None.list.append") == 3 * 50


class Untouchable(np.ndarray):
    """An array that raises whenever anything is computed with it or read from it."""

    def __array_ufunc__(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("arithmetic on an array")

    def __array_function__(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("an array function")

    def __getitem__(self, _: Any) -> Any:
        raise AssertionError("an array was read")


def test_a_walk_touches_no_array() -> None:
    graph = chain(TOKENS)
    drafter = GraphDrafter(graph, num_draft_tokens=50)
    assert graph.walk, "the lists are made once"
    for name in ("edge_token", "edge_probability", "edge_start", "support", "step_key", "step_node"):
        object.__setattr__(graph, name, getattr(graph, name).view(Untouchable))
    with pytest.raises(AssertionError):
        graph.step(0, TOKENS[0])  # the negative control: this does look into the arrays
    assert graph.follow(0, 50)[0] == TOKENS[:50]


PRODUCTS = ("matmul", "dot", "einsum", "inner", "tensordot", "vdot")


def count_products(monkeypatch: pytest.MonkeyPatch, run: Callable[[type[np.ndarray]], Any]) -> tuple[int, int]:
    """(matrix products of NumPy, operations of MLX) while ``run`` runs with arrays of the class it is given."""
    products, mlx_calls = 0, 0

    class Counting(np.ndarray):
        def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
            nonlocal products
            products += ufunc is np.matmul
            plain = [i.view(np.ndarray) if isinstance(i, Counting) else i for i in inputs]
            return getattr(ufunc, method)(*plain, **kwargs)

        def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
            nonlocal products
            products += func.__name__ in PRODUCTS
            plain = [a.view(np.ndarray) if isinstance(a, Counting) else a for a in args]
            return func(*plain, **kwargs)

    def counting(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal mlx_calls
            mlx_calls += 1
            return function(*args, **kwargs)

        return call

    for name in dir(mx):
        function = getattr(mx, name)
        if callable(function) and not isinstance(function, type):
            monkeypatch.setattr(mx, name, counting(function))
    run(Counting)
    monkeypatch.undo()
    return products, mlx_calls


@pytest.mark.parametrize("drafted", [1, 4, 32, 60])
def test_a_draft_takes_two_products_however_long_it_is(drafted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The projection and the distances of re-anchoring, once a round; MLX does nothing at all."""
    graph = anchored(chain(TOKENS), 0)
    drafter = GraphDrafter(graph, num_draft_tokens=drafted)
    nodes = graph.nodes
    draft = Draft()

    def run(kind: type[np.ndarray]) -> None:
        nonlocal draft
        for holder, name in ((nodes.projection, "basis"), (nodes.projection, "mean"), (nodes, "centroids")):
            object.__setattr__(holder, name, getattr(holder, name).view(kind))
        draft = drafter.draft(Context([1, TOKENS[0]], STATE), limit=100)

    assert nodes._half_norms is not None, "made once"
    products, mlx_calls = count_products(monkeypatch, run)
    assert draft.tokens == TOKENS[1 : 1 + drafted] and draft.anchor == 0
    assert (products, mlx_calls) == (2, 0)


# --- what is drafted


@given(st.integers(0, 10_000), st.integers(1, 40), st.integers(0, 40))
def test_a_draft_is_the_walk_after_the_chosen_tokens_step(seed: int, limit: int, token: int) -> None:
    graph = random_graph(seed, count=15, vocabulary=30)
    drafter = GraphDrafter(graph, num_draft_tokens=12)
    draft = drafter.draft(Context([1, token], STATE), limit)
    anchor = graph.nodes.anchor(STATE)
    assert draft.anchor == anchor
    assert (draft.tokens, draft.nodes) == naive_walk(graph, graph.step(anchor, token), min(limit, 12))
    assert len(draft.tokens) == len(draft.probabilities) == len(draft.nodes) <= min(limit, 12)
    assert all(0 < p <= 1 for p in draft.probabilities)


def test_nothing_is_drafted_before_a_state_was_seen() -> None:
    assert GraphDrafter(chain(TOKENS), num_draft_tokens=5).draft(Context([1], None), 5) == Draft()


def test_the_walk_stops_where_nothing_was_ever_observed() -> None:
    graph = graph_of(3, 10, {0: {5: 0.5}, 1: {6: 0.5}}, {(0, 5): 1, (1, 6): 2})
    drafter = GraphDrafter(graph, num_draft_tokens=9)
    assert graph.follow(0, 9)[0] == [5, 6], "node 2 has no edges"
    assert graph.follow(NO_NODE, 9)[0] == []
    lost = graph_of(2, 10, {0: {5: 0.5}}, {})
    assert lost.follow(0, 9)[0] == [5], (
        "an edge that leads nowhere is still an edge"
    )


def test_a_circle_ends_at_the_limit() -> None:
    graph = graph_of(2, 10, {0: {5: 0.5}, 1: {6: 0.5}}, {(0, 5): 1, (1, 6): 0})
    assert graph.follow(0, 7)[0] == [5, 6, 5, 6, 5, 6, 5]


@pytest.mark.parametrize(("asked", "limit", "expected"), [(0, 9, 0), (1, 9, 1), (50, 9, 9), (50, 100, 50), (3, 1, 1)])
def test_the_smaller_of_both_limits_is_kept(asked: int, limit: int, expected: int) -> None:
    graph = anchored(chain(TOKENS), 0)
    draft = GraphDrafter(graph, num_draft_tokens=asked).draft(Context([1, TOKENS[0]], STATE), limit)
    assert draft.tokens == TOKENS[1 : 1 + expected]


@given(st.integers(0, 10_000), st.integers(0, 8), st.lists(st.floats(0.0, 0.8), min_size=8, max_size=8))
def test_auto_takes_the_length_that_pays_most(seed: int, pending: int, climbs: list[float]) -> None:
    times = np.concatenate([[1.0], 1.0 + np.cumsum(climbs)]).tolist()
    cost = Cost((1, 2, 3, 4, 6, 8, 12, 20, 41), tuple(times))
    shares = np.random.default_rng(seed).uniform(0.5, 1.0, len(TOKENS))
    edges = {i: {t: float(s)} for i, (t, s) in enumerate(zip(TOKENS, shares, strict=True))}
    steps = {(i, t): i + 1 for i, t in enumerate(TOKENS[:-1])}
    graph = anchored(graph_of(len(TOKENS), 1000, edges, steps), 0)
    draft = GraphDrafter(graph, cost=cost).draft(Context([1, TOKENS[0]], STATE), 1000, pending)
    path = graph.walk[1][1 : 1 + MAX_DRAFT]
    length = best_length(path, cost, pending)
    assert draft.tokens == TOKENS[1 : 1 + length]
    assert len(draft.probabilities) == len(draft.nodes) == length


def test_auto_drafts_the_whole_path_where_rows_are_free_and_nothing_where_they_are_not() -> None:
    graph = anchored(chain(TOKENS), 0)
    context = Context([1, TOKENS[0]], STATE)
    assert len(GraphDrafter(graph, cost=FREE).draft(context, 1000).tokens) == MAX_DRAFT
    assert len(GraphDrafter(graph, cost=FREE).draft(context, 5).tokens) == 5
    assert GraphDrafter(graph, cost=Cost((1,), (1.0,))).draft(context, 1000).tokens == []


def test_a_given_length_is_not_cut_by_a_cost() -> None:
    graph = anchored(chain(TOKENS), 0)
    drafter = GraphDrafter(graph, num_draft_tokens=6, cost=Cost((1,), (1.0,)))
    assert len(drafter.draft(Context([1, TOKENS[0]], STATE), 1000).tokens) == 6


def test_a_drafter_needs_a_length_or_a_cost() -> None:
    with pytest.raises(ValueError, match="num_draft_tokens or a cost"):
        GraphDrafter(chain(TOKENS))


def test_a_draft_does_not_share_its_lists() -> None:
    first, second = Draft(), Draft()
    first.tokens.append(1)
    assert second.tokens == []
