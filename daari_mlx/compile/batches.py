"""The teacher's states of many sequences by fewer forwards: shared prefixes once, sequences of like length together.

The states of a batch differ from those of single forwards by rounding, so who is with whom follows from the sequences
of a part alone, never from where a run was resumed. Padding is on the right, behind every position that is kept, and no
kept position looks there. Whether a model keeps to that is tried out once (:func:`choose`).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import asdict, dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from daari_mlx.ground.progress import Told
from daari_mlx.ground.types import FloatArray
from daari_mlx.teacher.load import PREFILL_STEP_SIZE, Teacher
from daari_mlx.teacher.quirks import blocks_until
from daari_mlx.teacher.tap import tap_model

ROWS = 16  # sequences a batch has at the most
NEW_TOKENS = 512  # padded tokens of a batch: enough to keep a GPU busy, and on a CPU more gains nothing
HELD_TOKENS = 8192  # of a batch's caches, the copies of its prefix included
PREFIX_TOKENS = 4096  # of the prefixes that are kept for the next parts
PADDING = 1.25  # the longest of a batch is at the most so many times its shortest
BOUND, BOUND_16_BIT = 1e-3, 0.1  # how far states may move, relative to their length: rounding moves them far less


@dataclass(frozen=True, slots=True)
class Piece:
    """A sequence whose states are wanted.

    Attributes:
        tokens: ``(L,)`` token ids.
        first: the first position whose state is wanted.
        prefix: how many of its first tokens come out of a shared cache; at most ``first``.
    """

    tokens: list[int]
    first: int
    prefix: int = 0


@dataclass(frozen=True, slots=True)
class Layout:
    """How forwards are laid out for one teacher, the same through the whole of an extraction.

    Attributes:
        prefixes: shared prefixes are computed once and their cache is copied.
        batches: sequences of like length go through one forward.
        difference: how far states moved when it was tried out, relative to their length; 0 where nothing is shared.
    """

    prefixes: bool
    batches: bool
    difference: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """For the record in the workdir."""
        return asdict(self)


class Reader:
    """Reads states in one layout.

    Args:
        teacher: whose.
        layer: ``"final"`` or a layer's index.
        layout: as :func:`choose` found it.
    """

    def __init__(self, teacher: Teacher, layer: int | str, layout: Layout) -> None:
        self._teacher, self._layer, self._layout = teacher, layer, layout
        self._limit = blocks_until(teacher.model)
        self._prefixes: OrderedDict[tuple[int, ...], list[Any]] = OrderedDict()

    def states(self, pieces: list[Piece], told: Told = lambda *_: None) -> list[FloatArray]:
        """For each piece its ``(L - first, H)`` float32 states; the same bits for the same pieces.

        ``told`` is called with (pieces done, pieces).
        """
        found: dict[int, FloatArray] = {}
        for batch in self.plan(pieces):
            found.update(zip(batch, self.together([pieces[i] for i in batch]), strict=True))
            told(len(found), len(pieces))
        return [found[i] for i in range(len(pieces))]

    def plan(self, pieces: list[Piece]) -> list[list[int]]:
        """Which pieces go through a forward together: those with an equal prefix, by length."""
        groups = [tuple(piece.tokens[: self._shared(piece)]) for piece in pieces]
        order = sorted(range(len(pieces)), key=lambda i: (groups[i], len(pieces[i].tokens), i))
        batches: list[list[int]] = []
        for i in order:
            if batches and groups[batches[-1][0]] == groups[i] and self._fits(pieces, batches[-1], i):
                batches[-1].append(i)
            else:
                batches.append([i])
        return batches

    def _fits(self, pieces: list[Piece], batch: list[int], i: int) -> bool:
        shared, length, rows = self._shared(pieces[i]), len(pieces[i].tokens), len(batch) + 1
        return (
            self._layout.batches
            and rows <= ROWS
            and rows * (length - shared) <= NEW_TOKENS
            and rows * length <= HELD_TOKENS
            and length - shared <= PADDING * (len(pieces[batch[0]].tokens) - shared)
            and not self._too_long(pieces[i])
        )

    def _shared(self, piece: Piece) -> int:
        return 0 if not self._layout.prefixes or self._too_long(piece) else piece.prefix

    def _too_long(self, piece: Piece) -> bool:
        """Whether its rows depend on the forward that they are in, so that it is best left alone."""
        return self._limit is not None and len(piece.tokens) > self._limit

    def together(self, pieces: list[Piece]) -> list[FloatArray]:
        """The states of pieces with an equal prefix, by one forward (in steps, where a single one is long)."""
        shared = self._shared(pieces[0])
        if len(pieces) == 1 and not shared:
            return [self._teacher.states(pieces[0].tokens, self._layer, pieces[0].first)]
        rows = np.zeros((len(pieces), max(len(p.tokens) for p in pieces) - shared), np.int32)
        for row, piece in zip(rows, pieces, strict=True):
            row[: len(piece.tokens) - shared] = piece.tokens[shared:]
        first = min(p.first for p in pieces) - shared
        cache = spread(self._prefix(pieces[0].tokens[:shared]), len(pieces)) if shared else None
        states = read_rows(self._teacher, self._layer, rows, cache, first)
        begin = shared + first
        return [np.array(s[p.first - begin : len(p.tokens) - begin]) for s, p in zip(states, pieces, strict=True)]

    def _prefix(self, tokens: list[int]) -> list[Any]:
        """The cache behind a prefix; kept for the next batches and parts that begin with it."""
        key = tuple(tokens)
        if key not in self._prefixes:
            self._prefixes[key] = _filled(self._teacher, tokens)
        self._prefixes.move_to_end(key)
        while len(self._prefixes) > 1 and sum(map(len, self._prefixes)) > PREFIX_TOKENS:
            self._prefixes.popitem(last=False)
        return self._prefixes[key]


def choose(teacher: Teacher, layer: int | str, pieces: list[Piece]) -> Layout:
    """The fullest layout whose states are those of single forwards, tried out on a few of a corpus's sequences."""
    probe = _probe(pieces)
    alone = [teacher.states(p.tokens, layer, p.first) for p in probe]
    bound = BOUND if _dtype(teacher) == mx.float32 else BOUND_16_BIT
    for prefixes, batches in ((True, True), (True, False), (False, True)):
        reader = Reader(teacher, layer, Layout(prefixes, batches))
        try:
            groups = [probe] if batches else [[p] for p in probe]
            tried = [states for group in groups for states in reader.together(group)]
        except Exception:  # whatever a model's own code makes of several rows or of a copied cache
            continue
        moved = max(_difference(a, b) for a, b in zip(tried, alone, strict=True))
        if moved <= bound:
            return Layout(prefixes, batches, moved)
    return Layout(False, False)


def _probe(pieces: list[Piece]) -> list[Piece]:
    """Short and long sequences of the commonest prefix, none longer than one forward takes."""
    short = [p for p in pieces if len(p.tokens) <= PREFILL_STEP_SIZE] or pieces[:1]
    counts: dict[int, int] = {}
    for piece in short:
        counts[piece.prefix] = counts.get(piece.prefix, 0) + len(piece.tokens[: piece.prefix])
    commonest = max(sorted(counts), key=lambda prefix: counts[prefix])
    head = next(p.tokens[:commonest] for p in short if p.prefix == commonest)
    group = sorted((p for p in short if p.prefix == commonest and p.tokens[:commonest] == head), key=_length)
    return [group[k] for k in sorted({0, len(group) // 2, len(group) - 1})]


def _length(piece: Piece) -> int:
    return len(piece.tokens)


def _difference(states: FloatArray, expected: FloatArray) -> float:
    """The largest distance of a state from the expected one, relative to its length; infinite for what is no number."""
    lengths = np.linalg.norm(expected, axis=1)
    moved = np.linalg.norm(states - expected, axis=1) / np.maximum(lengths, 1e-12)
    return float(moved.max()) if np.isfinite(moved).all() else float("inf")


def _dtype(teacher: Teacher) -> mx.Dtype:
    from mlx.utils import tree_flatten

    leaves: list[tuple[str, mx.array]] = tree_flatten(teacher.model.parameters())  # type: ignore[assignment]
    kinds = {value.dtype for _, value in leaves}
    return next((k for k in (mx.bfloat16, mx.float16) if k in kinds), mx.float32)


def read_rows(teacher: Teacher, layer: int | str, rows: Any, cache: list[Any] | None, first: int) -> FloatArray:
    """States of a block of rows.

    Args:
        rows: ``(B, L)`` int32 token ids, padded on the right.
        cache: what lies before them; None for nothing.
        first: the first column whose states are wanted.

    Returns:
        ``(B, L - first, H)`` float32.
    """
    from mlx_lm.models.cache import make_prompt_cache

    tap, _ = tap_model(teacher.model, layer)
    length = rows.shape[1]
    cache = cache or make_prompt_cache(teacher.model)
    parts = []
    for start in range(0, length, PREFILL_STEP_SIZE):
        with tap.reading() as seen:
            teacher.model(mx.array(rows[:, start : start + PREFILL_STEP_SIZE]), cache=cache)
        wanted = seen[-1][:, max(0, first - start) :].astype(mx.float32)
        mx.eval(wanted, [c.state for c in cache] if start + PREFILL_STEP_SIZE < length else [])
        parts.append(np.array(wanted))
    return np.concatenate(parts, axis=1)


def _filled(teacher: Teacher, tokens: list[int]) -> list[Any]:
    """A cache that holds these tokens."""
    from mlx_lm.models.cache import make_prompt_cache

    cache = make_prompt_cache(teacher.model)
    for start in range(0, len(tokens), PREFILL_STEP_SIZE):
        teacher.model(mx.array([tokens[start : start + PREFILL_STEP_SIZE]]), cache=cache)
        mx.eval([c.state for c in cache])
    return cache


def spread(value: Any, rows: int) -> Any:
    """A copy of a prompt cache of one row for ``rows`` rows; whatever is written to it leaves the original alone."""
    if isinstance(value, (list, tuple)):
        return type(value)(spread(item, rows) for item in value)
    if isinstance(value, mx.array):
        one = value.ndim > 0 and value.shape[0] == 1
        return mx.broadcast_to(value, (rows, *value.shape[1:])) if one else mx.array(value)
    if not hasattr(value, "__dict__"):
        return value
    twin = object.__new__(type(value))
    twin.__dict__ = {name: spread(item, rows) for name, item in vars(value).items()}
    return twin
