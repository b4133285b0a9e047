"""Many nodes: regions instead of comparing everything with everything, and the same bytes on any number of threads."""

from __future__ import annotations

import os

import numpy as np
import pytest

from daari_mlx.compile import cluster
from daari_mlx.compile.cluster import FEW_NODES, cluster_states, in_threads, label_all
from daari_mlx.graph.nodes import nearest


def states(count: int, seed: int = 0) -> np.ndarray:
    """Points around 3000 centres whose dimensions matter less and less, as a teacher's do."""
    spread = (1 + np.arange(64)) ** -0.7
    centres = np.random.default_rng(0).normal(size=(3000, 64)) * spread
    random = np.random.default_rng(seed)
    found = centres[random.integers(3000, size=count)] + 0.2 * spread * random.normal(size=(count, 64))
    return found.astype(np.float32)


@pytest.fixture(scope="module")
def centroids() -> np.ndarray:
    return cluster_states(states(30_000), 2 * FEW_NODES, 0)


def test_nodes_lie_where_states_do_and_regions_hardly_matter(centroids: np.ndarray) -> None:
    fresh = states(5000, seed=1)
    exact = nearest(fresh, centroids)
    found = np.concatenate(list(label_all(centroids, [fresh[:3000], fresh[3000:]])))
    assert (found == exact).mean() > 0.99
    distance = np.square(fresh - centroids[exact]).sum(axis=1).mean()
    assert np.square(fresh - centroids[found]).sum(axis=1).mean() < 1.01 * distance
    assert distance < 0.5 * np.square(fresh - fresh.mean(axis=0)).sum(axis=1).mean()


def test_threads_change_no_byte(centroids: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = states(5000, seed=1)
    labels = np.concatenate(list(label_all(centroids, [fresh])))
    for processors in (1, 3):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, n=processors: set(range(n)), raising=False)
        assert cluster_states(states(30_000), len(centroids), 0).tobytes() == centroids.tobytes()
        assert np.concatenate(list(label_all(centroids, [fresh]))).tobytes() == labels.tobytes()


def test_work_comes_back_in_order_and_errors_are_raised() -> None:
    assert list(in_threads(lambda x: 2 * x, range(50))) == list(range(0, 100, 2))
    with pytest.raises(ZeroDivisionError):
        list(in_threads(lambda x: 1 / x, [1, 0, 1]))


def test_a_node_without_states_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "FEW_NODES", 4)
    alike = np.ones((200, 3), np.float32)
    assert np.isfinite(cluster_states(alike, 64, 0)).all()
