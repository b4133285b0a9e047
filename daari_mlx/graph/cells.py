"""What a source knows about its next token, in a few buckets: the cell whose share of right tokens is its promise.

Every cell is a small integer, so that what was counted at compile time is one list look-up while drafting.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SHARES, COUNTS, STEPS, LENGTHS, DISTANCES = 9, 6, 5, 10, 6
_COUNT_BOUNDS = np.array([2, 3, 5, 11, 51])  # from so many observations on, the next bucket
_LENGTH_BOUNDS = np.array([2, 3, 4, 5, 6, 7, 9, 13, 20])
_STEP_BOUNDS = np.array([1, 3, 7, 13])

HABITS, UNKNOWN_HABIT = 6, 0
_HABIT_BOUNDS = np.array([0.15, 0.35, 0.6, 0.85])

KINDS = SHARES * COUNTS
DEPTH = 64  # steps since the anchor that have a bucket of their own; later ones share the last

LENGTH_OF: list[int] = np.searchsorted(_LENGTH_BOUNDS, np.arange(64), side="right").tolist()
STEP_OF: list[int] = np.searchsorted(_STEP_BOUNDS, np.arange(DEPTH), side="right").tolist()


def kind(share: NDArray[np.float64], count: NDArray[np.int64]) -> NDArray[np.uint8]:
    """The cell of a count: how large a share of ``count`` observations took the commonest token, in ``[0, KINDS)``.

    Args:
        share: in [0, 1]; a bucket of its own is kept for "all of them".
        count: of observations, at least 1.
    """
    shares = np.minimum((np.asarray(share) * (SHARES - 1)).astype(np.int64), SHARES - 1)
    return (shares * COUNTS + np.searchsorted(_COUNT_BOUNDS, count, side="right")).astype(np.uint8)


def habit(right: NDArray[np.float64], seen: NDArray[np.int64]) -> NDArray[np.uint8]:
    """How far copying can be trusted, in ``[0, HABITS)``: a bucket of the share of right copies.

    Args:
        right, seen: how many copies were right, of how many; ``UNKNOWN_HABIT`` where none was seen.
    """
    share = right.sum() / max(int(seen.sum()), 1)
    drawn = (right + 2 * share) / (seen + 2)  # towards the share of all, the more the fewer were seen
    return np.where(seen > 0, 1 + np.searchsorted(_HABIT_BOUNDS, drawn, side="right"), UNKNOWN_HABIT).astype(np.uint8)
