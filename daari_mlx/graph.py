"""Stage 5, graph: the compiled tables as arrays, their invariants, and the look-ups that a walk needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daari_mlx.errors import DaariError
from daari_mlx.nodes import FloatArray, IntArray, Nodes

MAX_EDGES = 32  # outgoing edges kept a node
UNSEEN = 2  # steps with another token that every node is taken to have had besides the observed ones
NO_NODE = -1


@dataclass(frozen=True)
class Graph:
    """Nodes, their outgoing edges, and where each step leads.

    With N nodes, E edges, S steps and a vocabulary of V tokens:

    Attributes:
        nodes: projection and centroids.
        layer: which states the nodes were made from: ``"final"`` or the index of a teacher layer.
        vocab_size: V; token ids lie in ``[0, V)``.
        edge_start: ``(N+1,)`` int32; the edges of node n are rows ``edge_start[n]:edge_start[n+1]``.
        edge_token: ``(E,)`` int32, the token of each edge, by falling probability within a node.
        edge_probability: ``(E,)`` float32, the share of the node's observed steps that took this token.
        support: ``(N,)`` int32, how many observed steps left the node.
        step_key: ``(S,)`` int64, sorted and distinct: ``node * V + token``. Node N stands for "any node": where a
            token mostly leads when this node never took it.
        step_node: ``(S,)`` int32, the node each step leads to.
        teacher: the fingerprint of the teacher it was compiled from.
        prompts: sorted uint64 content hashes of the prompts it was compiled from: a benchmark refuses those.
    """

    nodes: Nodes
    layer: int | str
    vocab_size: int
    edge_start: IntArray
    edge_token: IntArray
    edge_probability: FloatArray
    support: IntArray
    step_key: NDArray[np.int64]
    step_node: IntArray
    teacher: dict[str, Any] = field(default_factory=dict)
    prompts: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))

    @property
    def size(self) -> int:
        """N, the number of nodes."""
        return len(self.nodes.centroids)

    @property
    def hidden_size(self) -> int:
        """H, the width of the teacher states that the graph reads."""
        return len(self.nodes.projection.mean)

    def step(self, node: int, token: int) -> int:
        """The node that ``token`` leads to from ``node``, else from any node, else ``NO_NODE``; binary search."""
        if not 0 <= token < self.vocab_size:  # a head can be wider than the vocabulary: the key would be another node's
            return NO_NODE
        for origin in (node, self.size):
            key = origin * self.vocab_size + token
            row = int(np.searchsorted(self.step_key, key))
            if row < len(self.step_key) and self.step_key[row] == key:
                return int(self.step_node[row])
        return NO_NODE

    @cached_property
    def walk(self) -> tuple[list[int], list[float], list[int]]:
        """Per node: the token of its top edge, the chance that it is right, and the node it leads to.

        The chance is the edge's share, drawn down where the node was seen rarely: a share counted on the text that made
        the node is too good to be true, and the more so the fewer states it has.

        Plain lists, since a walk reads single items: 40 ns an item against 100 ns from an array. A node without
        edges has probability 0 and ``NO_NODE``; so leads an edge after which nothing was ever observed.
        """
        first = self.edge_start[:-1]
        has_edge = self.edge_start[1:] > first
        row = np.where(has_edge, first, 0)
        empty = len(self.edge_token) == 0
        token = np.zeros(self.size, np.int32) if empty else np.where(has_edge, self.edge_token[row], 0)
        probability = np.zeros(self.size, np.float32) if empty else np.where(has_edge, self.edge_probability[row], 0)
        seen = np.maximum(self.support, 1)
        probability = probability * (seen / (seen + UNSEEN)).astype(np.float32)
        key = np.arange(self.size, dtype=np.int64) * self.vocab_size + token
        found = np.searchsorted(self.step_key, key)
        inside = np.minimum(found, max(len(self.step_key) - 1, 0))
        known = has_edge & (self.step_key[inside] == key) if len(self.step_key) else has_edge & False
        target = np.where(known, self.step_node[inside], NO_NODE) if len(self.step_key) else np.full(self.size, NO_NODE)
        return token.tolist(), probability.tolist(), target.tolist()

    def check(self) -> None:
        """Raise :class:`DaariError` unless every array has its shape, type and range; a hostile file ends here."""
        basis, mean = self.nodes.projection.basis, self.nodes.projection.mean
        lists = (mean, self.edge_token, self.step_key, self.prompts)
        require(self.nodes.centroids.ndim == 2 and all(a.ndim == 1 for a in lists), "an array has other dimensions")
        size, width = self.nodes.centroids.shape
        expect("nodes.centroids", self.nodes.centroids, np.float32, (size, width))
        expect("projection.mean", mean, np.float32, (len(mean),))
        expect("projection.basis", basis, np.float32, (len(mean), width))
        expect("edges.start", self.edge_start, np.int32, (size + 1,))
        expect("edges.token", self.edge_token, np.int32, (len(self.edge_token),))
        expect("edges.probability", self.edge_probability, np.float32, (len(self.edge_token),))
        expect("nodes.support", self.support, np.int32, (size,))
        expect("steps.key", self.step_key, np.int64, (len(self.step_key),))
        expect("steps.node", self.step_node, np.int32, (len(self.step_key),))
        expect("prompts", self.prompts, np.uint64, (len(self.prompts),))
        require(size > 0 and width > 0 and len(mean) > 0, "it has no nodes")
        require(0 < self.vocab_size < 2**31, f"a vocabulary of {self.vocab_size} tokens is none")
        for name, values in (
            ("nodes.centroids", self.nodes.centroids),
            ("projection.basis", basis),
            ("projection.mean", mean),
        ):
            require(bool(np.isfinite(values).all()), f"{name} holds a value that is not finite")
        start = self.edge_start
        require(start[0] == 0 and start[-1] == len(self.edge_token), "edges.start does not span the edges")
        require(bool((np.diff(start) >= 0).all()), "edges.start is not rising")
        require(bool((np.diff(start) <= MAX_EDGES).all()), f"a node has more than {MAX_EDGES} edges")
        require(in_range(self.edge_token, 0, self.vocab_size), "edges.token holds an id outside the vocabulary")
        share = self.edge_probability
        require(bool(((share > 0) & (share <= 1)).all()), "edges.probability holds a value outside (0, 1]")
        require(bool((self.support >= 0).all()), "nodes.support holds a negative count")
        require(bool((np.diff(self.step_key) > 0).all()), "steps.key is not sorted")
        require(
            in_range(self.step_key, 0, (size + 1) * self.vocab_size),
            "steps.key holds a key outside the graph",
        )
        require(in_range(self.step_node, 0, size), "steps.node holds a node outside the graph")
        require(bool((self.prompts[1:] > self.prompts[:-1]).all()), "prompts is not sorted")


def expect(name: str, array: np.ndarray, dtype: type, shape: tuple[int, ...]) -> None:
    """Raise unless ``array`` has exactly this dtype and shape."""
    if array.dtype != dtype or array.shape != shape:
        found = f"{array.dtype} {array.shape}"
        raise DaariError(f"The graph is damaged: {name} should be {np.dtype(dtype)} {shape}, found {found}.")


def require(holds: bool, what: str) -> None:
    """Raise ``The graph is damaged: what`` unless ``holds``."""
    if not holds:
        raise DaariError(f"The graph is damaged: {what}.")


def in_range(values: np.ndarray, low: int, high: int) -> bool:
    """Whether every value lies in ``[low, high)``; True for no values."""
    return len(values) == 0 or bool(values.min() >= low and values.max() < high)
