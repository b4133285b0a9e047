"""Stage 5, build: from nodes and a labelled corpus to a calibrated graph within its budget of bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from daari_mlx.budget import MAX_BYTES, STEP_BYTES, STEPS_SHARE, fitting, left_over
from daari_mlx.calibrate import calibrate
from daari_mlx.corpus import Corpus
from daari_mlx.graph import Graph
from daari_mlx.nodes import Nodes
from daari_mlx.source import NAMES
from daari_mlx.sources import Sources
from daari_mlx.tables import build_paths, count_edges, count_habits, count_steps


def build_graph(
    nodes: Nodes,
    corpus: Corpus,
    *,
    layer: int | str,
    vocab_size: int,
    seed: int = 0,
    names: Sequence[str] = NAMES,
    max_bytes: int = MAX_BYTES,
) -> Graph:
    """Count all tables of a corpus, and calibrate the sources on parts of it that their tables do not know.

    Args:
        nodes: that the corpus is labelled with.
        corpus: its sequences in an order drawn by chance.
        layer: which states the nodes were made from.
        vocab_size: V.
        seed: which sequences are held out together.
        names: the sources that are heard.
        max_bytes: that the graph may have, whatever the corpus.

    Raises:
        DaariError: ``max_bytes`` does not even hold the nodes.
    """

    def count(some: Corpus) -> Graph:
        return count_graph(nodes, some, layer=layer, vocab_size=vocab_size, max_bytes=max_bytes)

    arbiter = calibrate(corpus, lambda some: Sources(count(some), names), seed)
    graph = count(corpus)
    return graph if arbiter is None else replace(graph, arbiter=arbiter)


def count_graph(
    nodes: Nodes, corpus: Corpus, *, layer: int | str, vocab_size: int, max_bytes: int = MAX_BYTES
) -> Graph:
    """The tables of a corpus, not calibrated yet; arguments are those of :func:`build_graph`."""
    size, answers = len(nodes.centroids), corpus.answers()
    edge_start, edge_token, edge_probability, support = count_edges(
        corpus.labels[answers], corpus.tokens[answers], size, vocab_size
    )
    habits = count_habits(corpus, size)
    fixed = (nodes.centroids, nodes.projection.basis, nodes.projection.mean, support, habits, edge_start)
    left = left_over(max_bytes, (*fixed, edge_token, edge_probability), len(corpus))
    step_key, step_node = count_steps(corpus, size, vocab_size, int(left * STEPS_SHARE) // STEP_BYTES)
    kept = fitting(corpus, vocab_size, left - STEP_BYTES * len(step_key))
    text, places = kept.text()
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
        habits=habits,
        text=text,
        paths=build_paths(kept, text, places, vocab_size),
    )
