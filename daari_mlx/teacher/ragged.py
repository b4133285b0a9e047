"""Ragged caches: one prompt cache for many rows of unlike lengths, each of which keeps and drops tokens by itself.

A round is :meth:`RaggedCache.forward` over a block of tokens a row, then :meth:`RaggedCache.settle`: how many tokens of
each row's block are kept. Rows join from caches of one row of mlx-lm, and leave as such.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache

from daari_mlx.ground.errors import DaariError
from daari_mlx.teacher.quirks import forward_rows, mask_axes
from daari_mlx.teacher.ragged_arrays import RaggedArrays
from daari_mlx.teacher.ragged_kinds import check_singles, nested, ragged, refuses_rows
from daari_mlx.teacher.rewind import Cache, cached_tokens, leaves
from daari_mlx.teacher.span import Span
from daari_mlx.teacher.tap import Tap


class RaggedCache:
    """The caches of many rows, and the forwards that fill them.

    Args:
        model: the teacher.
        tap: where to read states; None where nobody needs them.

    Attributes:
        cache: what the model is given: one cache object a layer, as mlx-lm's.
        owed: for each row the tokens that it keeps and the cache lacks still; they are fed again with its next block.

    Raises:
        DaariError: where a cache of this model cannot hold several rows; see :func:`refuses_rows`.
    """

    def __init__(self, model: nn.Module, *, tap: Tap | None = None) -> None:
        self.model, self.tap = model, tap
        single = make_prompt_cache(model)
        reason = refuses_rows(single)
        if reason is not None:
            raise DaariError(f"This model's cache cannot hold several rows: {reason}. Decode one row at a time.")
        self.cache: Cache = [ragged(item) for item in single]
        self._parts = list(leaves(self.cache))
        self._restores = any(isinstance(part, RaggedArrays) for part in self._parts)
        self._axes = mask_axes(model)
        self._lengths: list[int] = []
        self.owed: list[list[int]] = []
        self._singles: list[Any] = []  # mlx-lm's own cache objects of one row, for their shapes
        self._blocks: list[list[int]] | None = None  # of the forward that is not settled

    def __len__(self) -> int:
        """B, how many rows there are."""
        return len(self._lengths)

    @property
    def tokens(self) -> list[int]:
        """How many tokens each row keeps."""
        return [length + len(owed) for length, owed in zip(self._lengths, self.owed, strict=True)]

    @property
    def nbytes(self) -> int:
        """Bytes of all storage, spare places included."""
        return sum(part.nbytes for part in self._parts)

    def bytes_for(self, tokens: list[int]) -> int:
        """What the storage of rows of so many tokens each will take, spare places included."""
        rows, longest = len(tokens), max(tokens, default=0)
        return sum(part.bytes_for(rows, longest, one) for part, one in zip(self._parts, self._one_row(), strict=True))

    def _one_row(self) -> list[Any]:
        """The layers' caches of one row with two tokens, which are never computed: their shapes are asked for."""
        if not self._singles:
            cache = make_prompt_cache(self.model)
            self.model(mx.array([[1, 1]]), cache=cache)
            self._singles = list(leaves(cache))
        return self._singles

    # rows come and go

    def join(self, cache: Cache | None = None, tokens: int | None = None) -> int:
        """Add a row: a copy of a prompt cache of mlx-lm with one row, which stays as it is.

        Args:
            cache: the prompt cache; None for a row without tokens.
            tokens: how many tokens it stands for, where its objects do not count them (recurrent state alone).

        Returns:
            The row's index, which is the last.
        """
        self._settled("add a row")
        length = 0 if cache is None else cached_tokens(cache) if tokens is None else tokens
        singles = None if cache is None else list(leaves(cache))
        if singles is not None:
            check_singles(singles, self._one_row(), length)
        row = len(self)
        self._fit(row + 1, max([*self._lengths, length]))
        try:
            for k, part in enumerate(self._parts):
                part.join(row, None if singles is None else singles[k], length)
        except BaseException:  # some parts have the row already
            self.filter(list(range(row)))
            raise
        self._stand([*self._lengths, length], [*self.owed, []])
        return row

    def absorb(self, other: RaggedCache, rows: list[int]) -> None:
        """Move some rows of another ragged cache of the same model here, behind this one's.

        In ``other`` the last of its rows that stay take their places, as for :meth:`drop` from the last one on.
        """
        self._settled("add rows")
        other._settled("give rows away")
        lengths, owed = [other._lengths[r] for r in rows], [other.owed[r] for r in rows]
        count = len(self)
        self._fit(count + len(rows), max([*self._lengths, *lengths], default=0))
        for part, new in zip(self._parts, other._parts, strict=True):
            part.absorb(count, new, rows, lengths)
        self._stand(self._lengths + lengths, self.owed + owed)
        if len(rows) == len(other):
            other.filter([])
        else:
            mx.eval([part.state for part in self._parts])  # before the storage that they come from is written to
            for row in sorted(rows, reverse=True):
                other.drop(row)

    def leave(self, row: int) -> Cache:
        """Take a row out and give its prompt cache of mlx-lm back, which holds the tokens that the row keeps.

        The last row takes its place (index ``row``); all others stay where they are.
        """
        self._settled("take a row out")
        length, owed = self._lengths[row], self.owed[row]
        lifted = [part.lift(row, length) for part in self._parts]
        self._drop(row, lifted)
        singles = [part.single(arrays, length) for part, arrays in zip(self._parts, lifted, strict=True)]
        cache = nested(self.cache, iter(singles))
        if owed:
            forward_rows(self.model, mx.array([owed]), cache)
            mx.eval([single.state for single in singles])
        return cache

    def drop(self, row: int) -> None:
        """Take a row out and forget it. The last row takes its place; all others stay where they are."""
        self._settled("take a row out")
        self._drop(row, [])

    def filter(self, rows: list[int]) -> None:
        """Keep these rows, in this order; the others are forgotten. It copies storage: for one row use :meth:`drop`."""
        self._settled("take rows out")
        for part in self._parts:
            part.select(rows)
        self._stand([self._lengths[r] for r in rows], [self.owed[r] for r in rows])
        self._fit(len(self), max(self._lengths, default=0))

    def _drop(self, row: int, lifted: list[list[mx.array]]) -> None:
        """Have ``lifted`` and the last row's arrays computed before storage is written to: they share none then."""
        last = len(self) - 1
        moved = [part.lift(last, self._lengths[last]) if row != last else [] for part in self._parts]
        mx.eval(lifted, moved)
        for part, arrays in zip(self._parts, moved, strict=True):
            part.drop(row, last, arrays, self._lengths[last])
        order = [last if r == row else r for r in range(last)]
        self._stand([self._lengths[r] for r in order], [self.owed[r] for r in order])
        self._fit(last, max(self._lengths, default=0))

    def _stand(self, lengths: list[int], owed: list[list[int]]) -> None:
        """Where the rows stand now; told to all parts."""
        self._lengths, self.owed = lengths, owed
        span = Span(lengths, [0] * len(lengths))
        for part in self._parts:
            part.stand(span)

    def _fit(self, rows: int, longest: int) -> None:
        for part in self._parts:
            part.fit(rows, longest)

    # a round

    def forward(self, blocks: list[list[int]]) -> tuple[mx.array, mx.array | None]:
        """One forward over a block of tokens a row. Call :meth:`settle` next, whatever comes of it.

        Args:
            blocks: for every row its new tokens: any number, none included; not all empty.

        Returns:
            Lazy ``(B, m, V)`` logits and, where tapped, ``(B, m, H)`` states; m is the longest block's length. Column j
            of a row follows the j-th token of its block; columns behind its block mean nothing.

        Raises:
            Whatever the teacher raises; the rows are then as they were.
        """
        self._settled("run a forward")
        fed = [owed + block for owed, block in zip(self.owed, blocks, strict=True)]
        span = Span(self._lengths, [len(tokens) for tokens in fed], self._axes)
        if not any(blocks):
            raise ValueError("every block is empty: there is nothing to run.")
        self._blocks = blocks
        inputs = mx.array([t + [self._filler(t)] * (span.width - len(t)) for t in fed], dtype=mx.uint32)
        return self._columns_of(inputs, span, max(map(len, blocks)))

    def go_on(self, tokens: mx.array) -> tuple[mx.array, mx.array | None]:
        """As :meth:`forward`, over one token a row that nobody needs to have read: it may still be under way.

        Args:
            tokens: ``(B,)``. No row may owe any.
        """
        self._settled("run a forward")
        if any(self.owed):
            raise ValueError("a row owes tokens: feed them by forward() first.")
        self._blocks = [[0]] * len(self)  # settle() looks at their lengths only
        return self._columns_of(tokens.astype(mx.uint32)[:, None], Span(self._lengths, [1] * len(self), self._axes), 1)

    def _filler(self, tokens: list[int]) -> int:
        """Padding repeats the row's own last token: an ordinary input, whose results are never looked at."""
        return tokens[-1] if tokens else 0

    def _columns_of(self, inputs: mx.array, span: Span, width: int) -> tuple[mx.array, mx.array | None]:
        """The forward, of which each row's columns count from those that it owed on."""
        try:
            for part in self._parts:
                part.begin(span)
            return self._run(inputs, [len(owed) for owed in self.owed], width)
        except BaseException:
            self._undo()
            raise

    def _run(self, inputs: mx.array, first: list[int], width: int) -> tuple[mx.array, mx.array | None]:
        if self.tap is None:
            return _columns(forward_rows(self.model, inputs, self.cache), first, width), None
        with self.tap.reading() as seen:
            logits = forward_rows(self.model, inputs, self.cache)
        return _columns(logits, first, width), _columns(seen[-1], first, width)

    def settle(self, kept: list[int]) -> None:
        """Keep the first ``kept[i]`` tokens of row i's block; the others leave no trace.

        Raises:
            ValueError: where there is no forward to settle, or a row is to keep more than its block.
        """
        blocks = self._blocks
        if blocks is None:
            raise ValueError("there is no forward to settle.")
        if any(not 0 <= k <= len(block) for k, block in zip(kept, blocks, strict=True)):
            raise ValueError(f"cannot keep {kept} of blocks of {[len(block) for block in blocks]} tokens.")
        if self._restores:
            complete = [k == len(b) and bool(o or b) for k, b, o in zip(kept, blocks, self.owed, strict=True)]
        else:
            complete = [True] * len(self)
        fed = [owed + block[:k] for owed, block, k in zip(self.owed, blocks, kept, strict=True)]
        self._finish(fed, complete)

    def _undo(self) -> None:
        """After a forward that failed: every row is as it was."""
        self._finish(self.owed, [False] * len(self))

    def _finish(self, fed: list[list[int]], complete: list[bool]) -> None:
        """Rows that are complete hold the tokens that were ``fed``; the others owe them."""
        self._blocks = None
        for part in self._parts:
            part.settle(complete)
        self._stand(
            [n + len(f) if c else n for n, f, c in zip(self._lengths, fed, complete, strict=True)],
            [[] if c else f for f, c in zip(fed, complete, strict=True)],
        )

    def _settled(self, intent: str) -> None:
        if self._blocks is not None:
            raise RuntimeError(f"the last forward was not settled: call settle() before you {intent}.")


def _columns(values: mx.array, first: list[int], width: int) -> mx.array:
    """``(B, M, …)`` to ``(B, width, …)``: of row i the columns from ``first[i]`` on."""
    if max(first) == min(first):
        return values[:, first[0] : first[0] + width]
    places = mx.minimum(mx.array(first)[:, None] + mx.arange(width), values.shape[1] - 1)
    return values[mx.arange(len(first))[:, None], places]
