"""Many rows, one at a time: what :class:`daari_mlx.teacher.ragged.RaggedCache` does, for teachers that cannot batch.

Each row has a prompt cache of mlx-lm of its own, and a forward of its own in every round.
"""

from __future__ import annotations

import copy

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache

from daari_mlx.teacher.quirks import forward_rows
from daari_mlx.teacher.rewind import Cache, Checkpoint, cached_tokens
from daari_mlx.teacher.tap import Tap


class SeparateCaches:
    """The caches of many rows, each by itself; methods and attributes are those of ``RaggedCache``.

    Args:
        model: the teacher.
        tap: where to read states; None where nobody needs them.
    """

    def __init__(self, model: nn.Module, *, tap: Tap | None = None) -> None:
        self.model, self.tap = model, tap
        self._caches: list[Cache] = []
        self._lengths: list[int] = []
        self.owed: list[list[int]] = []
        self._blocks: list[list[int]] | None = None  # of the forward that is not settled
        self._checkpoints: list[Checkpoint | None] = []

    def __len__(self) -> int:
        return len(self._caches)

    @property
    def tokens(self) -> list[int]:
        """How many tokens each row keeps."""
        return [length + len(owed) for length, owed in zip(self._lengths, self.owed, strict=True)]

    @property
    def nbytes(self) -> int:
        """Bytes of all caches."""
        return sum(item.nbytes for cache in self._caches for item in cache)

    def join(self, cache: Cache | None = None, tokens: int | None = None) -> int:
        """Add a row: a copy of a prompt cache; see ``RaggedCache.join``."""
        self._settled("add a row")
        length = 0 if cache is None else cached_tokens(cache) if tokens is None else tokens
        self._caches.append(make_prompt_cache(self.model) if cache is None else copy.deepcopy(cache))
        self._lengths.append(length)
        self.owed.append([])
        return len(self) - 1

    def absorb(self, other: SeparateCaches) -> None:
        """Add all rows of another one, which then has none."""
        self._settled("add rows")
        other._settled("give rows away")
        self._caches += other._caches
        self._lengths += other._lengths
        self.owed += other.owed
        other.filter([])

    def leave(self, row: int) -> Cache:
        """Take a row out and give its prompt cache back; the last row takes its place."""
        self._settled("take a row out")
        cache, owed = self._caches[row], self.owed[row]
        if owed:
            forward_rows(self.model, mx.array([owed]), cache)
            mx.eval([item.state for item in cache])
        self.drop(row)
        return cache

    def drop(self, row: int) -> None:
        """Take a row out and forget it; the last row takes its place."""
        last = len(self) - 1
        self.filter([last if r == row else r for r in range(last)])

    def filter(self, rows: list[int]) -> None:
        """Keep these rows, in this order."""
        self._settled("take rows out")
        self._caches = [self._caches[row] for row in rows]
        self._lengths = [self._lengths[row] for row in rows]
        self.owed = [self.owed[row] for row in rows]

    def forward(self, blocks: list[list[int]]) -> tuple[mx.array, mx.array | None]:
        """A forward a row; see ``RaggedCache.forward``, whose shapes these are."""
        self._settled("run a forward")
        if not any(blocks):
            raise ValueError("every block is empty: there is nothing to run.")
        fed = [owed + block for owed, block in zip(self.owed, blocks, strict=True)]
        self._blocks, width = blocks, max(map(len, blocks))
        self._checkpoints = [
            Checkpoint(cache, len(tokens)) if tokens else None for cache, tokens in zip(self._caches, fed, strict=True)
        ]
        try:
            read = [self._read(row, tokens) if tokens else None for row, tokens in enumerate(fed)]
            first = [len(owed) for owed in self.owed]
            logits = _stacked([None if r is None else r[0] for r in read], first, width)
            states = None if self.tap is None else _stacked([None if r is None else r[1] for r in read], first, width)
            return logits, states
        except BaseException:
            for checkpoint in self._checkpoints:
                if checkpoint is not None:
                    checkpoint.back_to(0)
            self._blocks = None
            raise

    def settle(self, kept: list[int]) -> None:
        """Keep the first ``kept[i]`` tokens of row i's block; see ``RaggedCache.settle``."""
        blocks = self._blocks
        if blocks is None:
            raise ValueError("there is no forward to settle.")
        if any(not 0 <= k <= len(block) for k, block in zip(kept, blocks, strict=True)):
            raise ValueError(f"cannot keep {kept} of blocks of {[len(block) for block in blocks]} tokens.")
        self._blocks = None
        for row, (block, count, checkpoint) in enumerate(zip(blocks, kept, self._checkpoints, strict=True)):
            fed, excess = self.owed[row] + block[:count], len(block) - count
            dropped = 0 if checkpoint is None else checkpoint.drop(excess)
            self.owed[row] = fed if dropped > excess else []
            self._lengths[row] += len(fed) - len(self.owed[row])

    def _read(self, row: int, tokens: list[int]) -> tuple[mx.array, mx.array | None]:
        inputs = mx.array([tokens], dtype=mx.uint32)
        if self.tap is None:
            return forward_rows(self.model, inputs, self._caches[row]), None
        with self.tap.reading() as seen:
            logits = forward_rows(self.model, inputs, self._caches[row])
        return logits, seen[-1]

    def _settled(self, intent: str) -> None:
        if self._blocks is not None:
            raise RuntimeError(f"the last forward was not settled: call settle() before you {intent}.")


def _stacked(rows: list[mx.array | None], first: list[int], width: int) -> mx.array:
    """``(1, M, …)`` of each row, None for no columns, to ``(B, width, …)``: from column ``first[i]`` on."""
    some = next(row for row in rows if row is not None)
    empty = mx.zeros((1, width, some.shape[-1]), some.dtype)
    own = [empty if row is None else row[:, start:] for row, start in zip(rows, first, strict=True)]
    return mx.concatenate([mx.pad(row, [(0, 0), (0, width - row.shape[1]), (0, 0)]) for row in own])
