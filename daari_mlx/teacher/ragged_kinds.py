"""Which of mlx-lm's caches have a form for many rows, and whether a cache of one row is this model's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from daari_mlx.ground.errors import DaariError
from daari_mlx.teacher.ragged_arrays import RaggedArrays
from daari_mlx.teacher.ragged_kv import RaggedKV
from daari_mlx.teacher.ragged_window import RaggedWindow
from daari_mlx.teacher.rewind import Cache, leaves

KINDS: dict[str, Callable[[Any], Any]] = {
    RaggedKV.kind: lambda _: RaggedKV(),
    RaggedWindow.kind: lambda leaf: RaggedWindow(leaf.max_size),
    RaggedArrays.kind: lambda leaf: RaggedArrays(len(leaf.cache)),
}


def refuses_rows(cache: Cache) -> str | None:
    """Why several rows cannot share a cache of these kinds, or None where they can."""
    for leaf in leaves(cache):
        kind = type(leaf).__name__
        if kind not in KINDS:
            return f"{kind} has no form for several rows"
        if kind == RaggedWindow.kind and leaf.keep:
            return f"max_kv_size: a sliding window that keeps its first {leaf.keep} tokens has no form for several rows"
    return None


def ragged(item: Any) -> Any:
    """The form for many rows of a layer's cache, lists of caches included."""
    inner = getattr(item, "caches", None)
    if inner is None:
        return KINDS[type(item).__name__](item)
    return type(item)(*map(ragged, inner))


def nested(shape: Any, singles: Iterator[Any]) -> list[Any]:
    """The single caches in the lists that ``shape`` has."""
    return [type(item)(*nested(item.caches, singles)) if hasattr(item, "caches") else next(singles) for item in shape]


def check_singles(singles: list[Any], own: list[Any], length: int) -> None:
    """See that the layers of a prompt cache are such as this model makes.

    Args:
        singles: mlx-lm's caches of one row, that hold ``length`` tokens.
        own: what the model makes itself, with any tokens.

    Raises:
        DaariError: other kinds, other shapes, or unlike numbers of tokens.
    """
    kinds, wanted = ([type(single).__name__ for single in some] for some in (singles, own))
    if kinds != wanted:
        raise DaariError(
            f"This prompt cache is not this model's: it has {len(kinds)} of {', '.join(sorted({*kinds}))}; "
            f"the model makes {len(wanted)} of {', '.join(sorted({*wanted}))}."
        )
    for single, layer in zip(singles, own, strict=True):
        if single.empty() or layer.empty():
            continue
        held = getattr(single, "offset", length)
        if held != length:
            raise DaariError(f"This prompt cache is damaged: {length} tokens in one layer, {held} in another.")
        if _shapes(single) != _shapes(layer):
            raise DaariError(f"This prompt cache is not this model's: {_shapes(single)}, not {_shapes(layer)}.")


def _shapes(single: Any) -> list[tuple[int, ...] | None]:
    """The shapes of a layer's arrays, but for how many tokens they hold."""
    if hasattr(single, "keys"):
        return [(*x.shape[:2], x.shape[3]) for x in (single.keys, single.values)]
    return [None if x is None else x.shape for x in single.cache]
