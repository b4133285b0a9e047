"""Stage 4, nodes: from a teacher state to the node it belongs to.

One routine, :meth:`Nodes.label`, both labels the corpus at compile time and re-anchors while decoding.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int32]

EPSILON = np.float32(1e-6)  # keeps an all-zero state finite
STATE_BLOCK = 1024  # states that are labelled at once: bounds memory at STATE_BLOCK x nodes x 4 bytes
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
        return np.einsum("nd,nd->n", self.centroids, self.centroids) * np.float32(0.5)

    def label(self, reduced: FloatArray) -> IntArray:
        """The nearest centroid of each reduced state, by Euclidean distance.

        Args:
            reduced: ``(n, D)`` float32 (float16 is widened).

        Returns:
            ``(n,)`` int32.
        """
        labels = np.empty(len(reduced), dtype=np.int32)
        for start in range(0, len(reduced), STATE_BLOCK):
            block = np.asarray(reduced[start : start + STATE_BLOCK], dtype=np.float32)
            labels[start : start + len(block)] = np.argmax(self._scores(block), axis=1)
        return labels

    def _scores(self, block: FloatArray) -> FloatArray:
        """``(n, N)``: larger is nearer; argmin |x - c|² = argmax x·c - |c|²/2, so no square of x is needed."""
        if len(block) > 1:
            scores = block @ self.centroids.T
        else:
            size = NODE_BLOCK
            parts = [self.centroids[k : k + size] @ block[0] for k in range(0, len(self.centroids), size)]
            scores = np.concatenate(parts)[None]
        scores -= self._half_norms
        return scores

    def anchor(self, state: FloatArray) -> int:
        """The node of one ``(H,)`` float32 teacher state: the walk is re-anchored here."""
        return int(self.label(self.projection(state)[None])[0])
