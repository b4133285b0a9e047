"""Stage 5, build: from nodes and a labelled corpus to a calibrated graph within its budget of bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from daari_mlx.calibrate import calibrate
from daari_mlx.corpus import Corpus
from daari_mlx.graph import Graph
from daari_mlx.nodes import FloatArray, IntArray, Nodes
from daari_mlx.source import NAMES
from daari_mlx.sources import Sources
from daari_mlx.tables import build_paths, build_text, count_edges, count_steps

NODES_PER_GROUP = 16
MIN_GROUPS = 8


def build_graph(
    nodes: Nodes,
    corpus: Corpus,
    *,
    layer: int | str,
    vocab_size: int,
    seed: int = 0,
    names: Sequence[str] = NAMES,
) -> Graph:
    """Count all tables of a corpus, and calibrate the sources on parts of it that their tables do not know.

    Args:
        nodes: that the corpus is labelled with.
        corpus: its sequences in an order drawn by chance.
        layer: which states the nodes were made from.
        vocab_size: V.
        seed: which sequences are held out together.
        names: the sources that are heard.
    """
    support = np.bincount(corpus.labels, minlength=len(nodes.centroids)).astype(np.float64)
    group = group_nodes(nodes.centroids, support, seed)

    def count(some: Corpus) -> Graph:
        return _count(nodes, group, some, layer, vocab_size)

    arbiter = calibrate(corpus, lambda some: Sources(count(some), names), seed)
    graph = count(corpus)
    return graph if arbiter is None else replace(graph, arbiter=arbiter)


def group_nodes(centroids: FloatArray, support: np.ndarray, seed: int) -> IntArray:
    """The group of every node: a second, coarser clustering, of the centroids by their support. ``(N,)`` int32."""
    count = max(MIN_GROUPS, len(centroids) // NODES_PER_GROUP)
    if count >= len(centroids):
        return np.arange(len(centroids), dtype=np.int32)
    from sklearn.cluster import KMeans

    fitted = KMeans(count, n_init=1, max_iter=30, random_state=seed).fit(centroids, sample_weight=support + 1e-3)
    return fitted.labels_.astype(np.int32)


def _count(nodes: Nodes, group: IntArray, corpus: Corpus, layer: int | str, vocab_size: int) -> Graph:
    size, answers = len(nodes.centroids), corpus.answers()
    edge_start, edge_token, edge_probability, support = count_edges(
        corpus.labels[answers], corpus.tokens[answers], size, vocab_size
    )
    step_key, step_node = count_steps(corpus, size, vocab_size)
    text, places = corpus.text()
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
        group=group,
        text=build_text(corpus),
        paths=build_paths(corpus, text, places, corpus.labels, vocab_size),
        group_paths=build_paths(corpus, text, places, group[corpus.labels], vocab_size),
    )
