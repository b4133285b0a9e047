"""Random numbers: where they stand, and how those that nobody should have used are given back."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import mlx.core as mx


class Draws:
    """MLX's random numbers of this thread, as every sampler of mlx-lm draws from."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def used(self) -> contextlib.AbstractContextManager[None]:
        """To be entered while something draws."""
        return contextlib.nullcontext()

    def mark(self) -> mx.array:
        """Where they stand: a key."""
        state: Any = mx.random.state
        key: mx.array = state[0]
        return key

    def back_to(self, mark: mx.array) -> None:
        """Make those that were drawn since available again; not from another thread, which has numbers of its own."""
        if threading.get_ident() == self._thread:
            _set_key(mark)


class OwnDraws(Draws):
    """Random numbers of one answer: what others draw in between does not change them.

    Args:
        seed: what is drawn is what ``mx.random.seed(seed)`` lets plain decoding draw.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._key: mx.array = mx.random.key(seed)
        self._inside = False

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        others = super().mark()
        _set_key(self._key)
        self._inside = True
        try:
            yield
        finally:
            self._key, self._inside = super().mark(), False
            _set_key(others)

    def mark(self) -> mx.array:
        return super().mark() if self._inside else self._key

    def back_to(self, mark: mx.array) -> None:
        self._key = mark


def _set_key(key: mx.array) -> None:
    high, low = ids(key)
    mx.random.seed(high << 32 | low)  # a key is its seed's two halves: this restores it


def ids(array: mx.array) -> list[int]:
    """A one-dimensional integer array as a list."""
    return [int(x) for x in array.tolist()]  # type: ignore[union-attr, arg-type]
