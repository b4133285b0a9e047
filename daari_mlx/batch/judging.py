"""What the teacher says to every row's draft: each row's own judge, all of them computed at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from daari_mlx.ground.accept import count_accepted
from daari_mlx.teacher.judge import Judge, Verified, greedy


@dataclass(frozen=True, slots=True)
class Ask:
    """What one row asks of a round: its text so far, its draft, and who judges it."""

    text: list[int]
    draft: list[int]
    judge: Judge


class Judging:
    """What each row's own judge makes of its logits: begun for all rows, then computed at once, then read.

    Attributes:
        newest: ``(B,)`` the token at each row's first column, not read yet; None where it cannot be had like that.
    """

    def __init__(self, asks: Sequence[Ask], drafts: list[list[int]], logits: mx.array) -> None:
        self._asks, self._drafts = asks, drafts
        self._found: dict[int, Verified | Exception] = {}
        self._waiting: dict[int, Callable[[], Verified]] = {}
        self._due: list[mx.array] = []
        self._plain = [k for k, ask in enumerate(asks) if ask.judge.is_plain]
        self._chosen: mx.array | None = None
        if self._plain:
            self._chosen, self._logprobs = greedy(logits)  # (B, m), (B, m, V)
        first: dict[int, mx.array] = {}
        for k, (ask, draft) in enumerate(zip(asks, drafts, strict=True)):
            if ask.judge.is_plain:
                continue
            try:
                arrays, self._waiting[k] = ask.judge.begin(logits[k, : len(draft) + 1], ask.text, draft)
                self._due += arrays
                first[k] = arrays[0][:1]
            except Exception as error:
                self._found[k] = error
        self.newest = self._first(first) if all(ask.judge.is_known_at_once for ask in asks) else None

    def _first(self, own: dict[int, mx.array]) -> mx.array:
        if self._chosen is not None and len(self._plain) == len(self._asks):
            return self._chosen[:, 0]
        failed = mx.zeros((1,), mx.uint32)  # such a row ends with this round
        chosen = [
            self._chosen[k, :1] if self._chosen is not None and ask.judge.is_plain else own.get(k, failed)
            for k, ask in enumerate(self._asks)
        ]
        return mx.concatenate([token.astype(mx.uint32) for token in chosen])

    def read(self, states: mx.array | None) -> list[Verified | Exception]:
        """Compute and read all of it.

        Args:
            states: ``(B, m, H)``, or None.
        """
        states = None if states is None else states.astype(mx.float32)
        mx.eval(self._due, [] if self._chosen is None else self._chosen, [] if states is None else states)
        own: Any = None if self._chosen is None else self._chosen.tolist()
        for k in self._plain:
            self._found[k] = self._agreed(k, own[k])
        for k, read in self._waiting.items():
            try:
                self._found[k] = read()
            except Exception as error:
                self._found[k] = error
        seen = None if states is None else np.array(states, copy=False)
        for k, said in self._found.items():
            if seen is not None and isinstance(said, Verified):
                said.states = seen[k, : len(self._drafts[k]) + 1]
        return [self._found[k] for k in range(len(self._asks))]

    def _agreed(self, row: int, own: list[int]) -> Verified:
        """The tokens that a plain row says."""
        draft = self._drafts[row]
        said = own[: count_accepted(draft, own[: len(draft) + 1]) + 1]
        return Verified(draft, said, [self._logprobs[row, column] for column in range(len(said))])
