"""What some graphs of one teacher counted, added up in one space of nodes.

A graph keeps shares, not the states that they were counted on. Counts are recovered from its tables: exactly for edges,
and for steps by the count of their edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from daari_mlx.compile.budget import MAX_BYTES, STEP_BYTES, STEPS_SHARE, few_prompts, keep_exemplars, left_over
from daari_mlx.compile.tables import commonest_steps, top_edges
from daari_mlx.graph.arbiter import Arbiter
from daari_mlx.graph.exemplars import ALIKE, Coarse, Exemplars, rank_within
from daari_mlx.graph.graph import Graph
from daari_mlx.graph.nodes import Nodes, Projection, nearest
from daari_mlx.ground.types import FloatArray, IntArray

APART = 0.7  # a node is another's when it is nearer to it than this times that one's own nearest neighbour is


@dataclass(frozen=True)
class Part:
    """A graph that goes into another one.

    Attributes:
        graph: its tables.
        node: ``(N,)`` int64, which node of the other graph each of its nodes becomes; several may become one.
    """

    graph: Graph
    node: NDArray[np.int64]


def join_nodes(nodes: Nodes, other: Nodes, most: int) -> tuple[Nodes, NDArray[np.int64]]:
    """Bring the nodes of another graph into the space of a first one's.

    A node becomes the first graph's nearest one where it is nearer to it than that one's own nearest neighbour; else it
    stays a node of its own.

    Args:
        nodes: of the first graph; they keep their numbers.
        other: of the same teacher and layer.
        most: nodes that there may be together; the farthest ones are taken in before others.

    Returns:
        The nodes of both, and which of them each of ``other`` became.
    """
    first = nodes.centroids
    moved = moved_to(nodes.projection, other.centroids, other.projection)
    near = nearest(moved, first)
    far = np.linalg.norm(moved - first[near], axis=1) / np.maximum(spacing(first)[near], 1e-12)
    order = np.argsort(-far, kind="stable")
    own = np.sort(order[far[order] > APART][: max(0, most - len(first))])
    place = near.astype(np.int64)
    place[own] = len(first) + np.arange(len(own))
    return Nodes(nodes.projection, np.concatenate([first, moved[own]])), place


def moved_to(projection: Projection, reduced: FloatArray, other: Projection) -> FloatArray:
    """``(n, D)`` states reduced by another projection, as far as that keeps them, as if reduced by this one."""
    if other is projection:
        return reduced
    states = other.mean + reduced @ other.basis.T
    return np.ascontiguousarray((states - projection.mean) @ projection.basis, dtype=np.float32)


def spacing(centroids: FloatArray) -> FloatArray:
    """``(N,)``: how far each centroid's nearest neighbour is; infinite for a single one."""
    found = np.full(len(centroids), np.inf, np.float32)
    square = np.einsum("nd,nd->n", centroids, centroids)
    for start in range(0, len(centroids), 256):
        rows = np.arange(start, min(start + 256, len(centroids)))
        distance = square[rows, None] + square - 2 * centroids[rows] @ centroids.T
        distance[np.arange(len(rows)), rows] = np.inf
        found[rows] = np.sqrt(np.maximum(distance.min(axis=1), 0))
    return found


def merge_tables(nodes: Nodes, parts: Sequence[Part], max_bytes: int = MAX_BYTES) -> Graph:
    """The tables of several graphs of one teacher and layer as those of one; its arbiter is the first one's.

    Args:
        nodes: of the merged graph.
        parts: at least one.
        max_bytes: that it may have.

    Raises:
        DaariError: ``max_bytes`` does not even hold the nodes.
    """
    vocab_size, size = max(p.graph.vocab_size for p in parts), len(nodes.centroids)
    edge_start, edge_token, share, support = _edges(parts, size, vocab_size)
    prompts = few_prompts(np.concatenate([p.graph.prompts for p in parts]), max_bytes)
    fixed = (nodes.centroids, nodes.projection.basis, nodes.projection.mean, support, edge_start)
    left = left_over(max_bytes, (*fixed, edge_token, share), len(prompts))
    step_key, step_node = _steps(parts, size, vocab_size, int(left * STEPS_SHARE) // STEP_BYTES)
    said = np.concatenate([p.graph.text for p in parts])
    text, exemplars = keep_exemplars(said, _exemplars(nodes, parts, said), left - STEP_BYTES * len(step_key))
    return replace(
        parts[0].graph,
        nodes=nodes,
        vocab_size=vocab_size,
        edge_start=edge_start,
        edge_token=edge_token,
        edge_probability=share,
        support=support,
        step_key=step_key,
        step_node=step_node,
        text=text,
        exemplars=exemplars,
        prompts=prompts,
    )


def blend(arbiters: Sequence[Arbiter], weights: Sequence[float]) -> Arbiter:
    """The mean of some arbiters, each counting as much as the sequences that it was fitted for; of the same sources."""
    share = np.array(weights, np.float64) / max(sum(weights), 1e-9)
    names = arbiters[0].names
    alike = [(a, s) for a, s in zip(arbiters, share, strict=True) if a.names == names and len(a.weights)]

    def mean(values: list[FloatArray]) -> FloatArray:
        total = sum(s for _, s in alike)
        return np.sum([v * (s / total) for v, (_, s) in zip(values, alike, strict=True)], axis=0).astype(np.float32)

    odds = tuple(mean([a.odds[k] for a, _ in alike]) for k in range(len(names)))
    return Arbiter(names, odds, mean([a.weights for a, _ in alike]))


def _exemplars(nodes: Nodes, parts: Sequence[Part], text: IntArray) -> Exemplars:
    """Those of all parts; where a token has too many, the first of each in turn."""
    starts = np.cumsum([0, *(len(p.graph.text) for p in parts)])
    found = [(p.graph, start) for p, start in zip(parts, starts, strict=False) if len(p.graph.exemplars)]
    if not found:
        return Exemplars()
    states = [moved_to(nodes.projection, g.exemplars.states[:], g.nodes.projection) for g, _ in found]
    place = np.concatenate([g.exemplars.place + np.int32(start) for g, start in found])
    count = np.array([len(g.exemplars) for g, _ in found])
    bounds = np.average([g.exemplars.bounds for g, _ in found], axis=0, weights=count).astype(np.float32)
    turn = np.concatenate([rank_within(g.text[g.exemplars.place]) for g, _ in found])
    order = np.lexsort((np.repeat(np.arange(len(found)), count), turn))
    kept = np.zeros(len(place), bool)
    kept[order] = rank_within(text[place][order]) < ALIKE
    rows = np.flatnonzero(kept)
    rows = rows[np.lexsort((place[rows], text[place[rows]]))]
    unit = next((g.exemplars.states.unit for g, _ in found if g.nodes.projection is nodes.projection), None)
    return Exemplars(Coarse.of(np.concatenate(states)[rows], unit), place[rows].astype(np.int32), bounds)


def _edge_counts(graph: Graph) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The node, the token and the count of every edge."""
    node = np.repeat(np.arange(graph.size), np.diff(graph.edge_start))
    seen = np.rint(graph.edge_probability.astype(np.float64) * graph.support[node]).astype(np.int64)
    return node, graph.edge_token.astype(np.int64), seen


def _edges(parts: Sequence[Part], size: int, vocab_size: int) -> tuple[IntArray, IntArray, FloatArray, IntArray]:
    keys, counts, support = [], [], np.zeros(size, np.int64)
    for part in parts:
        node, token, seen = _edge_counts(part.graph)
        keys.append(part.node[node] * vocab_size + token)
        counts.append(seen)
        support += np.bincount(part.node, part.graph.support, size).astype(np.int64)
    key, which = np.unique(np.concatenate(keys), return_inverse=True)
    seen = np.bincount(which, np.concatenate(counts), len(key)).astype(np.int64)
    return top_edges(key // vocab_size, key % vocab_size, seen, support)


def _steps(parts: Sequence[Part], size: int, vocab_size: int, most: int) -> tuple[NDArray[np.int64], IntArray]:
    """Where each (node, token) mostly led, counted by the edges that steps took: a step without one was rare."""
    keys, targets, counts = [], [], []
    for part in parts:
        graph = part.graph
        node, token, seen = _edge_counts(graph)
        order = np.argsort(node * graph.vocab_size + token)
        known = np.append((node * graph.vocab_size + token)[order], np.iinfo(np.int64).max)
        place = np.searchsorted(known, graph.step_key)
        taken = np.where(known[place] == graph.step_key, np.append(seen[order], 1)[place], 1)
        origin, said = graph.step_key // graph.vocab_size, graph.step_key % graph.vocab_size
        anyhow = origin == graph.size
        taken[anyhow] = np.bincount(token, seen, graph.vocab_size).astype(np.int64)[said[anyhow]]
        keys.append(np.append(part.node, size)[origin] * vocab_size + said)
        targets.append(part.node[graph.step_node])
        counts.append(np.maximum(taken, 1))
    pair, which = np.unique(np.concatenate(keys) * size + np.concatenate(targets), return_inverse=True)
    count = np.bincount(which, np.concatenate(counts), len(pair)).astype(np.int64)
    return commonest_steps(pair // size, pair % size, count, most)
