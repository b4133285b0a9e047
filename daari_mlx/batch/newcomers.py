"""Newcomers: prompts that are being read, several by one forward, a chunk between two rounds of the others."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from daari_mlx.batch.request import Row
from daari_mlx.batch.rows import Rows
from daari_mlx.ground.types import FloatArray
from daari_mlx.teacher.ragged import RaggedCache
from daari_mlx.teacher.rewind import Cache
from daari_mlx.teacher.tap import Tap


class Newcomers:
    """The prompts that are being read.

    Args:
        model: the teacher.
        tap: where to read states; None where no drafter needs them.
        step: tokens that a forward reads, of all prompts together.
        stream: the MLX stream to run on.
    """

    def __init__(self, model: nn.Module, tap: Tap | None, step: int, stream: Any) -> None:
        self._cache = RaggedCache(model, tap=tap)
        self._step, self._stream = step, stream
        self._rows: list[Row] = []
        self._left: list[list[int]] = []  # tokens of each that are still to be read

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def rows(self) -> list[Row]:
        """Whose prompts these are."""
        return self._rows

    @property
    def nbytes(self) -> int:
        """Bytes of their caches."""
        return self._cache.nbytes

    def admit(self, row: Row, cache: Cache | None, known: int) -> None:
        """Begin with a prompt.

        Args:
            cache: what holds its first ``known`` tokens, or what came before it; it is copied. None for nothing.
        """
        held = known or row.cached or int(cache is not None)  # recurrent state alone does not say how much it holds
        with mx.stream(self._stream):
            self._cache.join(cache, held)
        self._rows.append(row)
        self._left.append(row.request.prompt[known:-1])

    def cancel(self, uids: Collection[int]) -> list[Row]:
        """Forget these prompts; the rows whose they were."""
        gone = [place for place, row in enumerate(self._rows) if row.uid in uids]
        return [self._drop(place) for place in reversed(gone)]

    def read(self, into: Rows) -> tuple[list[tuple[Row, FloatArray | None]], list[tuple[Row, Exception]]]:
        """One forward over the next tokens of all prompts; those that are read then join the others.

        Returns:
            The rows that joined ``into``, in that order, with the ``(H,)`` state at the last token that was read; None
            where no state is tapped. And the rows whose own progress callback raised, with what it raised.
        """
        width = max(1, self._step // len(self._rows))
        blocks = [left[:width] for left in self._left]
        states = self._forward(blocks) if any(blocks) else None
        for left, block in zip(self._left, blocks, strict=True):
            del left[: len(block)]
        failed = []
        for place in reversed(range(len(self._rows))):
            row, left = self._rows[place], self._left[place]
            try:
                row.prefill(len(row.request.prompt) - 1 - len(left), len(row.request.prompt))
            except Exception as error:
                failed.append((self._drop(place), error))
                blocks[place] = blocks[-1]
                blocks.pop()
                if states is not None:
                    states[place] = states[-1]
                    states.pop()
        ready = [k for k, left in enumerate(self._left) if not left]
        found = [(self._rows[k], None if states is None else states[k]) for k in ready]
        if ready:
            into.absorb(self._cache, ready)
        for place in reversed(ready):
            self._swap_out(place)
        return found, failed

    def _forward(self, blocks: list[list[int]]) -> list[FloatArray | None] | None:
        """Read a block of each prompt; the ``(H,)`` state at its end, None where it is empty or nothing is tapped."""
        with mx.stream(self._stream):
            logits, states = self._cache.forward(blocks)
            del logits  # nobody needs those: they are not computed
            self._cache.settle([len(block) for block in blocks])
            states = None if states is None else states.astype(mx.float32)
            mx.eval([c.state for c in self._cache.cache], [] if states is None else states)
            mx.clear_cache()
        if states is None:
            return None
        seen = np.array(states, copy=False)
        return [seen[k, len(block) - 1] if block else None for k, block in enumerate(blocks)]

    def _drop(self, place: int) -> Row:
        """Forget a prompt. The last one takes its place."""
        row = self._rows[place]
        with mx.stream(self._stream):
            self._cache.drop(place)
        self._swap_out(place)
        return row

    def _swap_out(self, place: int) -> None:
        self._rows[place], self._left[place] = self._rows[-1], self._left[-1]
        self._rows.pop()
        self._left.pop()
