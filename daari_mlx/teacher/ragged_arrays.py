"""Recurrent state of many rows: a row that drops columns gets the state before its block again.

It cannot be rolled back further. Such a row's kept tokens are fed again at the head of its next block; the owner keeps
them until then.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache

from daari_mlx.teacher.span import Span

State = mx.array | None


class RaggedArrays(ArraysCache):
    """Many rows of mlx-lm's ``ArraysCache``; models ask whether a cache is one.

    Models read ``lengths``, how many columns of each row are tokens, so that padding does not enter the state.

    Args:
        size: how many arrays a layer keeps.
    """

    kind = "ArraysCache"

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.lengths: mx.array | None = None
        self._before: list[State] = [None] * size

    def advance(self, N: int) -> None:
        """Called by models behind ``N`` columns. mlx-lm's own changes the array in place, which all layers share."""
        if self.lengths is not None:
            self.lengths = self.lengths - N

    # what the owner calls

    def stand(self, span: Span) -> None:
        """Nothing depends on where the rows stand."""

    def begin(self, span: Span) -> None:
        self.lengths = span.columns if span.padded else None
        self._before = list(self.cache)

    def settle(self, complete: list[bool]) -> None:
        """Keep the new state of the rows that kept all of their columns, the old one of the others."""
        self.lengths = None
        if not any(complete):
            self.cache = self._before
        elif not all(complete):
            rows = mx.array(complete)
            self.cache = [_mixed(rows, new, old) for new, old in zip(self.cache, self._before, strict=True)]
        self._before = [None] * len(self.cache)

    def fit(self, rows: int, longest: int) -> None:
        if not rows:
            self.cache = [None] * len(self.cache)

    def join(self, row: int, single: Any, length: int) -> None:
        self._append(row, single.cache if single is not None and length else self._before, 1)

    def absorb(self, row: int, other: Any, rows: list[int], lengths: list[int]) -> None:
        places = mx.array(rows, dtype=mx.int32)
        self._append(row, [None if x is None else x[places] for x in other.cache], len(rows))

    def bytes_for(self, rows: int, longest: int, single: Any) -> int:
        """What so many rows will take; a forward keeps the state before it as well."""
        return 2 * rows * sum(x.nbytes for x in single.cache if x is not None)

    def lift(self, row: int, length: int) -> list[State]:
        return [None if x is None else x[row : row + 1] * 1 for x in self.cache]

    def single(self, lifted: list[State], length: int) -> Any:
        cache = ArraysCache(len(self.cache))
        cache.cache = list(lifted) if lifted and length else cache.cache
        return cache

    def drop(self, row: int, last: int, lifted: list[State], length: int) -> None:
        self.select([last if r == row else r for r in range(last)])

    def select(self, rows: list[int]) -> None:
        self.cache = [None if x is None else x[mx.array(rows, dtype=mx.int32)] for x in self.cache]

    def _append(self, rows: int, more: list[State], count: int) -> None:
        self.cache = [_joined(a, rows, b, count) for a, b in zip(self.cache, more, strict=True)]


def _joined(a: State, a_rows: int, b: State, b_rows: int) -> State:
    """Two states, of so many rows, as one; a row without tokens has zeros, as mlx-lm's own merging gives it."""
    if a is None and b is None:
        return None
    if a is None:
        assert b is not None
        a = mx.zeros((a_rows, *b.shape[1:]), b.dtype)
    if b is None:
        b = mx.zeros((b_rows, *a.shape[1:]), a.dtype)
    return mx.concatenate([a, b])


def _mixed(rows: mx.array, new: State, old: State) -> State:
    """The new state of the ``(B,)`` rows that are true, the old one of the others."""
    if new is None:
        return old
    if old is None:
        old = mx.zeros_like(new)
    return mx.where(rows.reshape(-1, *[1] * (new.ndim - 1)), new, old)
