"""T(B, m): what a forward over m columns of B rows costs; foretold from T(m), corrected by what was measured.

A forward reads the weights once, whatever rows it has, so B rows of m columns cost about what B·m rows of one text do
(flat bands and cliffs at 32 and 64 rows included). Attention and padding differ by model and machine: few points that
``daari-mlx probe`` measured say by how much, and then every round is a measurement of rounds like it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from daari_mlx.cost.length import CostAt

MEMORY = 0.8  # what is left of a correction after one more round like it
BAND = 1.25  # columns within this ratio of measured ones share their correction


class BatchCost:
    """T(B, m), relative to one row of one column.

    Args:
        cost: T(m)/T(1) of one text on this machine.
        points: (rows, columns, T) that were measured, relative to the same T(1).
    """

    def __init__(self, cost: CostAt, points: Sequence[tuple[int, int, float]] = ()) -> None:
        self.cost = cost
        self._unit: float | None = None  # seconds of one row of one column, as far as rounds tell
        self._found: dict[int, dict[int, float]] = {}  # rows -> columns -> measured over foretold
        self._points: dict[int, dict[int, float]] = {1: {1: 1.0}}  # rows -> positions -> measured over T(m)
        for rows, columns, time in sorted(points):
            self._points.setdefault(rows, {})[rows * columns] = time / cost.at(0)(rows * columns)
        self._ratios: dict[tuple[int, int], float] = {}  # between points, as far as they were asked for

    def __call__(self, rows: int, columns: int) -> float:
        """What a round costs."""
        return self.foretold(rows, columns) * self._correction(rows, columns)

    def foretold(self, rows: int, columns: int) -> float:
        """What it costs but for what rounds tell."""
        return self.cost.at(0)(rows * columns) * self._measured(rows, columns)

    def learn(self, rows: int, columns: int, seconds: float) -> None:
        """Take in a round that was timed."""
        unit = seconds / self.foretold(rows, columns)
        if self._unit is None:
            self._unit = unit
        self._unit = MEMORY * self._unit + (1 - MEMORY) * unit
        found = self._found.setdefault(rows, {})
        found[columns] = MEMORY * found.get(columns, 1.0) + (1 - MEMORY) * unit / self._unit

    def _measured(self, rows: int, columns: int) -> float:
        """Measured over what T(m) says of as many positions, by rows; beyond the points that of the nearest."""
        if (rows, columns) not in self._ratios:
            ratios = [float(np.interp(rows * columns, list(at), list(at.values()))) for at in self._points.values()]
            self._ratios[rows, columns] = float(np.interp(rows, list(self._points), ratios))
        return self._ratios[rows, columns]

    def _correction(self, rows: int, columns: int) -> float:
        """Of the measured round with as many rows whose columns are nearest; 1 where none is near."""
        found = self._found.get(rows, {})
        nearest = min(found, key=lambda c: abs(c - columns), default=None)
        return found[nearest] if nearest is not None and _near(nearest, columns) else 1.0


def _near(one: int, other: int) -> bool:
    return max(one, other) <= BAND * min(one, other)
