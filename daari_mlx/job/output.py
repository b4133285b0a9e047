"""The output: every row with what came of it, in the order of the input, written as far as answers are there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from daari_mlx.job.files import Line, Writer
from daari_mlx.job.journal import Journal
from daari_mlx.job.plan import Plan
from daari_mlx.job.shape import Shape


@dataclass
class Counted:
    """What was written.

    Attributes:
        rows: all of them.
        errors: those with an error in place of an answer.
        compared, same: those that brought an answer along, and those of them whose answer says the same.
        completion_tokens: of all answers.
    """

    rows: int = 0
    errors: int = 0
    compared: int = 0
    same: int = 0
    completion_tokens: int = 0


class Output:
    """Writes rows.

    Args:
        writer: of the file.
        lines: the rows, as they were planned.
        plan: where their answers lie.
        journal: holds them.
        shape: how a row is written.
    """

    def __init__(self, writer: Writer, lines: Iterator[Line], plan: Plan, journal: Journal, shape: Shape) -> None:
        self._writer, self._plan, self._journal, self._shape = writer, plan, journal, shape
        self._lines = islice(lines, len(plan))
        self._next = 0  # the row that is to be written next, in their order
        self._early = np.zeros(len(plan), bool)  # rows that were written before their turn
        self.counted = Counted()

    def advance(self) -> None:
        """Write the rows whose turn it is, up to the first without an answer."""
        wrote = False
        while self._next < len(self._plan) and self._is_known(self._next):
            line = next(self._lines, None)
            if line is None:  # the file is shorter than it was: whoever called sees that it has changed
                return
            if not self._early[self._next]:
                self._write(self._next, line)
                wrote = True
            self._next += 1
        if wrote:
            self._writer.flush()

    def write_early(self, row: int, line: Line) -> None:
        """Write a row whose answer is there, whether or not it is its turn."""
        self._write(row, line)
        self._early[row] = True
        self._writer.flush()

    def _is_known(self, row: int) -> bool:
        return row in self._plan.bad or self._plan.place(row) is not None

    def _write(self, row: int, line: Line) -> None:
        place = self._plan.place(row) if row not in self._plan.bad else None
        bad = self._plan.bad.get(row, "").removeprefix(f"{line.place}: ")
        record: dict[str, Any] = {"error": bad} if place is None else self._journal.read(place)
        fields = self._shape.written(line, self._plan.key(row), record)
        self._writer.write(fields)
        counted = self.counted
        counted.rows += 1
        counted.errors += "error" in record
        counted.completion_tokens += record.get("completion_tokens", 0)
        if (same := self._shape.same(fields)) is not None:
            counted.compared += 1
            counted.same += same
