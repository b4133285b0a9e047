"""Whether a teacher's rows can share forwards: known by name, or found out by a short trial, once a model.

A batch pads shorter blocks on the right, and turns every row by its own offset. Some architectures of mlx-lm let
padding into their state, or place all rows as the longest.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import make_prompt_cache

from daari_mlx.ground.evaluated import evaluated
from daari_mlx.teacher.kept import keep
from daari_mlx.teacher.quirks import model_type, refuses_blocks, refuses_unlike_rows
from daari_mlx.teacher.ragged import RaggedCache
from daari_mlx.teacher.ragged_kinds import refuses_rows

# differences that rounding makes, in standard deviations of a token's logits: (float32, 16 bits)
_ALONE = (0.005, 0.15)  # between a row in a batch and the row alone
_TRACE = (0.0005, 0.02)  # between two batches of equal shapes whose padding has other tokens


def why_alone(model: nn.Module) -> str | None:
    """Why rows of this model cannot share a batch, or None where they can.

    The first call for a model, as it is, tries a batch of two unlike rows: sixteen forwards of a few tokens.
    """
    return keep(model, "why_alone", lambda: _refusal(model))


def _refusal(model: nn.Module) -> str | None:
    reason = refuses_blocks(model) or refuses_unlike_rows(model)
    if reason is not None:
        return reason
    reason = refuses_rows(make_prompt_cache(model)) or _tried(model)
    return None if reason is None else f"{model_type(model)}: {reason}"


@dataclass
class _Round:
    """One round of the trial: a block of tokens a row, and how many of them are kept."""

    blocks: list[list[int]]
    kept: list[int]


_TRIAL = [  # every row has padding in one round or another, in what it keeps and in what it drops
    _Round([[3, 17, 42, 29], [5, 64, 7, 11, 70, 23, 38, 9, 51]], [4, 9]),
    _Round([[12, 81, 33, 6, 90], [26, 47, 15]], [2, 3]),
    _Round([[58], [72, 19, 44]], [1, 1]),
    _Round([[31, 8], [66]], [2, 1]),
]


class _Filled(RaggedCache):
    """Rows whose padding, and whose tokens behind those to keep, are one token of choice."""

    token = 1

    def _filler(self, tokens: list[int]) -> int:
        return self.token


def _tried(model: nn.Module) -> str | None:
    """What is wrong with a padded batch of two unlike rows, or None."""
    try:
        one, other = _read(model, [0, 1], 1), _read(model, [0, 1], 2)
        alone = [*_read(model, [0], 1), *_read(model, [1], 1)]
    except Exception as error:  # whatever an architecture makes of masks and offsets of several rows
        return f"a batch of two rows of unlike lengths fails: {type(error).__name__}: {error}"
    trace, difference = _apart(one, other), _apart(one, alone)
    exact = one[0].dtype == mx.float32
    if not trace <= _TRACE[0 if exact else 1]:
        return f"padding beside a longer row changes a row's logits, by {trace:.2g} of their standard deviation"
    if not difference <= _ALONE[0 if exact else 1]:
        return f"beside a longer row a row's logits differ from those alone, by {difference:.2g} standard deviations"
    return None


def _read(model: nn.Module, which: list[int], token: int) -> list[mx.array]:
    """The logits of all kept columns, ``(n, V)`` for each row, with this token as padding and in what is dropped."""
    rows = _Filled(model)
    rows.token = token
    found: list[list[mx.array]] = []
    for _ in which:
        rows.join()
        found.append([])
    for turn in _TRIAL:
        kept = [turn.kept[row] for row in which]
        blocks = [turn.blocks[row][: turn.kept[row]] for row in which]
        wide = [len(turn.blocks[row]) for row in which]
        logits, _ = rows.forward([b + [token] * (w - len(b)) for b, w in zip(blocks, wide, strict=True)])
        rows.settle(kept)
        for row, count in enumerate(kept):
            found[row].append(logits[row, :count])
        mx.eval(found)
    return [mx.concatenate(parts) for parts in found]


def _apart(some: list[mx.array], others: list[mx.array]) -> float:
    """The greatest difference between logits, in standard deviations of a token's logits; not a number where one is."""
    a, b = (np.concatenate([evaluated(x.astype(mx.float32)) for x in rows]) for rows in (some, others))
    spread = b.std(axis=-1, keepdims=True)
    return float(np.max(np.abs(a - b) / np.maximum(spread, np.finfo(np.float32).tiny)))
