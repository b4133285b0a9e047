"""One forward for all rows: verify a draft a row, and keep of each row what its teacher said."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from daari_mlx.batch.judging import Ask, Judging
from daari_mlx.teacher.judge import Verified
from daari_mlx.teacher.ragged import RaggedCache
from daari_mlx.teacher.rewind import Cache
from daari_mlx.teacher.tap import Tap


class Rows:
    """The rows of a batch in one teacher: the owner of their cache.

    Args:
        model: the teacher.
        tap: where to read states; None where no drafter needs them.
        stream: the MLX stream to run on.
    """

    def __init__(self, model: nn.Module, tap: Tap | None, stream: Any) -> None:
        self.cache = RaggedCache(model, tap=tap)
        self._stream = stream
        self._drafts: list[list[int]] = []
        self._verified: list[Verified | Exception] = []
        self._settled = True  # the cache holds what this round keeps
        self._started: _Started | None = None  # the next round's forward
        self._order: list[int] = []  # of each row, its place in what was started

    def __len__(self) -> int:
        return len(self.cache)

    @property
    def owed(self) -> list[int]:
        """How many tokens each row has to be fed again with its next block."""
        return [len(tokens) for tokens in self.cache.owed]

    @property
    def started(self) -> bool:
        """Whether the forward of the next round is under way already: that round has no drafts, and nobody may join."""
        return self._started is not None

    def verify(self, asks: Sequence[Ask], *, ahead: bool = False) -> list[Verified | Exception]:
        """One forward over every row's newest token and draft. Call :meth:`settle` next.

        Args:
            asks: of all rows, in their order.
            ahead: without a draft in this round and the next one, start the next one's forward before this one is read,
                where no row's processors or sampler have to know its tokens first.

        Returns:
            For each row what the teacher said, or what its own processor or sampler raised; the others go on.

        Raises:
            What the teacher raises without any draft; the rows are then as they were.
        """
        with mx.stream(self._stream):
            if self._started is not None:
                started, self._started = self._started, None
                drafts: list[list[int]] = [[] for _ in asks]
                logits, states = started.of(self._order)
                self._settled = True
            else:
                drafts = [_cut(ask) for ask in asks]
                try:
                    logits, states = self._forward(asks, drafts)
                except Exception:
                    if not any(drafts):
                        raise
                    drafts = [[] for _ in asks]  # a draft never ends an answer
                    logits, states = self._forward(asks, drafts)
                self._settled = False
            self._drafts = drafts
            judging = Judging(asks, drafts, logits)
            if ahead and not any(drafts) and not any(self.cache.owed) and judging.newest is not None:
                self._start(judging.newest)
            self._verified = judging.read(states)
        return self._verified

    def settle(self, taken: Sequence[int], whole: Sequence[bool]) -> None:
        """Keep what was emitted.

        Args:
            taken: how many tokens of each row were emitted in this round.
            whole: of each row, whether its newest token is to keep its row of the cache, where it has one.
        """
        if self._settled:
            return
        kept = []
        for draft, said, count, newest in zip(self._drafts, self._verified, taken, whole, strict=True):
            has_row = isinstance(said, Verified) and (
                count == 0 or said.tokens[count - 1 : count] == draft[count - 1 : count]
            )
            kept.append(min(count + (newest and has_row), 1 + len(draft)))
        self.cache.settle(kept)

    def leave(self, row: int) -> Cache:
        """Take a row out; its prompt cache of mlx-lm, which holds what was kept. The last row takes its place."""
        with mx.stream(self._stream):
            cache = self.cache.leave(row)
        self._swap_out(row)
        return cache

    def drop(self, row: int) -> None:
        """Take a row out and forget it. The last row takes its place."""
        with mx.stream(self._stream):
            self.cache.drop(row)
        self._swap_out(row)

    def absorb(self, other: RaggedCache, rows: list[int]) -> None:
        """Move some rows of another cache behind the others; see :meth:`RaggedCache.absorb`."""
        with mx.stream(self._stream):
            self.cache.absorb(other, rows)

    def _forward(self, asks: Sequence[Ask], drafts: list[list[int]]) -> tuple[mx.array, mx.array | None]:
        blocks = [[ask.text[-1], *draft] for ask, draft in zip(asks, drafts, strict=True)]
        return self._under_way(*self.cache.forward(blocks))

    def _under_way(self, logits: mx.array, states: mx.array | None) -> tuple[mx.array, mx.array | None]:
        """Have a forward computed from now on; where that fails, the rows are as they were."""
        try:
            mx.async_eval(logits, [] if states is None else states)
        except BaseException:
            self.cache.settle([0] * len(self))
            raise
        return logits, states

    def _start(self, newest: mx.array) -> None:
        """Start the next round's forward over the ``(B,)`` tokens of this one, which nobody has read yet."""
        if not self._settled:
            self.cache.settle([1] * len(self))
            self._settled = True
        with contextlib.suppress(Exception):  # it comes again in its own round
            logits, states = self._under_way(*self.cache.go_on(newest))
            self.cache.settle([1] * len(self))
            self._started, self._order = _Started(logits, states), list(range(len(self)))

    def _swap_out(self, row: int) -> None:
        """The last row takes a place, in what was started as in the cache."""
        if self._started is not None:
            self._order[row] = self._order[-1]
            self._order.pop()
            if not self._order:
                self._started = None


@dataclass(frozen=True, slots=True)
class _Started:
    """A forward that may still be under way: ``(B, 1, V)`` logits and ``(B, 1, H)`` states, None untapped."""

    logits: mx.array
    states: mx.array | None

    def of(self, rows: list[int]) -> tuple[mx.array, mx.array | None]:
        """Those of some rows."""
        if rows == list(range(len(self.logits))):
            return self.logits, self.states
        places = mx.array(rows)
        return self.logits[places], None if self.states is None else self.states[places]


def _cut(ask: Ask) -> list[int]:
    """A draft that a processor cannot take is none."""
    with contextlib.suppress(Exception):
        return ask.judge.cut(ask.text, ask.draft)
    return []
