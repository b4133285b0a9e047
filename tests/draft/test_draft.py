"""The walk: nothing but look-ups per token, limits kept, lengths chosen by what rows cost."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from graphs import FULL_STATES, chain, full_graph, full_sequences, graph_of, naive_promise, naive_walk, random_graph
from hypothesis import given
from hypothesis import strategies as st

from daari_mlx.cost.length import MAX_DRAFT, Cost, best_length
from daari_mlx.draft.drafter import LONGEST_REST, WAKEFUL, Context, Draft, GraphDrafter
from daari_mlx.graph.arbiter import FLOOR
from daari_mlx.graph.arrays import from_arrays, to_arrays
from daari_mlx.graph.artifact import FORMAT_VERSION
from daari_mlx.graph.graph import NO_NODE, Graph

FREE = Cost((1, 64), (1.0, 1.0))
TOKENS = list(range(100, 180))
STATE = np.random.default_rng(0).normal(size=8).astype(np.float32)


def anchored(graph: Graph, node: int) -> Graph:
    """The graph with ``STATE`` lying exactly on a node."""
    graph.nodes.centroids[node] = graph.nodes.projection(STATE)
    graph.nodes.centroids[np.arange(graph.size) != node] += 100
    assert graph.nodes.anchor(STATE)[0] == node
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
    assert graph.walk, "the lists are made at the first use"
    with recorded_calls() as calls:
        assert graph.follow(0, 50)[0] == TOKENS[:50]
    own = ("recorded_calls", "_GeneratorContextManager", "setprofile", "builtins.next")
    assert {c for c in calls if not any(name in c for name in own)} == {
        "Graph.follow", "None.list.append", "builtins.len"
    }  # fmt: skip
    assert calls.count("Graph.follow") == 1 and calls.count("None.list.append") == 2 * 50


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
    assert graph.walk, "the lists are made once"
    lock_arrays(graph)
    with pytest.raises(AssertionError):
        graph.edge_token[0]  # the negative control
    assert graph.follow(0, 50)[0] == TOKENS[:50]


def lock_arrays(graph: Graph) -> None:
    """Make every array of the graph untouchable, but for those that re-anchoring needs."""
    arbiter = graph.arbiter
    graph_arrays = (
        "edge_token",
        "edge_probability",
        "edge_start",
        "support",
        "step_key",
        "step_node",
        "prompts",
        "text",
    )
    for holder, names in ((graph, graph_arrays), (arbiter, ("weights",))):
        for name in names:
            object.__setattr__(holder, name, getattr(holder, name).view(Untouchable))
    object.__setattr__(arbiter, "odds", tuple(odds.view(Untouchable) for odds in arbiter.odds))


def own_copy(graph: Graph) -> Graph:
    """The same graph, sharing neither arrays nor lists that were made of them."""
    return from_arrays(
        {name: array.copy() for name, array in to_arrays(graph).items()},
        {
            "format_version": FORMAT_VERSION,
            "layer": graph.layer,
            "vocab_size": graph.vocab_size,
            "teacher": {},
            "sources": list(graph.arbiter.names),
        },
    )


def full_texts(seed: int) -> list[tuple[list[int], int]]:
    """Tokens said so far and the node that the last of them was chosen on, along some unseen answers."""
    return [
        ([*said.before, *said.tokens[: row + 1]], said.labels[row])
        for said in full_sequences(6, seed)
        for row in range(len(said.tokens))
    ]


def test_a_draft_of_all_sources_touches_no_array_but_to_find_its_way_back_to_the_walk() -> None:
    """Where the draft leaves the top edge, one binary search of the steps; everything else is lists and strings."""
    plain, locked = full_graph(), own_copy(full_graph())
    drafter, other = (GraphDrafter(graph, num_draft_tokens=20) for graph in (plain, locked))
    for tokens, node in full_texts(5)[:2]:  # lists and dictionaries are made at the first use
        other.draft(Context(tokens, FULL_STATES[node]), 20)
        drafter.draft(Context(tokens, FULL_STATES[node]), 20)
    lock_arrays(locked)
    object.__setattr__(locked, "step", None)
    edge = next(s for s in other.sources.all if s.name == "edge")
    searched = []
    edge._step = lambda node, token: searched.append(token) or plain.step(node, token)  # type: ignore[attr-defined]
    drafted = 0
    for tokens, node in full_texts(6):
        searched.clear()
        draft = other.draft(Context(tokens, FULL_STATES[node]), 20)
        assert draft == drafter.draft(Context(tokens, FULL_STATES[node]), 20)
        assert len(searched) <= 1 + len(draft.tokens)
        drafted += len(draft.tokens)
    assert drafted > 100


def test_a_draft_of_all_sources_calls_nothing_that_computes() -> None:
    graph = full_graph()
    drafter = GraphDrafter(graph, num_draft_tokens=20)
    edge = next(s for s in drafter.sources.all if s.name == "edge")
    known = {(n, t): graph.step(n, t) for n in range(-1, graph.size) for t in range(graph.vocab_size)}
    edge._step = lambda node, token: known[node, token]  # type: ignore[attr-defined]
    texts = full_texts(6)
    drafter.draft(Context(texts[0][0], FULL_STATES[0]), 20)
    for tokens, node in texts[:20]:
        moment = drafter.sources.start(tokens, node)
        with recorded_calls() as calls:
            graph.arbiter.propose(drafter.sources.all, moment, 20)
        assert len(calls) > 5
        assert not {c for c in calls if "numpy" in c or "ndarray" in c or "mlx.core" in c or "matmul" in c}


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


def counted_by(kind: type[np.ndarray], graph: Graph) -> None:
    """Let all that re-anchoring and nearest states multiply be of this class."""
    nodes, kept = graph.nodes, graph.exemplars
    object.__setattr__(nodes.projection, "basis", nodes.projection.basis.view(kind))
    nodes.__dict__["_blocks"] = [block.view(kind) for block in nodes._blocks]
    kept.__dict__["_wide"] = tuple(part.view(kind) if isinstance(part, np.ndarray) else part for part in kept._wide)
    kept._spans.clear()


@pytest.mark.parametrize("drafted", [1, 4, 32, 60])
def test_a_draft_takes_two_products_however_long_it_is(drafted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The projection and the distances of re-anchoring, once a round; MLX does nothing at all."""
    graph = anchored(chain(TOKENS), 0)
    drafter = GraphDrafter(graph, num_draft_tokens=drafted)
    draft = Draft()

    def run(kind: type[np.ndarray]) -> None:
        nonlocal draft
        counted_by(kind, graph)
        draft = drafter.draft(Context([1, TOKENS[0]], STATE), limit=100)

    drafter.draft(Context([1, 2], STATE), limit=1)  # what is made once is made
    products, mlx_calls = count_products(monkeypatch, run)
    assert draft.tokens == TOKENS[1 : 1 + drafted] and draft.anchor == 0
    assert (products, mlx_calls) == (2, 0)


# --- what is drafted


@given(st.integers(0, 10_000), st.integers(1, 40), st.integers(0, 40))
def test_a_draft_is_the_walk_after_the_chosen_tokens_step(seed: int, limit: int, token: int) -> None:
    graph = random_graph(seed, count=15, vocabulary=30)
    drafter = GraphDrafter(graph, num_draft_tokens=12)
    draft = drafter.draft(Context([1, token], STATE), limit)
    anchor = graph.nodes.anchor(STATE)[0]
    assert draft.anchor == anchor
    tokens, nodes = naive_walk(graph, graph.step(anchor, token), min(limit, 12))
    assert draft.tokens == tokens and draft.sources == ["edge"] * len(tokens)
    assert len(draft.tokens) == len(draft.probabilities) <= min(limit, 12)
    assert draft.probabilities == pytest.approx(promises(graph, nodes), abs=1e-6)
    assert all(0 < p <= 1 for p in draft.probabilities)


def promises(graph: Graph, nodes: list[int]) -> list[float]:
    """What an uncalibrated graph promises for the top edges of some nodes."""
    return [naive_promise(float(graph.edge_probability[graph.edge_start[n]]), int(graph.support[n])) for n in nodes]


def test_nothing_is_drafted_before_a_state_was_seen() -> None:
    assert GraphDrafter(chain(TOKENS), num_draft_tokens=5).draft(Context([1], None), 5) == Draft()


def test_the_walk_stops_where_nothing_was_ever_observed() -> None:
    graph = graph_of(3, 10, {0: {5: 0.5}, 1: {6: 0.5}}, {(0, 5): 1, (1, 6): 2})
    assert graph.follow(0, 9)[0] == [5, 6], "node 2 has no edges"
    assert graph.follow(NO_NODE, 9)[0] == []
    lost = graph_of(2, 10, {0: {5: 0.5}}, {})
    assert lost.follow(0, 9)[0] == [5], "an edge that leads nowhere is still an edge"


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
    graph = anchored(graph_of(len(TOKENS), 1000, edges, steps, seen=100), 0)
    draft = GraphDrafter(graph, cost=cost).draft(Context([1, TOKENS[0]], STATE), 1000, pending)
    path = promises(graph, list(range(1, 1 + MAX_DRAFT)))
    likely = np.concatenate([[1.0], np.cumprod(path)])[:-1] > FLOOR  # no further than a path is at all likely
    path = path[: int(np.append(likely, False).argmin())]
    length = best_length(path, cost, pending)
    assert draft.tokens == TOKENS[1 : 1 + length]
    assert len(draft.probabilities) == len(draft.sources) == length


def test_auto_drafts_the_whole_path_where_rows_are_free_and_nothing_where_they_are_not() -> None:
    graph = anchored(chain(TOKENS, share=1.0, seen=100), 0)
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


# --- all sources together


@pytest.mark.parametrize("drafted", [1, 4, 20])
def test_a_draft_of_all_sources_takes_three_products(drafted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of re-anchoring and the distances to single states, once a round."""
    graph = own_copy(full_graph())
    drafter, found = GraphDrafter(graph, num_draft_tokens=drafted), []
    tokens, node = full_texts(6)[2]
    drafter.draft(Context([1, 2, 3], FULL_STATES[0]), 20)

    def run(kind: type[np.ndarray]) -> None:
        counted_by(kind, graph)
        found.append(drafter.draft(Context(tokens, FULL_STATES[node]), limit=100))

    assert count_products(monkeypatch, run) == (3, 0)
    assert found[0].anchor == node and len(found[0].tokens) >= min(drafted, 2)


def test_nothing_is_drafted_behind_an_end() -> None:
    for ends in ([TOKENS[3]], [TOKENS[1], TOKENS[9]], [999]):
        graph = anchored(chain(TOKENS, share=1.0, seen=100), 0)
        last = min((TOKENS.index(t) for t in ends if t in TOKENS), default=20)
        for drafter in (
            GraphDrafter(graph, num_draft_tokens=20, ends=ends),
            GraphDrafter(graph, cost=FREE, ends=ends),
        ):
            draft = drafter.draft(Context([1, TOKENS[0]], STATE), 20)
            assert draft.tokens == TOKENS[1 : last + 1]
            assert not set(draft.tokens[:-1]) & set(ends)


class Watched(Cost):
    """A cost that tells which contexts it was asked for."""

    def at(self, context: int) -> Cost:
        ASKED.append(context)
        return Cost((1,), (1.0,)) if context > 100 else self


ASKED: list[int] = []


def test_the_cost_is_that_of_the_context() -> None:
    """Where a row has become dear, nothing is drafted."""
    graph = anchored(chain(TOKENS, share=1.0, seen=100), 0)
    drafter = GraphDrafter(graph, cost=Watched((1, 64), (1.0, 1.0)))
    ASKED.clear()
    assert len(drafter.draft(Context([1, TOKENS[0]], STATE), 20).tokens) == 20
    assert drafter.draft(Context([1] * 150 + [TOKENS[0]], STATE), 20).tokens == []
    assert ASKED == [2, 151]


def test_a_rest_is_announced_after_idle_rounds_and_ends_when_drafts_pay() -> None:
    graph = anchored(chain(TOKENS, share=1.0, seen=100), 0)
    drafter = GraphDrafter(graph, cost=Cost((1,), (1.0,)))  # every row costs as much as a whole forward
    tokens = [1, TOKENS[0]]
    rests = []
    for _ in range(WAKEFUL + 6):
        draft = drafter.draft(Context(tokens, STATE), 20)
        assert draft.tokens == []
        rests.append(draft.rest)
        tokens = [*tokens, TOKENS[0]]
    assert rests[: WAKEFUL - 1] == [0] * (WAKEFUL - 1)
    assert rests[WAKEFUL - 1 :] == [min(2**k, LONGEST_REST) for k in range(7)]
    drafter.cost = FREE
    draft = drafter.draft(Context(tokens, STATE), 20)
    assert draft.tokens and draft.rest == 0


def test_a_set_length_never_rests() -> None:
    drafter = GraphDrafter(graph_of(2, 10, {}, {}), num_draft_tokens=3)
    assert [drafter.draft(Context([1, 2], STATE), 9).rest for _ in range(20)] == [0] * 20


def test_long_drafts() -> None:
    circle = graph_of(2, 10, {0: {5: 1.0}, 1: {6: 1.0}}, {(0, 5): 1, (1, 6): 0, (2, 4): 0}, seen=100)
    draft = GraphDrafter(circle, num_draft_tokens=5000).draft(Context([1, 4], STATE), 3000)
    assert draft.tokens == [5, 6] * (1500)


def test_another_text_breaks_no_promise_of_the_last_one() -> None:
    """The path that an answer ended in is not compared with whatever stands at its places in the next text."""
    drafter = GraphDrafter(anchored(chain(TOKENS[:9]), 0), cost=FREE)
    said = [1, TOKENS[0]]
    assert drafter.draft(Context(said, STATE), 9).tokens
    drafter.draft(Context([2, TOKENS[0], 7, 7, 7], STATE), 9)
    assert drafter._trust.factor == GraphDrafter(drafter.graph, cost=FREE)._trust.factor
    assert drafter.draft(Context(said, STATE), 9).tokens
    said.append(7)
    drafter.draft(Context(said, STATE), 9)
    assert drafter._trust.factor < 1, "in one text it is compared"


def test_requests_of_one_drafter_are_those_of_a_fresh_one() -> None:
    graph = full_graph()
    one = GraphDrafter(graph, num_draft_tokens=20)
    for tokens, node in full_texts(9):
        context = Context(tokens, FULL_STATES[node])
        assert one.draft(context, 20) == GraphDrafter(graph, num_draft_tokens=20).draft(context, 20)
