"""Stage 7, length: how far to draft, from the path's probabilities and what a forward over m rows costs.

T(m) has cliffs and flat bands (kernels switch at row limits), so the choice is an argmax over every length, never a
threshold on the probability.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

CALIBRATION_EDGES = (0.2, 0.4, 0.6, 0.75, 0.85, 0.92, 0.97, 0.99, 0.997)  # between its bins
CALIBRATION_PRIOR = 4.0  # tokens a bin is given that came true as promised
CALIBRATION_MEMORY = 0.98  # what is left of a bin's judged tokens after one more
CALIBRATION_HELD = 40.0  # the most judged tokens that a bin keeps from an earlier text: a new one shall be heard
TRUST_PRIOR = 3.0  # promised tokens that a new text is given as kept
TRUST_MEMORY = 0.95  # what is left of a judged token's weight after one more
MAX_DRAFT = 32  # the longest draft that is ever considered: the kernels' flat bands end at 32 rows


@dataclass(frozen=True, slots=True)
class Cost:
    """T(m)/T(1): the time of a teacher forward over m rows, relative to one row.

    Attributes:
        rows: the measured m, rising, starting at 1.
        relative: T(m)/T(1) for each of them.
    """

    rows: tuple[int, ...]
    relative: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.rows) != len(self.relative) or not self.rows or self.rows[0] != 1:
            raise ValueError(f"A cost curve starts at 1 row and has a time for each; found rows {self.rows}.")
        rising = all(a < b for a, b in zip(self.rows, self.rows[1:], strict=False))
        if not rising or not all(0 < time < inf for time in self.relative):
            raise ValueError("A cost curve has rising row counts and positive, finite times.")

    def __call__(self, rows: int) -> float:
        """T(rows)/T(1), linear between measured points; beyond the last, as steep as its last stretch or all of it."""
        for left in range(len(self.rows) - 1):
            if rows <= self.rows[left + 1]:
                return self._line(left, rows)
        if len(self.rows) == 1:
            return self.relative[0] * rows
        # noise can bend the last stretch down: drawn on alone, it would make long blocks free
        last = len(self.rows) - 1
        slopes = [(self.relative[last] - self.relative[k]) / (self.rows[last] - self.rows[k]) for k in (0, last - 1)]
        return self.relative[last] + max(0.0, *slopes) * (rows - self.rows[last])

    def _line(self, left: int, rows: int) -> float:
        x0, x1 = self.rows[left], self.rows[left + 1]
        y0, y1 = self.relative[left], self.relative[left + 1]
        return y0 + (y1 - y0) * (rows - x0) / (x1 - x0)


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
    best_rate = expected / (cost(1 + pending) + draft_cost * drafted)
    for length, probability in enumerate(probabilities, start=1):
        path *= probability
        expected += path
        rate = expected / (cost(1 + pending + length) + draft_cost * max(length, drafted))
        if rate > best_rate:
            best, best_rate = length, rate
    return best


class Trust:
    """What share of a drafter's promises comes true on this text, learnt from what the teacher accepts.

    Starts at 1 and forgets: a text unlike the compiled one stops being drafted within a few rounds, and is drafted
    again when promises come true again.
    """

    def __init__(self) -> None:
        self._kept = self._promised = TRUST_PRIOR

    @property
    def factor(self) -> float:
        """By how much a promised probability is to be drawn down, in (0, 1]."""
        return min(1.0, self._kept / self._promised)

    def learn(self, probability: float, right: bool) -> None:
        """Take in one draft token that the teacher has judged, and the probability that had been promised for it."""
        self._kept = self._kept * TRUST_MEMORY + right
        self._promised = self._promised * TRUST_MEMORY + probability


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
