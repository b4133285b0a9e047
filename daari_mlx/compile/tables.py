"""From a labelled corpus to the tables of a graph: edges and steps. Counting only."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from daari_mlx.graph.corpus import Corpus
from daari_mlx.graph.graph import MAX_EDGES
from daari_mlx.ground.types import FloatArray, IntArray


def count_edges(
    labels: IntArray, tokens: IntArray, count: int, vocab_size: int
) -> tuple[IntArray, IntArray, FloatArray, IntArray]:
    """The ``MAX_EDGES`` commonest tokens of each node with their shares, and the support of each node."""
    key, seen = np.unique(labels.astype(np.int64) * vocab_size + tokens, return_counts=True)
    return top_edges(key // vocab_size, key % vocab_size, seen, np.bincount(labels, minlength=count))


def top_edges(
    node: NDArray[np.int64], token: NDArray[np.int64], seen: NDArray[np.int64], support: NDArray[np.int64]
) -> tuple[IntArray, IntArray, FloatArray, IntArray]:
    """The arrays of edges, from what was counted.

    Args:
        node, token, seen: distinct pairs and how often each was seen.
        support: ``(N,)``, how many steps left each node.
    """
    count = len(support)
    order = np.lexsort((token, -seen, node))
    node, token, seen = node[order], token[order], seen[order]
    first = np.searchsorted(node, np.arange(count))
    kept = np.arange(len(node)) - first[node] < MAX_EDGES
    start = np.searchsorted(node[kept], np.arange(count + 1)).astype(np.int32)
    share = (seen[kept] / support[node[kept]]).astype(np.float32)
    return start, token[kept].astype(np.int32), share, support.astype(np.int32)


def count_steps(
    corpus: Corpus, count: int, vocab_size: int, most: int | None = None
) -> tuple[NDArray[np.int64], IntArray]:
    """Where each (node, token) mostly led, and, from "any node" (number ``count``), where each token mostly led.

    Args:
        corpus: the labelled corpus.
        count: N.
        vocab_size: V.
        most: how many steps are kept at the most, the commonest; None for all.
    """
    follows = corpus.follows()
    origin, target = corpus.labels[:-1][follows[:-1]].astype(np.int64), corpus.labels[1:][follows[:-1]]
    token = corpus.tokens[:-1][follows[:-1]]
    step, seen = np.unique((origin * vocab_size + token) * (count + 1) + target, return_counts=True)
    anyhow, which = np.unique(step % (vocab_size * (count + 1)), return_inverse=True)
    from_any = np.bincount(which, seen, len(anyhow)).astype(np.int64)
    every = np.concatenate([step, count * vocab_size * (count + 1) + anyhow])
    return commonest_steps(every // (count + 1), every % (count + 1), np.concatenate([seen, from_any]), most)


def commonest_steps(
    key: NDArray[np.int64], target: NDArray[np.int64], seen: NDArray[np.int64], most: int | None
) -> tuple[NDArray[np.int64], IntArray]:
    """The commonest target of each key; of the keys the ``most`` commonest, by how often that target was reached."""
    best = first_of_each(key, seen, target)
    key, seen, nodes = key[best], seen[best], target[best].astype(np.int32)
    if most is not None and len(key) > most:
        kept = np.sort(np.lexsort((key, -seen))[:most])
        return key[kept], nodes[kept]
    return key, nodes


def first_of_each(key: NDArray[np.int64], seen: NDArray[np.int64], value: NDArray[np.int64]) -> NDArray[np.int64]:
    """The index of the commonest value of each key, the smaller value where two are as common."""
    order = np.lexsort((value, -seen, key))
    key = key[order]
    first = np.concatenate([[True], key[1:] != key[:-1]]) if len(key) else np.zeros(0, bool)
    chosen: NDArray[np.int64] = order[first]
    return chosen
