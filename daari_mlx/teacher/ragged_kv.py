"""Keys and values of many rows, left-aligned, each row at its own offset; rolling a row back moves a counter only.

Nothing is zeroed or moved: what lies behind a row's length is masked, and will be written over.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache, create_attention_mask

from daari_mlx.teacher.span import Span

STEP = 256  # tokens that storage grows by, as mlx-lm's
SLOTS = 4  # rows that it grows by
Arrays = list[mx.array]


def rounded_up(count: int, step: int) -> int:
    """``count``, or the next multiple of ``step``."""
    return -(-count // step) * step


class RaggedKV:
    """Many rows of mlx-lm's ``KVCache``. Storage is ``(slots, heads, room, width)``: rows and tokens to spare.

    Models call :meth:`update_and_fetch`, :meth:`make_mask` and :attr:`offset`, as of any cache of mlx-lm; the other
    methods are for the owner, :class:`daari_mlx.teacher.ragged.RaggedCache`.
    """

    kind = "KVCache"

    def __init__(self) -> None:
        self.keys: mx.array | None = None
        self.values: mx.array | None = None
        self.span = Span([], [])
        self.slots, self.room = 0, 0
        self._written = 0  # columns of the present forward

    # what models call

    @property
    def offset(self) -> Any:
        """How many tokens each row holds: ``(B,)`` int32, or an int where there is one row."""
        return self.span.after(self._written)

    @property
    def state(self) -> Any:
        return self.keys, self.values

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write ``(B, H, m, D)`` keys and values behind every row; all that is kept comes back."""
        if self.keys is None:
            self._allocate(keys, values)
        count = keys.shape[2]
        self._write(keys, values, count)
        self._written += count
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        assert self.keys is not None and self.values is not None
        rows, end = len(self.span), min(self.room, self.span.longest + self._written)
        return self.keys[:rows, :, :end], self.values[:rows, :, :end]

    def make_mask(self, count: int, return_array: bool = False, window_size: int | None = None) -> Any:
        """What the next ``count`` columns see: ``(B, 1, count, tokens)`` bool; for one row, what mlx-lm gives."""
        if len(self.span) == 1:
            return create_attention_mask(count, offset=self.offset, return_array=return_array, window_size=window_size)
        return self.span.mask(self._written, count, window_size)

    def empty(self) -> bool:
        return self.keys is None

    # what the owner calls

    def stand(self, span: Span) -> None:
        """Be told where the rows stand, after every change."""
        self.span, self._written = span, 0

    def begin(self, span: Span) -> None:
        """Get ready for a forward."""
        self.stand(span)
        self._reserve(span.longest + span.width, span.width)

    def settle(self, complete: list[bool]) -> None:
        """After a forward: nothing to do, as the next span says what counts."""

    def fit(self, rows: int, longest: int) -> None:
        """Have slots for ``rows`` rows of up to ``longest`` tokens.

        Slots grow in steps, and storage shrinks only where half of it is not needed: rows come and go all the time.
        """
        if not rows:
            self.keys = self.values = None
            self.slots = self.room = 0
            return
        slots, room = self._size(rows, longest)
        self._resize(slots, room if room <= self.room // 2 else self.room)

    def bytes_for(self, rows: int, longest: int, single: Any) -> int:
        """What so many rows, the longest of so many tokens, will take.

        Args:
            single: mlx-lm's own cache of a row, with any tokens in it.
        """
        if single.keys is None:
            return 0
        slots, room = self._size(rows, longest)
        a_token = (single.keys.nbytes + single.values.nbytes) // single.keys.shape[2]
        return slots * max(room, self.room) * a_token

    def _size(self, rows: int, longest: int) -> tuple[int, int]:
        slots = rounded_up(rows, SLOTS if rows > 2 else 1)
        return self.slots if self.slots // 2 < slots <= self.slots else slots, self._room_for(longest, 1)

    def join(self, row: int, single: Any, length: int) -> None:
        """Copy a row's own cache of mlx-lm into slot ``row``."""
        self._reserve(length, 1)
        if single is None or single.keys is None or not length:
            return
        if self.keys is None:
            self._allocate(single.keys, single.values)
        self._put(row, self._tokens(single, length), length)

    def absorb(self, row: int, other: Any, rows: list[int], lengths: list[int]) -> None:
        """Copy some rows of ``other``, of these lengths, into the slots from ``row`` on."""
        longest = max(lengths, default=0)
        self._reserve(longest, 1)
        if other.keys is None:
            return
        if self.keys is None:
            self._allocate(other.keys, other.values)
        self._put_rows(row, other, rows, longest)

    def lift(self, row: int, length: int) -> Arrays:
        """Copies of a row's keys and values, in the order of its tokens; none where it holds none."""
        if self.keys is None or self.values is None or not length:
            return []
        # a product makes new arrays; a slice would share the storage, and the next write copy it all
        return [x[row : row + 1, :, :length] * 1 for x in (self.keys, self.values)]

    def single(self, lifted: Arrays, length: int) -> Any:
        """mlx-lm's own cache of one row that was lifted."""
        cache = KVCache()
        if lifted:
            cache.keys, cache.values = lifted
            cache.offset = length
        return cache

    def drop(self, row: int, last: int, lifted: Arrays, length: int) -> None:
        """Let ``row`` go and put the last row, which was lifted, into its place."""
        if row != last and lifted:
            self._put(row, lifted, length)

    def select(self, rows: list[int]) -> None:
        """Keep these rows, in this order."""
        if rows == list(range(len(rows))):
            return
        self.slots = len(rows)
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys[mx.array(rows)], self.values[mx.array(rows)]

    @property
    def nbytes(self) -> int:
        return 0 if self.keys is None or self.values is None else self.keys.nbytes + self.values.nbytes

    # how tokens lie

    def _reserve(self, end: int, width: int) -> None:
        """Have room for ``end`` tokens a row, the last ``width`` of which may be rolled back."""
        if not self._holds(end, width):
            self._resize(self.slots, self._room_for(end, width))

    def _holds(self, end: int, width: int) -> bool:
        return end <= self.room

    def _room_for(self, end: int, width: int) -> int:
        return rounded_up(end, STEP)

    def _allocate(self, keys: mx.array, values: mx.array) -> None:
        self.keys, self.values = (
            mx.zeros((self.slots, x.shape[1], self.room, x.shape[3]), x.dtype) for x in (keys, values)
        )

    def _resize(self, slots: int, room: int) -> None:
        if (slots, room) == (self.slots, self.room):
            return
        self.slots, self.room = slots, room
        if self.keys is not None and self.values is not None:
            self.keys, self.values = (self._moved(x, slots, room) for x in (self.keys, self.values))

    def _moved(self, storage: mx.array, slots: int, room: int) -> mx.array:
        """The same rows and tokens in new storage of another size."""
        new = mx.zeros((slots, storage.shape[1], room, storage.shape[3]), storage.dtype)
        slots, room = min(slots, storage.shape[0]), min(room, storage.shape[2])
        new[:slots, :, :room] = storage[:slots, :, :room]
        return new

    def _write(self, keys: mx.array, values: mx.array, count: int) -> None:
        assert self.keys is not None and self.values is not None
        if self.span.level:
            start = self.span.longest + self._written
            self.keys[: len(self.span), :, start : start + count] = keys
            self.values[: len(self.span), :, start : start + count] = values
            return
        self._scatter(keys, values, self.span.positions(self._written, count))

    def _scatter(self, keys: mx.array, values: mx.array, places: mx.array) -> None:
        assert self.keys is not None and self.values is not None
        for storage, new in ((self.keys, keys), (self.values, values)):
            if new.size:  # MLX dies of writing nothing, and some layers keep values of width 0
                storage[self.span.rows, :, places] = new.swapaxes(1, 2)

    def _tokens(self, single: Any, length: int) -> Arrays:
        return [single.keys[..., :length, :], single.values[..., :length, :]]

    def _put(self, row: int, tokens: Arrays, length: int) -> None:
        assert self.keys is not None and self.values is not None
        for storage, new in zip((self.keys, self.values), tokens, strict=True):
            storage[row : row + 1, :, :length] = new

    def _put_rows(self, row: int, other: Any, rows: list[int], longest: int) -> None:
        assert self.keys is not None and self.values is not None
        for storage, new in zip((self.keys, self.values), (other.keys, other.values), strict=True):
            storage[row : row + len(rows), :, :longest] = new[mx.array(rows), :, :longest]
