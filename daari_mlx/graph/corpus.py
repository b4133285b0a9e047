"""The labelled corpus: every answer's tokens, and the node of the state that chose each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from daari_mlx.graph.codepoints import BREAK
from daari_mlx.graph.exemplars import Coarse, no_states
from daari_mlx.ground.types import IntArray


@dataclass(frozen=True)
class Corpus:
    """Rows of S sequences, one sequence after the other; with R rows in all:

    Attributes:
        labels: ``(R,)`` int32, the node of each state.
        tokens: ``(R,)`` int32, the token chosen from it.
        rows: ``(S,)`` int64, how many rows each sequence has.
        lead: ``(S,)`` int64, how many of its first rows chose tokens of the prompt.
        before: the prompts' tokens ahead of each sequence's rows, one after the other, int32.
        before_rows: ``(S,)`` int64, how many of them each sequence has.
        states: of the first rows, as many as are known.
    """

    labels: IntArray
    tokens: IntArray
    rows: NDArray[np.int64]
    lead: NDArray[np.int64]
    before: IntArray
    before_rows: NDArray[np.int64]
    states: Coarse = field(default_factory=no_states)

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, sequences: Sequence[int] | NDArray[np.int64]) -> Corpus:
        """Some of the sequences, in this order."""
        chosen = np.asarray(sequences, dtype=np.int64)
        row, prompt = _spans(self.rows, chosen), _spans(self.before_rows, chosen)
        return Corpus(
            self.labels[row], self.tokens[row], self.rows[chosen], self.lead[chosen], self.before[prompt],
            self.before_rows[chosen], self.states.take(row),
        )  # fmt: skip

    def follows(self) -> NDArray[np.bool_]:
        """``(R,)``: whether the next row continues the sequence."""
        follows = np.ones(len(self.tokens), bool)
        follows[np.cumsum(self.rows)[self.rows > 0] - 1] = False
        return follows

    def answers(self) -> NDArray[np.bool_]:
        """``(R,)``: whether the row chose a token of the answer."""
        ends = np.cumsum(self.rows)
        return np.arange(len(self.tokens)) - np.repeat(ends - self.rows, self.rows) >= np.repeat(self.lead, self.rows)

    def text(self) -> tuple[IntArray, IntArray]:
        """The tokens with a ``BREAK`` behind every sequence, ``(R+S,)``, and the place of every row in them."""
        places = (np.arange(len(self.tokens)) + np.repeat(np.arange(len(self.rows)), self.rows)).astype(np.int32)
        text = np.full(len(self.tokens) + len(self.rows), BREAK, np.int32)
        text[places] = self.tokens
        return text, places


def _spans(lengths: NDArray[np.int64], chosen: NDArray[np.int64]) -> NDArray[np.int64]:
    """The indices of the items that belong to the chosen of some consecutive runs."""
    ends = np.cumsum(lengths)
    if len(chosen) == 0:
        return np.zeros(0, np.int64)
    return np.concatenate([np.arange(ends[k] - lengths[k], ends[k]) for k in chosen])
