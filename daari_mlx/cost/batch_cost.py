"""T(B, m): what a forward over m columns of B rows costs; foretold from T(m), corrected by the rounds themselves.

A forward reads the weights once, whatever rows it has, so B rows of m columns cost about what B·m rows of one text do
(flat bands and cliffs at 32 and 64 rows included). Attention and padding differ by model and machine: every round is a
measurement, and what it finds corrects what is foretold for rounds like it.
"""

from __future__ import annotations

from daari_mlx.cost.length import CostAt

MEMORY = 0.8  # what is left of a correction after one more round like it
BAND = 1.25  # columns within this ratio of measured ones share their correction


class BatchCost:
    """T(B, m), relative to one row of one column.

    Args:
        cost: T(m)/T(1) of one text on this machine.
    """

    def __init__(self, cost: CostAt) -> None:
        self.cost = cost
        self._unit: float | None = None  # seconds of one row of one column, as far as rounds tell
        self._found: dict[tuple[int, int], float] = {}  # (rows, columns) -> measured over foretold

    def __call__(self, rows: int, columns: int) -> float:
        """What a round costs."""
        return self.cost.at(0)(rows * columns) * self._correction(rows, columns)

    def learn(self, rows: int, columns: int, seconds: float) -> None:
        """Take in a round that was timed."""
        foretold = self.cost.at(0)(rows * columns)
        unit = seconds / foretold
        if self._unit is None:
            self._unit = unit
        self._unit = MEMORY * self._unit + (1 - MEMORY) * unit
        known = self._found.get((rows, columns), 1.0)
        self._found[rows, columns] = MEMORY * known + (1 - MEMORY) * unit / self._unit

    def _correction(self, rows: int, columns: int) -> float:
        """Of the measured round with as many rows whose columns are nearest; 1 where none is near."""
        near = [(abs(c - columns), value) for (r, c), value in self._found.items() if r == rows and _near(c, columns)]
        return min(near)[1] if near else 1.0


def _near(one: int, other: int) -> bool:
    return max(one, other) <= BAND * min(one, other)
