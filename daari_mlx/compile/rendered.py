"""The rows of an extraction as its first run rendered them.

A chat template may print a clock, so the same rows have other tokens tomorrow, or on another rank: what was recorded
counts, and a resumed run comes to the bytes of one that nobody stopped.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np

from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.files import load_arrays, save_arrays
from daari_mlx.ground.types import IntArray
from daari_mlx.teacher.ranks import Alone
from daari_mlx.text.data import Prompt, Sequence
from daari_mlx.text.identity import tokens_hash

Rows = list[Sequence] | list[Prompt]


def rendered_rows(rows: Rows, path: Path, crew: Alone) -> Rows:
    """The rows with their recorded tokens, the same on every rank; those that are not recorded yet are recorded now.

    Args:
        rows: that say what the recorded ones say, in the same order.
        path: of the record, in the folder of this run.
        crew: the ranks of this run; the record is the first rank's.

    Raises:
        DaariError: the record is damaged.
    """
    crew.gather([path], everyone=True)
    for _ in crew.mine([path]):
        save_arrays(
            path,
            {
                "tokens": np.array([token for row in rows for token in row.tokens], np.int32),
                "ends": np.cumsum([len(row.tokens) for row in rows], dtype=np.int64),
                "starts": np.array([answer_start(row) for row in rows], np.int64),
            },
        )
    crew.gather([path], everyone=True)
    arrays = load_arrays(path)
    try:
        parts = np.split(arrays["tokens"], arrays["ends"][:-1])
        both: list[tuple[Sequence | Prompt, IntArray, int]] = list(
            zip([*rows], parts, arrays["starts"].tolist(), strict=True)
        )
    except (LookupError, TypeError, ValueError) as error:
        raise DaariError(f"{path} is damaged ({error}): remove the folder it lies in and extract again.") from error
    return cast(Rows, [_with(row, tokens.tolist(), start) for row, tokens, start in both])


def _with(row: Sequence | Prompt, tokens: list[int], start: int) -> Sequence | Prompt:
    return replace(row, tokens=tokens, answer_start=start) if isinstance(row, Sequence) else replace(row, tokens=tokens)


def answer_start(row: Sequence | Prompt) -> int:
    """Where its answer starts, or will."""
    return row.answer_start if isinstance(row, Sequence) else len(row.tokens)


def rendered_hash(rows: Rows) -> str:
    """The hash over rendered rows by which older versions knew a corpus."""
    return tokens_hash((row.tokens, answer_start(row)) for row in rows)
