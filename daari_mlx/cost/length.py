"""How far to draft, from the path's probabilities and what a forward over m rows costs.

T(m) has cliffs and flat bands (kernels switch at row limits), so the choice is an argmax over every length, never a
threshold on the probability.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import Protocol

CONTEXT_STEP = 256  # tokens of context that share one curve
CALIBRATION_EDGES = (0.2, 0.4, 0.6, 0.75, 0.85, 0.92, 0.97, 0.99, 0.997)  # between its bins
CALIBRATION_PRIOR = 4.0  # tokens a bin is given that came true as promised
CALIBRATION_MEMORY = 0.98  # what is left of a bin's judged tokens after one more
CALIBRATION_HELD = 40.0  # the most judged tokens that a bin keeps from an earlier text: a new one shall be heard
TRUST_PRIOR, TRUST_START = 3.0, 0.8  # promised tokens that a new text starts with, and the share of them that was kept
TRUST_FROM = 0.25  # promises below it are hardly ever drafted: what becomes of them tells nothing of those that are
TRUST_MEMORY = 0.95  # what is left of a judged token's weight after one more
MAX_DRAFT = 32  # the longest draft that is ever considered: the kernels' flat bands end at 32 rows


class CostAt(Protocol):
    """What forwards cost: measured once (:class:`Cost`), or found out while answers go on (RoundCost)."""

    def at(self, context: int) -> Cost:
        """T(m)/T(1) with so many tokens in the cache."""
        ...


@dataclass(frozen=True, slots=True)
class Cost:
    """T(m)/T(1): the time of a teacher forward over m rows, relative to one row.

    Attributes:
        rows: the measured m, rising, starting at 1.
        relative: T(m)/T(1) for each of them.
        context: how many tokens the cache held.
        longer: (tokens in the cache, T(m) for each m) with longer contexts, rising; the times are relative to T(1) at
            ``context``, so the first of them says how much dearer a single row has become.
    """

    rows: tuple[int, ...]
    relative: tuple[float, ...]
    context: int = 0
    longer: tuple[tuple[int, tuple[float, ...]], ...] = ()
    _first: list[float] = field(default_factory=list, init=False, repr=False, compare=False)
    _known_at: dict[int, Cost] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.rows) != len(self.relative) or not self.rows or self.rows[0] != 1:
            raise ValueError(f"A cost curve starts at 1 row and has a time for each; found rows {self.rows}.")
        if any(len(times) != len(self.rows) for _, times in self.longer):
            raise ValueError("A cost curve has a time for each of its rows in every context.")
        contexts = [self.context, *(context for context, _ in self.longer)]
        times = [time for curve in (self.relative, *(t for _, t in self.longer)) for time in curve]
        if not _rising(self.rows) or not _rising(contexts) or not all(0 < time < inf for time in times):
            raise ValueError("A cost curve has rising row counts and contexts, and positive, finite times.")

    def __call__(self, rows: int) -> float:
        """T(rows)/T(1), linear between measured points; beyond the last, as steep as its last stretch or all of it."""
        return self._first[rows - 1] if 0 < rows <= len(self._first) else self._time(rows)

    def upto(self, rows: int) -> list[float]:
        """T(m)/T(1) of 1, 2, … rows, as many as that or more."""
        if len(self._first) < rows:
            self._first[:] = [self._time(row) for row in range(1, rows + 1)]  # whole: other threads read it too
        return self._first

    def at(self, context: int) -> Cost:
        """T(m)/T(1) with so many tokens in the cache, in steps of ``CONTEXT_STEP``.

        The times of each m are linear between measured contexts, and beyond the longest as steep as before it, never
        falling. Without longer contexts, this curve itself.
        """
        if not self.longer or context <= self.context:
            return self
        step = context // CONTEXT_STEP
        cost = self._known_at.get(step)
        if cost is None:
            cost = self._known_at[step] = self._curve(max(self.context, step * CONTEXT_STEP + CONTEXT_STEP // 2))
        return cost

    def _time(self, rows: int) -> float:
        for left in range(len(self.rows) - 1):
            if rows <= self.rows[left + 1]:
                return _line(rows, self.rows[left : left + 2], self.relative[left : left + 2])
        if len(self.rows) == 1:
            return self.relative[0] * rows
        # noise can bend the last stretch down: drawn on alone, it would make long blocks free
        last = len(self.rows) - 1
        slopes = [(self.relative[last] - self.relative[k]) / (self.rows[last] - self.rows[k]) for k in (0, last - 1)]
        return self.relative[last] + max(0.0, *slopes) * (rows - self.rows[last])

    def _curve(self, context: int) -> Cost:
        curves = [(self.context, self.relative), *self.longer]
        right = next((i for i, (end, _) in enumerate(curves) if context <= end), len(curves) - 1)
        (start, before), (end, after) = curves[right - 1 : right + 1]
        at = min(context, end)
        times = [_line(at, (start, end), pair) for pair in zip(before, after, strict=True)]
        beyond = (context - at) / (end - start)
        times = [t + beyond * max(0.0, b - a) for t, a, b in zip(times, before, after, strict=True)]
        return Cost(self.rows, tuple(time / times[0] for time in times), context)


def _rising(values: Sequence[int]) -> bool:
    return all(a < b for a, b in pairwise(values))


def _line(x: int, xs: Sequence[int], ys: Sequence[float]) -> float:
    return ys[0] + (ys[1] - ys[0]) * (x - xs[0]) / (xs[1] - xs[0])


def best_length(
    probabilities: Sequence[float], cost: Cost, pending: int = 0, *, draft_cost: float = 0.0, drafted: int = 0
) -> int:
    """The draft length with the most expected tokens per second; 0 when no draft pays.

    Args:
        probabilities: the chance that each draft token is right, given that all before it are.
        cost: T(m)/T(1).
        pending: rows the forward carries in any case besides the last token.
        draft_cost: what drafting one more token costs, relative to T(1); 0 where it is free, as in a walk.
        drafted: how many of the tokens are drafted already, which costs what it did whatever length is chosen.
    """
    best, expected, path = 0, 1.0, 1.0
    times = cost.upto(1 + pending + len(probabilities))
    best_rate = expected / (times[pending] + draft_cost * drafted)
    for length, probability in enumerate(probabilities, start=1):
        path *= probability
        expected += path
        rate = expected / (times[pending + length] + draft_cost * (length if length > drafted else drafted))
        if rate > best_rate:
            best, best_rate = length, rate
    return best


class Trust:
    """How far a drafter's promises come true on this text, learnt from what the teacher accepts.

    Starts at 1 and forgets: a text unlike the compiled one stops being drafted within a few rounds, and is drafted
    again when promises come true again. It is the odds that are drawn down, not the chances: a promise is mostly
    broken where it was not quite sure, and a chance of 0.999 is hardly touched by that.
    """

    def __init__(self) -> None:
        self._kept = self._promised = TRUST_PRIOR * TRUST_START
        self._judged = TRUST_PRIOR

    @property
    def factor(self) -> float:
        """By how much the odds of a promise are to be drawn down, in (0, 1]."""
        if self._kept >= self._promised:
            return 1.0
        kept, promised = (min(max(x / self._judged, 0.01), 0.99) for x in (self._kept, self._promised))
        return kept / (1 - kept) * (1 - promised) / promised

    def believed(self, probabilities: Sequence[float]) -> list[float]:
        """The chances that are left of some promised ones."""
        factor = self.factor
        return [p if p >= 1 or factor == 1 else factor * p / (1 - p + factor * p) for p in probabilities]

    def turn(self) -> None:
        """Begin another text: what was learnt on the last one counts half."""
        start = TRUST_PRIOR * TRUST_START
        self._kept, self._promised = (self._kept + start) / 2, (self._promised + start) / 2
        self._judged = (self._judged + TRUST_PRIOR) / 2

    def learn(self, probability: float, right: bool) -> None:
        """Take in one draft token that the teacher has judged, and the probability that had been promised for it."""
        if probability < TRUST_FROM:
            return
        self._kept = self._kept * TRUST_MEMORY + right
        self._promised = self._promised * TRUST_MEMORY + probability
        self._judged = self._judged * TRUST_MEMORY + 1


class Calibration:
    """What share of the tokens promised with about some probability comes true, in bins of the promise.

    A model's own probability says how sure *it* is, which need not be how often the verifier agrees.

    Args:
        kept, judged: for each of the bins between ``CALIBRATION_EDGES``, how many tokens came true and how many were
            judged on an earlier text; None for none.

    Raises:
        ValueError: they are no such counts.
    """

    def __init__(self, kept: Sequence[float] | None = None, judged: Sequence[float] | None = None) -> None:
        bins = len(CALIBRATION_EDGES) + 1
        kept, judged = list(kept or [0.0] * bins), list(judged or [0.0] * bins)
        if (
            len(kept) != bins
            or len(judged) != bins
            or not all(0 <= k <= n < inf for k, n in zip(kept, judged, strict=True))
        ):
            raise ValueError(f"A calibration has {bins} bins, with no more kept than judged tokens in each.")
        weights = [min(1.0, CALIBRATION_HELD / n) if n else 0.0 for n in judged]
        self._kept = [k * w for k, w in zip(kept, weights, strict=True)]
        self._judged = [n * w for n, w in zip(judged, weights, strict=True)]

    def __call__(self, promised: float) -> float:
        """The chance that a token promised with this probability is right."""
        place = bisect(CALIBRATION_EDGES, promised)
        return (self._kept[place] + CALIBRATION_PRIOR * promised) / (self._judged[place] + CALIBRATION_PRIOR)

    def learn(self, promised: float, right: bool) -> None:
        """Take in one token that the verifier has judged, and what had been promised for it."""
        place = bisect(CALIBRATION_EDGES, promised)
        self._kept[place] = self._kept[place] * CALIBRATION_MEMORY + right
        self._judged[place] = self._judged[place] * CALIBRATION_MEMORY + 1
