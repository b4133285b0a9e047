"""From nodes and a labelled corpus to a calibrated graph within its budget of bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from daari_mlx.compile.budget import MAX_BYTES, STEP_BYTES, STEPS_SHARE, exemplar_rows, left_over
from daari_mlx.compile.calibrate import calibrate, parts
from daari_mlx.compile.tables import count_edges, count_steps
from daari_mlx.graph.corpus import Corpus
from daari_mlx.graph.exemplars import Exemplars, make_exemplars
from daari_mlx.graph.graph import Graph
from daari_mlx.graph.nodes import Nodes
from daari_mlx.graph.outlook import Outlook, outlook_of
from daari_mlx.graph.source import NAMES
from daari_mlx.graph.sources import Sources
from daari_mlx.ground.types import IntArray


@dataclass(frozen=True)
class Built:
    """A graph, and what was promised on answers held out while it was calibrated; None where they were too few."""

    graph: Graph
    outlook: Outlook | None


def build(
    nodes: Nodes,
    corpus: Corpus,
    *,
    layer: int | str,
    vocab_size: int,
    seed: int = 0,
    names: Sequence[str] = NAMES,
    max_bytes: int = MAX_BYTES,
    held_out: bool = True,
) -> Built:
    """Count all tables of a corpus, and calibrate the sources on parts of it that their tables do not know.

    Args:
        nodes: that the corpus is labelled with.
        corpus: its sequences in an order drawn by chance.
        layer: which states the nodes were made from.
        vocab_size: V.
        seed: which sequences are held out together.
        names: the sources that are heard.
        max_bytes: that the graph may have, whatever the corpus.
        held_out: whether to tell what was promised on those parts.

    Raises:
        DaariError: ``max_bytes`` does not even hold the nodes.
    """
    unaware: list[Graph] = []

    def count(some: Corpus) -> Graph:
        return count_graph(nodes, some, layer=layer, vocab_size=vocab_size, max_bytes=max_bytes)

    def sources_of(some: Corpus) -> Sources:
        graph = count(some)
        if held_out:
            unaware.append(replace(graph))  # the arrays, without what look-ups make of them
        return Sources(graph, names)

    arbiter = calibrate(corpus, sources_of, seed)
    if arbiter is None:
        return Built(count(corpus), None)
    outlook = outlook_of(unaware, arbiter, corpus, *parts(len(corpus), seed)) if held_out else None
    unaware.clear()
    return Built(replace(count(corpus), arbiter=arbiter), outlook)


def count_graph(
    nodes: Nodes, corpus: Corpus, *, layer: int | str, vocab_size: int, max_bytes: int = MAX_BYTES
) -> Graph:
    """The tables of a corpus, not calibrated yet; arguments are those of :func:`build`."""
    size, answers = len(nodes.centroids), corpus.answers()
    edge_start, edge_token, edge_probability, support = count_edges(
        corpus.labels[answers], corpus.tokens[answers], size, vocab_size
    )
    fixed = (nodes.centroids, nodes.projection.basis, nodes.projection.mean, support, edge_start)
    left = left_over(max_bytes, (*fixed, edge_token, edge_probability), len(corpus))
    step_key, step_node = count_steps(corpus, size, vocab_size, int(left * STEPS_SHARE) // STEP_BYTES)
    text, exemplars = _said(corpus, left - STEP_BYTES * len(step_key))
    return Graph(
        nodes=nodes,
        layer=layer,
        vocab_size=vocab_size,
        edge_start=edge_start,
        edge_token=edge_token,
        edge_probability=edge_probability,
        support=support,
        step_key=step_key,
        step_node=step_node,
        text=text,
        exemplars=exemplars,
    )


def _said(corpus: Corpus, budget: int) -> tuple[IntArray, Exemplars]:
    """The exemplars that ``budget`` bytes hold, and the text that they stand in."""
    rows, sequences = exemplar_rows(corpus, budget)
    text, places = corpus.take(range(sequences)).text()
    owner = np.repeat(np.arange(len(corpus)), corpus.rows)[rows]
    return text, make_exemplars(corpus.states.take(rows), places[rows], corpus.tokens[rows], owner)
