"""What a source knows about its next token, in a few buckets: the cell whose share of right tokens is its promise.

Every cell is a small integer, so that what was counted at compile time is one list look-up while drafting.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SHARES, COUNTS, LENGTHS, DISTANCES = 9, 6, 10, 6
_COUNT_BOUNDS = np.array([2, 3, 5, 11, 51])  # from so many observations on, the next bucket
_LENGTH_BOUNDS = np.array([2, 3, 4, 5, 6, 7, 9, 13, 20])

KINDS = SHARES * COUNTS

LENGTH_OF: list[int] = np.searchsorted(_LENGTH_BOUNDS, np.arange(64), side="right").tolist()


def kind(share: NDArray[np.float64], count: NDArray[np.int64]) -> NDArray[np.uint8]:
    """The cell of a count: how large a share of ``count`` observations took the commonest token, in ``[0, KINDS)``.

    Args:
        share: in [0, 1]; a bucket of its own is kept for "all of them".
        count: of observations, at least 1.
    """
    shares = np.minimum((np.asarray(share) * (SHARES - 1)).astype(np.int64), SHARES - 1)
    return (shares * COUNTS + np.searchsorted(_COUNT_BOUNDS, count, side="right")).astype(np.uint8)
