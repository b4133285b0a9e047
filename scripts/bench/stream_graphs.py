"""Graphs from recorded streams, and the parts of them that an ablation changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter

import numpy as np

from daari_mlx.compile.budget import MAX_BYTES, OVERHEAD
from daari_mlx.compile.build import Built, build, count_graph
from daari_mlx.compile.calibrate import fit, gather
from daari_mlx.compile.cluster import auto_nodes, cluster_states
from daari_mlx.graph.arbiter import Arbiter, Case
from daari_mlx.graph.arrays import to_arrays
from daari_mlx.graph.corpus import Corpus
from daari_mlx.graph.exemplars import Coarse
from daari_mlx.graph.graph import Graph
from daari_mlx.graph.nodes import Nodes, fit_projection
from daari_mlx.graph.source import CELL, CELL_BITS, NAMES, SILENT
from daari_mlx.graph.sources import Sources
from daari_mlx.measure.streams import Stream


@dataclass(frozen=True)
class Made:
    """A graph of some streams, and what its arbiter was fitted on: sources can be left out without counting anew.

    Attributes:
        streams: what it was compiled from.
        layer, dimensions, seed: of its nodes.
        scale: how many nodes, relative to what ``compile`` would choose.
        vocab_size: V; None takes what the streams need.
        max_bytes: of the graph.
    """

    streams: tuple[Stream, ...]
    layer: int | str = "final"
    dimensions: int = 64
    seed: int = 0
    scale: float = 1.0
    vocab_size: int | None = None
    max_bytes: int = MAX_BYTES

    @cached_property
    def graph(self) -> Graph:
        """With all sources."""
        graph, cases, sources = self._counted
        return replace(graph, arbiter=fit(cases, sources))

    def hearing(self, names: Sequence[str]) -> Graph:
        """With some sources only, calibrated together anew."""
        graph, cases, sources = self._counted
        return replace(graph, arbiter=fit(cases, sources, names))

    @cached_property
    def built(self) -> Built:
        """With all sources, and what was promised on held-out answers."""
        nodes, corpus, vocabulary = self._labelled
        return build(nodes, corpus, layer=self.layer, vocab_size=vocabulary, seed=self.seed)

    @cached_property
    def _labelled(self) -> tuple[Nodes, Corpus, int]:
        states = np.concatenate([s.states[self.layer] for s in self.streams])
        projection = fit_projection(states, self.dimensions)
        reduced = projection(states)
        count = max(8, round(auto_nodes(len(reduced)) * self.scale))
        nodes = Nodes(projection, cluster_states(reduced, min(count, len(reduced)), self.seed))
        vocabulary = self.vocab_size or max(max(s.tokens) for s in self.streams) + 1
        return nodes, corpus_of(self.streams, nodes.label(reduced), reduced), vocabulary

    @cached_property
    def _counted(self):  # type: ignore[no-untyped-def]
        nodes, corpus, vocabulary = self._labelled

        def count_tables(some: Corpus) -> Graph:
            return count_graph(nodes, some, layer=self.layer, vocab_size=vocabulary, max_bytes=self.max_bytes)

        found = gather(corpus, lambda some: Sources(count_tables(some), NAMES), self.seed)
        if found is None:
            raise SystemExit(f"{len(self.streams)} streams are too few to calibrate on.")
        return count_tables(corpus), *found


def corpus_of(streams: Sequence[Stream], labels: np.ndarray, reduced: np.ndarray) -> Corpus:
    """The labelled corpus of some streams: each answer behind its prompt's last token."""
    return Corpus(
        labels,
        np.concatenate([np.array(s.tokens[s.start - 1 :], np.int32) for s in streams]),
        np.array([len(s.top) for s in streams], np.int64),
        np.ones(len(streams), np.int64),
        np.concatenate([np.array(s.tokens[: s.start - 1], np.int32) for s in streams]),
        np.array([s.start - 1 for s in streams], np.int64),
        Coarse.of(reduced),
    )


def graph_bytes(graph: Graph) -> int:
    """Of all its arrays."""
    return sum(array.nbytes for array in to_arrays(graph).values())


class Loudest(Arbiter):
    """Takes the source with the highest counted chance at its word, instead of a regression over all of them."""

    def weigh(self, case: Case) -> list[tuple[int, float, str]]:
        """The loudest voice alone."""
        worth = self.worth
        heard = [
            (voice >> CELL_BITS, worth[place][voice & CELL], self.names[place])
            for place, voice in enumerate(case)
            if voice != SILENT
        ]
        return [max(heard, key=itemgetter(1))] if heard else []


def bytes_for(graph: Graph, share: float) -> int:
    """The ``max_bytes`` that leave so much of what grows with the corpus: steps, text and single states."""
    growing = (graph.step_key, graph.step_node, graph.text, graph.exemplars.states.values, graph.exemplars.place)
    grown = sum(array.nbytes for array in growing)
    return OVERHEAD + graph_bytes(graph) - round((1 - share) * grown)


def loudest(graph: Graph) -> Graph:
    """The graph with its loudest source instead of all of them."""
    known = graph.arbiter
    return replace(graph, arbiter=Loudest(known.names, known.odds, known.weights))
