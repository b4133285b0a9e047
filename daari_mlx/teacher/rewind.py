"""Rewinding: take rows that the teacher did not agree with out of its cache, exactly, for every cache of mlx-lm.

Three ways, chosen for each cache object: *trim* where it can; *cut* for a rotating cache, which directly after a block
still holds every older key in order; *restore* from references taken before the block, for recurrent and other state.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import mlx.core as mx

Cache = list[Any]


def leaves(cache: Any) -> Iterator[Any]:
    """The single cache objects of a prompt cache, those inside a ``CacheList`` included."""
    for item in cache:
        inner = getattr(item, "caches", None)
        if isinstance(inner, (list, tuple)):
            yield from leaves(inner)
        else:
            yield item


def cached_tokens(cache: Cache) -> int:
    """How many tokens the cache stands for, by the objects in it that count them; 0 where none does."""
    return max((int(getattr(leaf, "offset", 0) or 0) for leaf in leaves(cache)), default=0)


def is_rotating(leaf: Any) -> bool:
    """Whether this is mlx-lm's sliding-window cache."""
    return isinstance(leaf, _rotating_class())


@functools.cache
def _rotating_class() -> type[Any]:
    """Looked up once: the question is asked for every layer in every round."""
    from mlx_lm.models.cache import RotatingKVCache

    return RotatingKVCache


def can_drop_one(cache: Cache) -> bool:
    """Whether the last row can be taken out again after a one-row forward, whatever came before."""
    return all(not is_rotating(leaf) and _trims(leaf) for leaf in leaves(cache))


def refuses_drafts(cache: Cache) -> str | None:
    """Why blocks of several rows would change this cache's answers, or None.

    A rotating cache that keeps its first tokens (``max_kv_size``) masks them out in a block of rows but not in a single
    row, so verified tokens would differ from plain decoding.
    """
    for leaf in leaves(cache):
        if is_rotating(leaf) and leaf.keep > 0:
            return f"max_kv_size: with keep={leaf.keep} a block of rows sees other tokens than a single row does"
    return None


def drop_last(cache: Cache, rows: int) -> bool:
    """Take the last ``rows`` rows out, whenever they came; False, with nothing done, where this cache cannot."""
    if rows and not all(_can_drop(leaf, rows) for leaf in leaves(cache)):
        return False
    for leaf in leaves(cache):
        _cut(leaf, rows)
    return True


class Checkpoint:
    """Where a cache stood before a block of rows, so that any number of its last rows can be dropped.

    Take it directly before the forward of the block; call :meth:`drop` directly after.

    Args:
        cache: the prompt cache.
        rows: how many rows the block has.
        singly: they come one at a time, as a drafting model's do; there is then no way back but ``back_to(0)``.
    """

    def __init__(self, cache: Cache, rows: int, *, singly: bool = False) -> None:
        self.rows, self._singly = rows, singly
        self._cache = cache
        found = list(leaves(cache))
        self._offsets = [getattr(leaf, "offset", None) for leaf in found]
        self._saved = [self._save(leaf) for leaf in found]

    def _save(self, leaf: Any) -> Any:
        if is_rotating(leaf):  # a single row is written over an old one in place
            if self._singly:
                return _Window(leaf)
            return None if self.rows > 1 else _Slot(leaf)
        return None if _trims(leaf) else _copy(leaf)

    @property
    def exact(self) -> bool:
        """Whether :meth:`drop` takes out exactly the rows asked for; else it takes out the whole block."""
        return all(saved is None for saved in self._saved)

    def drop(self, rows: int) -> int:
        """Take the last ``rows`` rows out and return how many were: all of the block where a state must be restored."""
        if rows == 0:
            return 0
        rows = rows if self.exact else self.rows
        for leaf, saved in zip(leaves(self._cache), self._saved, strict=True):
            if saved is None:
                _cut(leaf, rows)
            else:
                _restore(leaf, saved)
        return rows

    def back_to(self, rows: int) -> None:
        """Leave ``rows`` rows more in the cache than there were at the checkpoint, however many came since.

        For after a failure between two layers, or a loop that ran ahead. Where a state must be restored, only
        ``rows=0`` can be asked for.
        """
        for leaf, offset, saved in zip(leaves(self._cache), self._offsets, self._saved, strict=True):
            if saved is not None:
                _restore(leaf, saved)
            elif offset is not None and leaf.offset > offset + rows:
                _cut(leaf, leaf.offset - offset - rows)


def _trims(leaf: Any) -> bool:
    return not is_rotating(leaf) and hasattr(leaf, "is_trimmable") and bool(leaf.is_trimmable())


def _can_drop(leaf: Any, rows: int) -> bool:
    """Whether the last ``rows`` rows of one leaf can be taken out, whenever they came."""
    if is_rotating(leaf) or not _trims(leaf):
        return False
    if leaf.empty():
        return True
    left = leaf.offset - rows
    chunk = getattr(leaf, "chunk_size", None)
    if chunk is not None:  # it has dropped what lies before the current chunk: no way back into an earlier one
        return left >= 0 and left // chunk * chunk >= leaf.start_position
    return left >= 0


def _cut(leaf: Any, rows: int) -> None:
    """Drop the last ``rows`` rows of one leaf; a leaf that never took part (shared layers) stays empty."""
    if rows == 0 or leaf.empty():
        return
    if is_rotating(leaf):
        end, offset = leaf._idx - rows, leaf.offset - rows
        # with a whole block gone one key is missing that nobody will look at: mlx-lm still counts on its place
        lost = min(offset, leaf.max_size) - end
        leaf.keys, leaf.values = (_padded(x[..., :end, :], lost) for x in (leaf.keys, leaf.values))
        leaf.offset, leaf._idx = offset, end + max(lost, 0)
        return
    trimmed = leaf.trim(rows)
    if trimmed != rows:
        raise RuntimeError(f"{type(leaf).__name__}.trim({rows}) took out {trimmed} rows: this cache cannot be rewound.")
    if type(leaf).__name__ == "ConcatenateKVCache":  # its trim moves only the offset: the keys would come back
        leaf.keys, leaf.values = leaf.keys[..., : leaf.offset, :], leaf.values[..., : leaf.offset, :]


def _padded(rows: mx.array, count: int) -> mx.array:
    """``count`` empty rows, then ``rows``."""
    if count <= 0:
        return rows
    shape = (*rows.shape[:-2], count, rows.shape[-1])
    return mx.concatenate([mx.zeros(shape, rows.dtype), rows], axis=-2)


class _Slot:
    """A rotating cache before a single row, and the row that the new one will be written over."""

    def __init__(self, leaf: Any) -> None:
        self.before = (leaf.keys, leaf.values, leaf.offset, leaf._idx)
        self.at = leaf.keep if leaf._idx == leaf.max_size else leaf._idx
        self.old: list[mx.array] = []
        held = 0 if leaf.keys is None else leaf.keys.shape[2]
        grows = leaf.offset >= held and held < leaf.max_size
        if not grows and held <= leaf.max_size:  # else the row goes into new arrays
            # a product, started before the write: a mere slice would share the buffer, and the write would copy it all
            self.old = [x[..., self.at : self.at + 1, :] * 1 for x in (leaf.keys, leaf.values)]
            mx.async_eval(self.old)

    def restore(self, leaf: Any) -> None:
        leaf.keys, leaf.values, leaf.offset, leaf._idx = self.before
        for array, old in zip((leaf.keys, leaf.values), self.old, strict=False):
            array[..., self.at : self.at + 1, :] = old


class _Window:
    """A whole rotating cache before any number of single rows."""

    def __init__(self, leaf: Any) -> None:
        # reshape makes arrays of their own, which writes into the cache's do not reach
        self.arrays = [None if x is None else x.reshape(x.shape) for x in (leaf.keys, leaf.values)]
        self.place = (leaf.offset, leaf._idx)

    def restore(self, leaf: Any) -> None:
        leaf.keys, leaf.values = self.arrays
        leaf.offset, leaf._idx = self.place


def _restore(leaf: Any, saved: Any) -> None:
    """Bring the caller's own cache object back to what was saved of it."""
    if isinstance(saved, (_Slot, _Window)):
        saved.restore(leaf)
        return
    leaf.__dict__.clear()
    leaf.__dict__.update(saved.__dict__)


def _copy(value: Any) -> Any:
    """Copy containers, cache objects and small arrays; share the large arrays.

    Sharing is free and exact: a forward makes new state arrays. Small arrays are updated in place (``-=``) by some
    caches.
    """
    if isinstance(value, (list, tuple)):
        return type(value)(_copy(item) for item in value)
    if isinstance(value, mx.array):
        return value if value.ndim > 2 else mx.array(value)
    if not hasattr(value, "__dict__"):
        return value
    twin = object.__new__(type(value))
    twin.__dict__ = {name: _copy(item) for name, item in vars(value).items()}
    return twin
