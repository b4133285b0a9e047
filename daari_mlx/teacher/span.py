"""Where the columns of one forward over many rows go: each row's come behind its own tokens.

Computed once a forward and shared by all layers: offsets, the places to write to, masks.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx


class Span:
    """The columns of one forward.

    Args:
        lengths: how many tokens of each row the cache holds.
        fed: how many columns of each row are tokens; the others, on the right, are padding.
        axes: how many axes of 1 masks have for the heads.

    Attributes:
        width: m, how many columns the forward has.
        longest: the greatest of ``lengths``.
        level: all rows hold equally many tokens.
        padded: some row has fewer tokens than columns.
    """

    def __init__(self, lengths: list[int], fed: list[int], axes: int = 1) -> None:
        self.lengths, self.fed, self._axes = lengths, fed, axes
        self.width, self.longest = max(fed, default=0), max(lengths, default=0)
        self.level = min(lengths, default=0) == self.longest
        self.padded = min(fed, default=0) < self.width
        self._kept: dict[tuple[Any, ...], Any] = {}

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def rows(self) -> mx.array:
        """``(B, 1)`` the rows' indices."""
        return self._keep("rows", lambda: mx.arange(len(self))[:, None])

    @property
    def columns(self) -> mx.array:
        """``(B,)`` int32: how many columns of each row are tokens."""
        return self._keep("columns", lambda: mx.array(self.fed, dtype=mx.int32))

    def after(self, written: int) -> Any:
        """Every row's offset after ``written`` columns: ``(B,)`` int32, or an int where there is one row."""
        if len(self) == 1:  # it stays a number: models then do what they do for plain decoding
            return self.lengths[0] + written
        return self._keep(("after", written), lambda: mx.array([n + written for n in self.lengths], dtype=mx.int32))

    def positions(self, written: int, count: int) -> mx.array:
        """``(B, count)`` int32: the positions of the next ``count`` columns in their rows."""

        def place() -> mx.array:
            start = self.after(written)
            return (start[:, None] if isinstance(start, mx.array) else start) + mx.arange(count)[None]

        return self._keep(("positions", written, count), place)

    def places(self, written: int, count: int, room: int) -> mx.array:
        """The same in rings of ``room`` places: position p lies at p modulo ``room``."""
        return self._keep(("places", written, count, room), lambda: self.positions(written, count) % room)

    def mask(self, written: int, count: int, window: int | None) -> mx.array:
        """``(B, 1, count, tokens)`` true where a column sees a token: its own and those before it, within a window."""

        def sees() -> mx.array:
            positions = self.positions(written, count)[..., None]
            tokens = mx.arange(self.longest + written + count)
            mask = tokens <= positions
            return self._headed(mask if window is None else mask & (tokens > positions - window))

        return self._keep(("mask", written, count, window), sees)

    def ring_mask(self, written: int, count: int, window: int, room: int) -> mx.array:
        """The same for such rings: ``(B, 1, count, places)``."""

        def sees() -> mx.array:
            positions = self.positions(written, count)
            last = positions[:, -1:]  # (B, 1)
            places = mx.arange(min(room, self.longest + written + count))
            held = (last - (last - places) % room)[:, None]  # (B, 1, places): the newest position that lies there
            positions = positions[..., None]
            return self._headed((held >= 0) & (held <= positions) & (held > positions - window))

        return self._keep(("ring", written, count, window, room), sees)

    def _headed(self, mask: mx.array) -> mx.array:
        return mx.expand_dims(mask, tuple(range(1, self._axes + 1)))

    def _keep(self, key: Any, make: Any) -> Any:
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]
