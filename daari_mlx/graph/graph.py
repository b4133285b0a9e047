"""The compiled tables as arrays, their invariants, and the look-ups that a walk needs."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daari_mlx.graph.arbiter import Arbiter, counted
from daari_mlx.graph.cells import kind
from daari_mlx.graph.codepoints import BREAK, BREAK_CHARACTER, MAX_TOKEN
from daari_mlx.graph.exemplars import ALIKE, QUANTILES, Exemplars, spans
from daari_mlx.graph.nodes import Nodes
from daari_mlx.graph.source import CELL_BITS, NAMES, NO_NODE, SILENT, cells
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.types import FloatArray, IntArray

MAX_EDGES = 32  # outgoing edges kept a node
MAX_WEIGHT = 1e6  # of the arbiter: no sum of products of such numbers overflows


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
        text: ``(C,)`` int32, the answers themselves, each behind its prompt's last token and with ``BREAK`` after it.
        exemplars: single states, and where in the text each went on.
        arbiter: how far each source can be trusted.
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
    text: IntArray = field(default_factory=lambda: np.zeros(0, np.int32))
    exemplars: Exemplars = field(default_factory=Exemplars)
    arbiter: Arbiter = field(default_factory=counted)
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
        keys, targets, start = self._steps
        anywhere = len(start) - 2
        for origin in (node, anywhere) if node != NO_NODE else (anywhere,):
            key, last = origin * self.vocab_size + token, start[origin + 1]
            row = bisect_left(keys, key, start[origin], last)
            if row < last and keys[row] == key:
                return targets[row]
        return NO_NODE

    @cached_property
    def _steps(self) -> tuple[Any, Any, list[int]]:
        """Keys and nodes of all steps, and where the steps of each node begin.

        Of memory views single items are read without a copy and quicker than from an array.
        """
        starts = np.searchsorted(self.step_key, np.arange(self.size + 2) * self.vocab_size).tolist()
        return memoryview(self.step_key), memoryview(self.step_node), starts  # type: ignore[arg-type]

    @cached_property
    def walk(self) -> tuple[list[int], list[int]]:
        """Per node, what its top edge says, as a source's voice (see :class:`daari_mlx.graph.source.Source`), and the
        node that it leads to; the last items are those of ``NO_NODE``.

        Plain lists, since a walk reads single items: 40 ns an item against 100 ns from an array. A node without edges
        is silent and leads to ``NO_NODE``; so does an edge after which nothing was ever observed.
        """
        has_edge = self.edge_start[1:] > self.edge_start[:-1]
        row = np.where(has_edge, self.edge_start[:-1], 0)
        if not has_edge.any():
            return [SILENT] * (self.size + 1), [NO_NODE] * (self.size + 1)
        token = self.edge_token[row].astype(np.int64)
        kinds = kind(np.where(has_edge, self.edge_probability[row], 0), np.maximum(self.support, 1))
        target = np.full(self.size, NO_NODE)
        if len(self.step_key):
            key = np.arange(self.size) * self.vocab_size + token
            found = np.minimum(np.searchsorted(self.step_key, key), len(self.step_key) - 1)
            target = np.where(has_edge & (self.step_key[found] == key), self.step_node[found], NO_NODE)
        voices = np.where(has_edge, token << CELL_BITS | kinds, SILENT)
        return [*voices.tolist(), SILENT], [*target.tolist(), NO_NODE]

    @cached_property
    def exemplars_of(self) -> dict[int, tuple[int, int]]:
        """Per token, the first of the exemplars that chose it and the one behind the last."""
        return spans(self.text[self.exemplars.place])

    @cached_property
    def words(self) -> str:
        """``text`` as code points."""
        return (
            np.where(self.text == BREAK, ord(BREAK_CHARACTER), self.text)
            .astype("<u4")
            .tobytes()
            .decode("utf-32-le", "surrogatepass")
        )

    def follow(self, node: int, limit: int) -> tuple[list[int], list[int]]:
        """The walk along top edges from ``node``: at most ``limit`` tokens, and the node each was said on."""
        voices, target_of = self.walk
        tokens: list[int] = []
        nodes: list[int] = []
        while voices[node] != SILENT and len(tokens) < limit:
            tokens.append(voices[node] >> CELL_BITS)
            nodes.append(node)
            node = target_of[node]
        return tokens, nodes

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
        require(0 < self.vocab_size <= MAX_TOKEN, f"a vocabulary of {self.vocab_size} tokens is none")
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
        self._check_text()
        require(bool((self.prompts[1:] > self.prompts[:-1]).all()), "prompts is not sorted")

    def _check_text(self) -> None:
        """The same for what sources besides the walk read."""
        tokens = self.text
        require(tokens.ndim == 1, "an array has other dimensions")
        expect("text", tokens, np.int32, (len(tokens),))
        require(in_range(tokens, BREAK, min(self.vocab_size, MAX_TOKEN)), "text holds an id that is none")
        require(len(tokens) == 0 or tokens[-1] == BREAK, "the text does not end its last sequence")
        self._check_exemplars()
        self._check_arbiter()

    def _check_exemplars(self) -> None:
        """The same for single states."""
        values, unit = self.exemplars.states.values, self.exemplars.states.unit
        place, bounds = self.exemplars.place, self.exemplars.bounds
        require(place.ndim == 1, "an array has other dimensions")
        width = self.nodes.centroids.shape[1] if len(place) else 0
        expect("exemplars.states", values, np.int8, (len(place), width) if len(place) else values.shape)
        require(values.ndim == 2 and len(values) == len(place), "it has not one state for each exemplar")
        expect("exemplars.unit", unit, np.float32, (values.shape[1],))
        expect("exemplars.place", place, np.int32, (len(place),))
        expect("exemplars.bounds", bounds, np.float32, (len(QUANTILES),))
        require(in_range(place, 0, len(self.text)), "exemplars.place points outside the text")
        tokens = self.text[place]
        require(bool((tokens != BREAK).all()), "an exemplar stands between two sequences")
        require(bool((np.diff(tokens) >= 0).all()), "exemplars are not in the order of their tokens")
        most = max((last - first for first, last in spans(tokens).values()), default=0)
        require(most <= ALIKE, f"a token has more than {ALIKE} exemplars")
        require(bool(((unit > 0) & (unit < MAX_WEIGHT)).all()), "exemplars.unit holds a value that is none")
        require(bool(((bounds >= 0) & (bounds < MAX_WEIGHT)).all()), "exemplars.bounds holds a value that is none")
        require(bool((np.diff(bounds) >= 0).all()), "exemplars.bounds falls")

    def _check_arbiter(self) -> None:
        """The same for what turns cells into probabilities."""
        names, odds, weights = self.arbiter.names, self.arbiter.odds, self.arbiter.weights
        require(set(names) <= set(NAMES) and 0 < len(set(names)) == len(names) == len(odds), "its sources are none")
        for name, values in zip(names, odds, strict=True):
            expect(f"arbiter.odds of {name}", values, np.float32, (cells(name),))
        expect("arbiter.weights", weights, np.float32, (3 ** len(names), 1 + len(names)))
        for name, numbers in (("odds", np.concatenate(odds)), ("weights", weights)):
            require(bool((np.abs(numbers) < MAX_WEIGHT).all()), f"arbiter.{name} holds a value that is none")


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
