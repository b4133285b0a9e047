"""T(m) while it is being found out: a curve to start from, corrected by the rounds of the answers themselves."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from math import exp, inf, log
from statistics import median

from daari_mlx.cost.length import Cost

KEPT = 15  # times of a row count that are looked at
STEADY = 0.9  # what is left of the unit after one more round
FIRST = 0.5  # rounds that the start counts as, against those of a row count


class RoundCost:
    """T(m)/T(1) as far as it is known. Not safe for two threads that learn at once.

    Each round of an answer is a measurement: its time, in units of what one row takes just then (longer contexts make
    all rows dearer), corrects what is told of as many rows, and of the counts between those that were timed.

    Args:
        start: what is told before anything was timed.
        times: of earlier rounds, row count by row count, in units of one row's.

    Raises:
        ValueError: they are no such times.
    """

    def __init__(self, start: Cost, times: Mapping[int, Sequence[float]] | None = None) -> None:
        self._start = start
        self._times = {rows: deque(known, KEPT) for rows, known in (times or {}).items()}
        if not all(rows >= 1 and known and all(0 < t < inf for t in known) for rows, known in self._times.items()):
            raise ValueError("Times of rounds are positive and finite, and of 1 row or more.")
        self._unit: float | None = None  # seconds of one row, as far as rounds tell
        self._warm: set[int] = set()  # row counts that ran before: the first time compiles kernels
        self._cost: Cost | None = None  # the curve that comes of it all, until the next round
        self.news = 0  # rounds that nobody has kept yet

    def __call__(self, rows: int) -> float:
        """T(rows)/T(1)."""
        return self.at(0)(rows)

    def at(self, context: int) -> Cost:
        """The curve by now; rounds are timed in whatever context they come in, so it is the same for each."""
        if self._cost is None:
            self._cost = self._curve()
        return self._cost

    def times(self) -> dict[int, list[float]]:
        """What rounds took, in units of one row's, row count by row count: to be kept."""
        return {rows: list(known) for rows, known in sorted(self._times.items())}

    def learn(self, rows: int, seconds: float) -> None:
        """Take in a round over ``rows`` rows; the first of a row count is left out."""
        if rows not in self._warm:
            self._warm.add(rows)
            return
        self.timed(rows, seconds)
        self.news += 1

    def timed(self, rows: int, seconds: float) -> None:
        """Take in a forward over ``rows`` rows whose kernels were there."""
        if not 0 < seconds < inf:
            return
        unit = seconds / self(rows)
        self._unit = unit if self._unit is None else STEADY * self._unit + (1 - STEADY) * unit
        self._times.setdefault(rows, deque(maxlen=KEPT)).append(seconds / self._unit)
        self._cost = None

    def _curve(self) -> Cost:
        """The start, bent by what was timed: what that makes of it is taken to change evenly in between."""
        known = sorted(self._times)
        if not known:
            return self._start
        bends = []
        for rows in known:
            found = self._times[rows]
            bends.append(len(found) / (len(found) + FIRST) * log(median(found) / self._start(rows)))
        grid = sorted({*self._start.rows, *known})
        values = [self._start(rows) * exp(_between(rows, known, bends)) for rows in grid]
        return Cost(tuple(grid), tuple(value / values[0] for value in values))


def _between(x: int, xs: Sequence[int], ys: Sequence[float]) -> float:
    """Linear between known places, and beyond them as at the last."""
    right = bisect_left(xs, x)
    if right == 0 or right == len(xs):
        return ys[min(right, len(xs) - 1)]
    left = right - 1
    return ys[left] + (ys[right] - ys[left]) * (x - xs[left]) / (xs[right] - xs[left])
