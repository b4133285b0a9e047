"""The tables against dictionaries that say the same, and every way in which they can be damaged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from graphs import draft_everywhere, graph_of, naive_kind, naive_walk, random_graph
from hypothesis import given
from hypothesis import strategies as st

from daari_mlx.graph.graph import MAX_EDGES, NO_NODE, Graph
from daari_mlx.graph.nodes import Nodes, Projection
from daari_mlx.graph.source import CELL, CELL_BITS, SILENT
from daari_mlx.ground.errors import DaariError

ARRAYS = ("edge_start", "edge_token", "edge_probability", "support", "step_key", "step_node", "prompts")


@given(st.integers(0, 10_000), st.integers(1, 20), st.integers(6, 40))
def test_a_step_is_what_a_dictionary_says(seed: int, count: int, vocabulary: int) -> None:
    graph = random_graph(seed, count, vocabulary)
    graph.check()
    steps = dict(zip(graph.step_key.tolist(), graph.step_node.tolist(), strict=True))
    for node in range(count):
        for token in range(vocabulary):
            any_node = steps.get(count * vocabulary + token, NO_NODE)
            assert graph.step(node, token) == steps.get(node * vocabulary + token, any_node)


@given(st.integers(0, 10_000), st.integers(0, 60))
def test_a_token_outside_the_vocabulary_leads_nowhere(seed: int, beyond: int) -> None:
    """Its key would be that of another node: a teacher's head is often wider than its tokenizer's vocabulary."""
    graph = random_graph(seed)
    for node in range(graph.size):
        assert graph.step(node, graph.vocab_size + beyond) == NO_NODE
        assert graph.step(node, -1 - beyond) == NO_NODE


def test_any_node_answers_only_where_the_node_never_took_the_token() -> None:
    graph = graph_of(3, 10, {}, {(0, 5): 1, (3, 5): 2})
    assert graph.step(0, 5) == 1
    assert graph.step(1, 5) == 2
    assert graph.step(1, 6) == NO_NODE


@given(st.integers(0, 10_000), st.integers(1, 20))
def test_the_walk_lists_equal_a_look_at_the_arrays(seed: int, count: int) -> None:
    graph = random_graph(seed, count)
    kinds = [voice & CELL for voice in graph.walk[0]]
    for node in range(count):
        tokens, nodes = graph.follow(node, 10)
        assert (tokens, nodes) == naive_walk(graph, node, 10)
        rows = [(float(graph.edge_probability[graph.edge_start[n]]), int(graph.support[n])) for n in nodes]
        assert [kinds[n] for n in nodes] == [naive_kind(share, seen) for share, seen in rows]


def test_the_walk_never_goes_by_any_node() -> None:
    """Where this node's own top edge led is not known: any node's habit is no ground to go on with."""
    graph = graph_of(2, 10, {0: {5: 0.9}}, {(2, 5): 1})
    assert graph.walk[1] == [NO_NODE] * 3


@pytest.mark.parametrize("edges", [{}, {1: {4: 1.0}}])
@pytest.mark.parametrize("steps", [{}, {(1, 4): 0}])
def test_graphs_of_next_to_nothing_work(edges: dict[int, dict[int, float]], steps: dict[tuple[int, int], int]) -> None:
    graph = graph_of(2, 10, edges, steps)
    graph.check()
    voices, target = graph.walk
    assert voices == [SILENT, 4 << CELL_BITS | naive_kind(1.0, 10) if edges else SILENT, SILENT]
    assert target == [NO_NODE, 0 if edges and steps else NO_NODE, NO_NODE]
    assert graph.follow(0, 3)[0] == [] and graph.follow(1, 3)[0] == ([4] if edges else [])


def damaged(**changes: Any) -> Graph:
    return replace(random_graph(3), **changes)


def changed(name: str, index: Any, value: Any) -> Graph:
    array = getattr(random_graph(3), name).copy()
    array[index] = value
    return damaged(**{name: array})


def with_nodes(**changes: Any) -> Graph:
    nodes = random_graph(3).nodes
    parts = {"mean": nodes.projection.mean, "basis": nodes.projection.basis, "centroids": nodes.centroids} | changes
    return damaged(nodes=Nodes(Projection(parts["mean"], parts["basis"]), parts["centroids"]))


NAN, INFINITY = np.float32("nan"), np.float32("inf")
DAMAGES = {
    "first edge": lambda: changed("edge_start", 0, 1),
    "last edge": lambda: changed("edge_start", -1, 10**6),
    "negative offset": lambda: changed("edge_start", 3, -1),
    "falling offsets": lambda: changed("edge_start", 5, 10**6),
    "negative token": lambda: changed("edge_token", 0, -1),
    "token of no vocabulary": lambda: changed("edge_token", 0, 30),
    "probability 0": lambda: changed("edge_probability", 0, 0.0),
    "probability above 1": lambda: changed("edge_probability", 0, 1.01),
    "probability NaN": lambda: changed("edge_probability", 0, NAN),
    "probability infinite": lambda: changed("edge_probability", 0, INFINITY),
    "negative support": lambda: changed("support", 0, -1),
    "unsorted keys": lambda: changed("step_key", 0, 10**4),
    "equal keys": lambda: damaged(step_key=np.full_like(random_graph(3).step_key, 5)),
    "negative key": lambda: changed("step_key", 0, -1),
    "key beyond any node": lambda: changed("step_key", -1, 13 * 30),
    "negative node": lambda: changed("step_node", 0, -1),
    "node that is none": lambda: changed("step_node", 0, 12),
    "NaN centroid": lambda: with_nodes(centroids=np.full((12, 4), NAN)),
    "infinite mean": lambda: with_nodes(mean=np.full(8, INFINITY)),
    "NaN basis": lambda: with_nodes(basis=np.full((8, 4), NAN)),
    "basis of other width": lambda: with_nodes(basis=np.ones((8, 5), np.float32)),
    "basis of other height": lambda: with_nodes(basis=np.ones((9, 4), np.float32)),
    "fewer centroids": lambda: with_nodes(centroids=np.ones((11, 4), np.float32)),
    "no centroids": lambda: with_nodes(centroids=np.ones((0, 4), np.float32)),
    "flat centroids": lambda: with_nodes(centroids=np.ones(12, np.float32)),
    "scalar centroids": lambda: with_nodes(centroids=np.array(1, np.float32)),
    "scalar mean": lambda: with_nodes(mean=np.array(1, np.float32)),
    "no width": lambda: with_nodes(centroids=np.ones((12, 0), np.float32), basis=np.ones((8, 0), np.float32)),
    "vocabulary of 0": lambda: damaged(vocab_size=0),
    "negative vocabulary": lambda: damaged(vocab_size=-30),
    "vocabulary beyond int64": lambda: damaged(vocab_size=2**70),
    "vocabulary beyond code points": lambda: damaged(vocab_size=0x110000),
    "unsorted prompts": lambda: changed("prompts", 0, 2**64 - 1),
}


@pytest.mark.parametrize("damage", sorted(DAMAGES))
def test_each_damage_is_refused(damage: str) -> None:
    with pytest.raises(DaariError, match="The graph is damaged"):
        DAMAGES[damage]().check()


def test_a_node_with_too_many_edges_is_refused() -> None:
    edges = {0: dict.fromkeys(range(MAX_EDGES + 1), 0.01)}
    with pytest.raises(DaariError, match="more than 32 edges"):
        graph_of(1, 100, edges, {}).check()
    edges[0].popitem()
    graph_of(1, 100, edges, {}).check()


@given(
    st.sampled_from(ARRAYS),
    st.sampled_from(["float64", "int16", "uint8", "bool", "column", "scalar", "shorter", "longer", "none"]),
)
def test_other_types_and_shapes_are_refused(name: str, change: str) -> None:
    array = getattr(random_graph(3), name)
    changes = {
        "column": lambda: array[:, None],
        "scalar": lambda: array[0],
        "shorter": lambda: array[:-1],
        "longer": lambda: np.concatenate([array, array[-1:]]),
        "none": lambda: array[:0],
    }
    made = changes[change]() if change in changes else array.astype(change)
    if name == "prompts" and change in ("shorter", "none"):
        damaged(prompts=made).check()  # it stands for itself: any number of prompts is sound
        return
    with pytest.raises(DaariError, match="The graph is damaged"):
        damaged(**{name: np.asarray(made)}).check()


@given(st.sampled_from(ARRAYS), st.data())
def test_a_changed_value_is_refused_or_harmless(name: str, data: st.DataObject) -> None:
    """Whatever passes the check can be walked and stepped on."""
    array = getattr(random_graph(3), name).copy()
    bits = array.view(np.uint32 if array.itemsize == 4 else np.uint64)
    index = data.draw(st.integers(0, len(array) - 1))
    bits[index] = data.draw(st.integers(0, 2 ** (8 * array.itemsize) - 1) | st.integers(0, 40))
    graph = damaged(**{name: array})
    try:
        graph.check()
    except DaariError:
        return
    draft_everywhere(graph)
    for node in range(graph.size):
        assert len(graph.follow(node, 5)[0]) <= 5
        assert all(NO_NODE <= graph.step(node, t) < graph.size for t in range(graph.vocab_size))
