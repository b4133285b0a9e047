"""Sliding windows of many rows: a ring of places a row, wide enough that a roll-back still moves a counter only.

Position p of a row lies at place p modulo the room. A block of m columns writes over the positions one room earlier;
with room for the window and m - 1 tokens more, none of those is seen again, even by a row that drops the whole block.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import RotatingKVCache, create_attention_mask

from daari_mlx.teacher.ragged_kv import Arrays, RaggedKV, rounded_up

SPARE = 32  # columns of a block that a ring has places for, beyond its window; it grows by as many


class RaggedWindow(RaggedKV):
    """Many rows of mlx-lm's ``RotatingKVCache`` that keeps no first tokens.

    Args:
        window: how many tokens a column sees, itself included.
    """

    kind = "RotatingKVCache"

    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = window

    def make_mask(self, count: int, return_array: bool = False, window_size: int | None = None) -> Any:
        """What the next ``count`` columns see: ``(B, 1, count, places)`` bool; for one row None or "causal" if it can.

        A window wider than the cache's is cut to it, so that a column of a block sees what it would see alone.
        """
        window = min(window_size or self.window, self.window)
        end = self.span.longest + self._written + count
        if len(self.span) == 1 and end <= min(window, self.room):
            return create_attention_mask(count, offset=self.offset, return_array=return_array, window_size=None)
        if end <= self.room:
            return self.span.mask(self._written, count, window)
        return self.span.ring_mask(self._written, count, window, self.room)

    def lift(self, row: int, length: int) -> Arrays:
        if self.keys is None or self.values is None or not length:
            return []
        held = range(max(0, length - self.window), length)
        places = mx.array([p % self.room for p in held])
        return [mx.take(x[row : row + 1], places, axis=2) for x in (self.keys, self.values)]

    def single(self, lifted: Arrays, length: int) -> Any:
        cache = RotatingKVCache(self.window)
        if lifted:
            cache.keys, cache.values = lifted
            cache.offset, cache._idx = length, cache.keys.shape[2]
        return cache

    # how tokens lie

    def _room_for(self, end: int, width: int) -> int:
        return min(super()._room_for(end, width), self.window + rounded_up(max(width - 1, 1), SPARE))

    def _holds(self, end: int, width: int) -> bool:
        return end <= self.room or self.window + width - 1 <= self.room

    def _moved(self, storage: mx.array, slots: int, room: int) -> mx.array:
        """A ring of another size has each position at another place."""
        if self.span.longest > min(room, storage.shape[2]):
            last = mx.array(self.span.lengths)[:, None] - 1
            held = last - (last - mx.arange(room)) % room  # (B, room): the newest position that belongs there
            places = (held % storage.shape[2])[:, None, :, None]
            storage = mx.take_along_axis(storage[: len(self.span)], places, axis=2)
        return super()._moved(storage, slots, room)

    def _write(self, keys: mx.array, values: mx.array, count: int) -> None:
        if self.span.longest + self._written + count <= self.room:
            super()._write(keys, values, count)
        else:
            self._scatter(keys, values, self.span.places(self._written, count, self.room))

    def _tokens(self, single: Any, length: int) -> Arrays:
        return [single._temporal_order(x)[..., -self.window :, :] for x in (single.keys, single.values)]

    def _put(self, row: int, tokens: Arrays, length: int) -> None:
        assert self.keys is not None and self.values is not None
        count = tokens[0].shape[2]
        first = (length - count) % self.room
        ahead = min(count, self.room - first)  # up to the end of the ring; the others go to its beginning
        for storage, new in zip((self.keys, self.values), tokens, strict=True):
            storage[row : row + 1, :, first : first + ahead] = new[..., :ahead, :]
            if ahead < count:
                storage[row : row + 1, :, : count - ahead] = new[..., ahead:, :]

    def _put_rows(self, row: int, other: RaggedKV, rows: list[int], longest: int) -> None:
        room = max(self.room, other.room)
        self._resize(self.slots, room)
        other._resize(other.slots, room)
        super()._put_rows(row, other, rows, min(longest, room))
