"""From a teacher state to the node it belongs to.

One rule, the nearest centroid, both labels the corpus at compile time and re-anchors while decoding.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import sqrt

import numpy as np

from daari_mlx.ground.types import FloatArray, IntArray

EPSILON = np.float32(1e-6)  # keeps an all-zero state finite
SCORES = 1 << 18  # products that are held at once: they stay in a core's cache
# A single state, while decoding, is compared with so many nodes at once that no BLAS starts threads for the product:
# waking them takes longer than the product itself (8 ms against 0.1 ms measured).
NODE_BLOCK = 2048


@dataclass(frozen=True)
class Projection:
    """From a teacher state to the few dimensions in which states are clustered.

    States are scaled to unit root mean square first, so that layers (whose norms differ by orders of magnitude) and
    single runaway channels are comparable, then centred and projected.

    Attributes:
        mean: ``(H,)`` float32, the mean of the scaled states.
        basis: ``(H, D)`` float32, one column a direction.
    """

    mean: FloatArray
    basis: FloatArray

    def __call__(self, states: FloatArray) -> FloatArray:
        """``(n, H)`` or ``(H,)`` float32 states to ``(n, D)`` or ``(D,)`` float32 reduced states."""
        return np.asarray((scale_states(states) - self.mean) @ self.basis, dtype=np.float32)

    def reduce(self, state: FloatArray) -> FloatArray:
        """The same of one ``(H,)`` float32 state, by one product: scaling and centring are done on what it gives."""
        square = float(state.dot(state)) / len(state)
        reduced: FloatArray = state @ self.basis
        reduced *= 1 / sqrt(square + EPSILON)
        reduced -= self._middle
        return reduced

    @cached_property
    def _middle(self) -> FloatArray:
        return self.mean @ self.basis


def scale_states(states: FloatArray) -> FloatArray:
    """States divided by their root mean square along the last axis; float32 in, float32 out."""
    square = np.einsum("...h,...h->...", states, states) / np.float32(states.shape[-1])
    scaled: FloatArray = states / np.sqrt(square + EPSILON)[..., None]
    return scaled


def fit_projection(states: FloatArray, dimensions: int) -> Projection:
    """The leading principal directions of a sample of states.

    Exact, by the eigenvectors of the ``(H, H)`` covariance; signs are fixed so that equal inputs give equal bytes.

    Args:
        states: ``(n, H)`` float32.
        dimensions: D; cut to H when larger.
    """
    scaled = scale_states(states)
    mean = scaled.mean(axis=0, dtype=np.float64).astype(np.float32)
    centred = (scaled - mean).astype(np.float64)
    _, vectors = np.linalg.eigh(centred.T @ centred)
    basis = vectors[:, ::-1][:, : min(dimensions, states.shape[1])]
    signs = np.sign(basis[np.argmax(np.abs(basis), axis=0), np.arange(basis.shape[1])])
    return Projection(mean=mean, basis=np.ascontiguousarray(basis * signs, dtype=np.float32))


@dataclass(frozen=True)
class Nodes:
    """The nodes of a graph: a projection and one centroid a node.

    Attributes:
        projection: from ``(H,)`` states to ``(D,)`` reduced states.
        centroids: ``(N, D)`` float32.
    """

    projection: Projection
    centroids: FloatArray

    @cached_property
    def _half_norms(self) -> FloatArray:
        return half_norms(self.centroids)

    def label(self, reduced: FloatArray) -> IntArray:
        """The nearest centroid of each reduced state, by Euclidean distance.

        Args:
            reduced: ``(n, D)`` float32 (float16 is widened).

        Returns:
            ``(n,)`` int32.
        """
        return nearest(np.asarray(reduced, dtype=np.float32), self.centroids, self._half_norms)

    def anchor(self, state: FloatArray) -> tuple[int, FloatArray]:
        """The node of one ``(H,)`` float32 teacher state, where the walk is re-anchored, and the reduced state."""
        reduced = self.projection.reduce(state)
        scores = [block @ reduced for block in self._blocks]
        products = scores[0] if len(scores) == 1 else np.concatenate(scores)
        products -= self._half_norms
        return int(products.argmax()), reduced

    @cached_property
    def _blocks(self) -> list[FloatArray]:
        return [self.centroids[k : k + NODE_BLOCK] for k in range(0, len(self.centroids), NODE_BLOCK)]


def nearest(states: FloatArray, centroids: FloatArray, halves: FloatArray | None = None) -> IntArray:
    """The nearest centroid of each state, by Euclidean distance; of equally near ones the first.

    Args:
        states: ``(n, D)`` float32.
        centroids: ``(N, D)`` float32.
        halves: their :func:`half_norms`, where they are known.

    Returns:
        ``(n,)`` int32.
    """
    halves = half_norms(centroids) if halves is None else halves
    labels = np.empty(len(states), dtype=np.int32)
    block = min(max(SCORES // len(centroids), 64), 1024)
    for start in range(0, len(states), block):
        scores = states[start : start + block] @ centroids.T
        scores -= halves  # argmin |x - c|² = argmax x·c - |c|²/2, so no square of x is needed
        labels[start : start + block] = np.argmax(scores, axis=1)
    return labels


def half_norms(centroids: FloatArray) -> FloatArray:
    """``(N,)``: half the squared length of each centroid."""
    return np.einsum("nd,nd->n", centroids, centroids) * np.float32(0.5)
