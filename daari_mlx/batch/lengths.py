"""How far the rows of a batch draft: the length with the most expected tokens for the time of all of them.

Goodput (Liu et al. 2024, arXiv 2406.14066): a forward is as wide as its longest block, and shorter ones ride along as
padding, so one length is chosen for all rows.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    gained = [0.0] * longest  # tokens that all rows together expect of each further place
    for path in paths:
        chance = 1.0
        for place, probability in enumerate(path):
            chance *= probability
            gained[place] += chance
    best, best_rate = 0, rows / cost(rows, 1 + max(owed, default=0)) * (STAY if parked else 1.0)
    tokens, level = float(rows), not any(owed)
    for length, gain in enumerate(gained, start=1):
        tokens += gain
        width = 1 + length if level else _width(paths, owed, length)
        rate = tokens / cost(rows, width)
        if rate > best_rate:
            best, best_rate = length, rate
    return best


def _width(paths: Sequence[Sequence[float]], owed: Sequence[int], length: int) -> int:
    return max(due + 1 + min(length, len(path)) for due, path in zip(owed, paths, strict=True))
