"""How far the rows of a batch draft: the length with the most expected tokens for the time of all of them.

Goodput (Liu et al. 2024, arXiv 2406.14066): a forward is as wide as its longest block, and shorter ones ride along as
padding, so one length is chosen for all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from daari_mlx.cost.batch_cost import BatchCost

STAY = 1.03  # how much better than not drafting a draft has to be where the round before did not draft


def best_common_length(
    paths: Sequence[Sequence[float]], owed: Sequence[int], cost: BatchCost, *, parked: bool = False
) -> int:
    """The length that every row's draft is cut to; 0 where no draft pays.

    Args:
        paths: for each row the chance of each of its draft tokens, given those before it; empty where it has none.
        owed: tokens that each row has to be fed again besides its newest one and the draft.
        cost: T(B, m).
        parked: the round before had no draft: coming back has to pay a little more.
    """
    rows, longest = len(paths), max(map(len, paths), default=0)
    expected = [[0.0, *accumulate(accumulate(path, mul))] for path in paths]
    best, best_rate = 0, rows / cost(rows, 1 + max(owed, default=0)) * (STAY if parked else 1.0)
    for length in range(1, longest + 1):
        tokens = rows + sum(gain[min(length, len(gain) - 1)] for gain in expected)
        width = max(due + 1 + min(length, len(path)) for due, path in zip(owed, paths, strict=True))
        rate = tokens / cost(rows, width)
        if rate > best_rate:
            best, best_rate = length, rate
    return best
