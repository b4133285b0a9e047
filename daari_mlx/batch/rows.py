"""One forward for all rows: verify a draft a row, and keep of each row what its teacher said."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from daari_mlx.teacher.judge import Judge, Verified, agreeing, greedy
from daari_mlx.teacher.ragged import RaggedCache
from daari_mlx.teacher.rewind import Cache
from daari_mlx.teacher.tap import Tap


@dataclass(frozen=True, slots=True)
class Ask:
    """What one row asks of a round: its text so far, its draft, and who judges it."""

    text: list[int]
    draft: list[int]
    judge: Judge


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

    def __len__(self) -> int:
        return len(self.cache)

    @property
    def owed(self) -> list[int]:
        """How many tokens each row has to be fed again with its next block."""
        return [len(tokens) for tokens in self.cache.owed]

    def verify(self, asks: Sequence[Ask]) -> list[Verified | Exception]:
        """One forward over every row's newest token and draft. Call :meth:`settle` next.

        Returns:
            For each row what the teacher said, or what its own processor or sampler raised; the others go on.

        Raises:
            What the teacher raises without any draft; the rows are then as they were.
        """
        with mx.stream(self._stream):
            drafts = [_cut(ask) for ask in asks]
            try:
                logits, states = self._forward(asks, drafts)
            except Exception:
                if not any(drafts):
                    raise
                drafts = [[] for _ in asks]  # a draft never ends an answer
                logits, states = self._forward(asks, drafts)
            self._drafts, self._verified = drafts, self._judge(asks, drafts, logits, states)
        return self._verified

    def settle(self, taken: Sequence[int], whole: Sequence[bool]) -> None:
        """Keep what was emitted.

        Args:
            taken: how many tokens of each row were emitted in this round.
            whole: of each row, whether its newest token is to keep its row of the cache, where it has one.
        """
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
            return self.cache.leave(row)

    def drop(self, row: int) -> None:
        """Take a row out and forget it. The last row takes its place."""
        with mx.stream(self._stream):
            self.cache.drop(row)

    def join(self, cache: Cache, tokens: int) -> None:
        """Add a row behind the others: a copy of a prompt cache of mlx-lm that holds so many tokens."""
        with mx.stream(self._stream):
            self.cache.join(cache, tokens)

    def absorb(self, other: RaggedCache) -> None:
        """Add all rows of another cache behind the others."""
        with mx.stream(self._stream):
            self.cache.absorb(other)

    def _forward(self, asks: Sequence[Ask], drafts: list[list[int]]) -> tuple[mx.array, mx.array | None]:
        blocks = [[ask.text[-1], *draft] for ask, draft in zip(asks, drafts, strict=True)]
        logits, states = self.cache.forward(blocks)
        try:
            mx.async_eval(logits, [] if states is None else states)
        except BaseException:
            self.cache.settle([0] * len(asks))
            raise
        return logits, states

    def _judge(
        self, asks: Sequence[Ask], drafts: list[list[int]], logits: mx.array, states: mx.array | None
    ) -> list[Verified | Exception]:
        found: dict[int, Verified | Exception] = {}
        waiting: dict[int, Callable[[], Verified]] = {}
        due: list[mx.array] = []
        plain = [k for k, ask in enumerate(asks) if ask.judge.is_plain]
        chosen, logprobs = greedy(logits) if plain else (None, None)
        for k, (ask, draft) in enumerate(zip(asks, drafts, strict=True)):
            if ask.judge.is_plain:
                continue
            try:
                arrays, waiting[k] = ask.judge.begin(logits[k, : len(draft) + 1], ask.text, draft)
                due += arrays
            except Exception as error:
                found[k] = error
        states = None if states is None else states.astype(mx.float32)
        mx.eval(due, [] if chosen is None else chosen, [] if states is None else states)
        own: Any = None if chosen is None else chosen.tolist()
        for k in plain:
            assert logprobs is not None
            rows = [logprobs[k, column] for column in range(len(drafts[k]) + 1)]
            found[k] = Verified(drafts[k], *agreeing(drafts[k], own[k][: len(drafts[k]) + 1], rows))
        for k, read in waiting.items():
            try:
                found[k] = read()
            except Exception as error:
                found[k] = error
        seen = None if states is None else np.array(states, copy=False)
        for k, said in found.items():
            if seen is not None and isinstance(said, Verified):
                said.states = seen[k, : len(drafts[k]) + 1]
        return [found[k] for k in range(len(asks))]


def _cut(ask: Ask) -> list[int]:
    """A draft that a processor cannot take is none."""
    with contextlib.suppress(Exception):
        return ask.judge.cut(ask.text, ask.draft)
    return []
