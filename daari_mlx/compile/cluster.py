"""How many nodes there are, where they lie among the states, and which state belongs to which node.

With few nodes, every state is compared with every node. With many, it is compared only with the nodes near its region
(there are some hundred regions): a tenth of the work, for the same drafts. Blocks of states go to threads with one
BLAS thread each, so that the bytes do not depend on how many there are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from daari_mlx.graph.nodes import half_norms, nearest
from daari_mlx.ground.progress import bar
from daari_mlx.ground.types import FloatArray, IntArray

MIN_NODES, MAX_NODES = 64, 8192
STATES_PER_NODE = 12  # for --nodes auto: finer nodes decide better until they become too rare to trust
FEW_NODES = 1024  # up to here everything is compared with everything
FIT_FEW, FIT_MANY = 64, 32  # states a node's centroid is fitted on, at the most
FEW_STEPS = 40  # mini-batches that few centroids are fitted with
MANY_STEPS = 8  # times that many centroids move to the mean of their states
NODES_PER_REGION = 16
NEAR, NEAR_FIT = 48, 32  # nodes that a state is compared with, for each that a region has: for good; while fitting
STATES_PER_REGION = 256  # that regions are fitted on
BLOCK = 1 << 17  # states that are labelled together: enough of each region for fast products

T = TypeVar("T")
R = TypeVar("R")


def auto_nodes(states: int) -> int:
    """N for a number of states: the power of two near ``states / STATES_PER_NODE``, within bounds."""
    wanted = max(1.0, states / STATES_PER_NODE)
    return int(min(max(2 ** round(np.log2(wanted)), MIN_NODES), MAX_NODES, states))


def fit_sample(count: int) -> int:
    """How many states ``count`` centroids are fitted on, at the most."""
    return count * (FIT_FEW if count <= FEW_NODES else FIT_MANY)


def cluster_states(sample: FloatArray, count: int, seed: int) -> FloatArray:
    """Centroids of some states.

    Args:
        sample: ``(n, D)`` float32, in an order drawn by chance where nodes are many.
        count: N, at most n.
        seed: the same sample, seed and versions give the same bytes.

    Returns:
        ``(N, D)`` float32.
    """
    if count <= FEW_NODES:
        return _mini_batches(sample, count, seed)
    chosen = np.random.default_rng(seed).choice(len(sample), count, replace=False)
    every = max(1, len(sample) // (STATES_PER_REGION * _regions(count)))
    centres = _mini_batches(sample[::every], _regions(count), seed)
    home = np.concatenate(list(in_threads(Whole(centres).label, _pieces(sample))))
    return _settle(sample[_order(home)], np.bincount(home, minlength=len(centres)), sample[np.sort(chosen)], centres)


def _settle(sample: FloatArray, sizes: NDArray[np.int64], centroids: FloatArray, centres: FloatArray) -> FloatArray:
    """Move centroids to the mean of their states, some times over.

    Args:
        sample: ``(n, D)``, region by region.
        sizes: ``(G,)``, how many states each region has.
        centroids: where they start from.
        centres: ``(G, D)``, of the regions.
    """
    ends = np.cumsum(sizes)
    with bar(total=MANY_STEPS * len(centres), desc="placing nodes", unit="region") as progress:
        for _ in range(MANY_STEPS):
            regions = Regions.of(centroids, centres, NEAR_FIT)

            def label(region: int, regions: Regions = regions) -> IntArray:
                return regions.inside(region, sample[ends[region] - sizes[region] : ends[region]])

            found = []
            for labels in in_threads(label, range(len(centres))):
                found.append(labels)
                progress.update()
            centroids = _moved(centroids, np.concatenate(found), sample)
    return centroids


def _moved(centroids: FloatArray, labels: IntArray, sample: FloatArray) -> FloatArray:
    """Centroids at the mean of the states that are theirs; those that have none stay."""
    order = _order(labels)
    taken, first, states = np.unique(labels[order], return_index=True, return_counts=True)
    centroids = centroids.copy()
    centroids[taken] = np.add.reduceat(sample[order], first) / states[:, None].astype(np.float32)
    return centroids


def label_all(centroids: FloatArray, blocks: Iterable[FloatArray], seed: int = 0) -> Iterator[IntArray]:
    """The nodes of many states, block by block, ``(n,)`` int32 each.

    With few nodes every state gets its nearest one; with many, the nearest of those near its region.

    Args:
        centroids: ``(N, D)`` float32.
        blocks: ``(n, D)`` float32 or float16, of any lengths.
        seed: of the regions.
    """
    if len(centroids) <= FEW_NODES:
        label = Whole(centroids).label
    else:
        label = Regions.of(
            centroids, _mini_batches(centroids, _regions(len(centroids)), seed, FEW_STEPS // 4), NEAR
        ).label
    return in_threads(label, blocks)


@dataclass(frozen=True)
class Whole:
    """All nodes."""

    centroids: FloatArray

    def label(self, states: FloatArray) -> IntArray:
        """The nearest node of each of ``(n, D)`` states."""
        return nearest(np.asarray(states, np.float32), self.centroids)


@dataclass(frozen=True)
class Regions:
    """Which nodes lie near each region.

    Attributes:
        centroids: ``(N, D)`` float32, the nodes.
        centres: ``(G, D)`` float32, of the regions.
        near: ``(G, M)`` int32, the M nodes nearest to each centre.
    """

    centroids: FloatArray
    centres: FloatArray
    near: IntArray

    @classmethod
    def of(cls, centroids: FloatArray, centres: FloatArray, near: int) -> Regions:
        """See which nodes lie near some centres: ``near`` times as many as a region has on average."""
        most = min(len(centroids), near * -(-len(centroids) // len(centres)))
        distance = half_norms(centroids) - centres @ centroids.T  # (G, N), but for what is the same for all nodes
        found = np.sort(np.argpartition(distance, most - 1, axis=1)[:, :most], axis=1)
        return cls(centroids, centres, found.astype(np.int32))

    def inside(self, region: int, states: FloatArray) -> IntArray:
        """The nearest of the nodes near a region, for each of ``(n, D)`` states in it."""
        near = self.near[region]
        return near[nearest(states, self.centroids[near])]

    def label(self, states: FloatArray) -> IntArray:
        """The nearest of the nodes near its region, for each of ``(n, D)`` states."""
        wide = np.asarray(states, np.float32)
        home = nearest(wide, self.centres)
        order = _order(home)
        regions, first = np.unique(home[order], return_index=True)
        labels = np.empty(len(wide), np.int32)
        for region, rows in zip(regions.tolist(), np.split(order, first[1:]), strict=True):
            labels[rows] = self.inside(region, wide[rows])
        return labels


def in_threads(work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """``work`` of each item, in order, on all processors; no more items are held than are worked at."""
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped] # comes with scikit-learn

    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    pools, left = ThreadpoolController(), iter(items)
    with pools.limit(limits=1), ThreadPoolExecutor(processors) as executor:
        waiting = [executor.submit(work, item) for item in islice(left, processors + 1)]
        while waiting:
            done = waiting.pop(0).result()
            waiting += [executor.submit(work, item) for item in islice(left, 1)]
            yield done


def _regions(count: int) -> int:
    return max(1, count // NODES_PER_REGION)


def _pieces(states: FloatArray) -> list[FloatArray]:
    return [states[start : start + BLOCK] for start in range(0, len(states), BLOCK)]


def _order(labels: IntArray) -> NDArray[np.int64]:
    """The rows of labels, by label; numpy counts 16-bit ones instead of comparing them."""
    narrow = len(labels) > 0 and labels.max() < 1 << 16
    return np.argsort(labels.astype(np.uint16) if narrow else labels, kind="stable")


def _mini_batches(sample: FloatArray, count: int, seed: int, steps: int = FEW_STEPS) -> FloatArray:
    """Centroids by scikit-learn's mini-batch k-means."""
    from sklearn.cluster import MiniBatchKMeans

    batch = min(max(4096, 2 * count), len(sample))
    kmeans = MiniBatchKMeans(
        n_clusters=count,
        batch_size=batch,
        init="random",  # k-means++ draws one centroid after the other: minutes at 8,192 nodes, for the same drafts
        n_init=1,
        max_iter=max(1, round(steps * batch / len(sample))),
        max_no_improvement=None,
        reassignment_ratio=0.0,
        random_state=seed,
        compute_labels=False,
    )
    kmeans.fit(sample)
    return np.ascontiguousarray(kmeans.cluster_centers_, dtype=np.float32)
