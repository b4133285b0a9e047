"""What a shard is made of: which positions of which sequences, in which order, and the arrays that hold them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from daari_mlx.compile.batches import Piece, Reader
from daari_mlx.graph.nodes import Projection
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.progress import Told
from daari_mlx.ground.types import FloatArray
from daari_mlx.text.data import Sequence
from daari_mlx.text.identity import prompt_key
from daari_mlx.text.prefixes import shared_prefixes

LEAD = 1  # rows before the answer: the state that leads to the prompt's last token lets the first forward carry a draft


@dataclass(frozen=True, slots=True)
class Part:
    """The sequences of one shard.

    Attributes:
        sequences: in the order of their rows.
        prefixes: how many first tokens each of them has out of a shared cache.
    """

    sequences: list[Sequence]
    prefixes: list[int]

    @property
    def pieces(self) -> list[Piece]:
        """How each sequence is read; made anew, so that only the part at hand is in memory twice."""
        return [Piece(s.tokens[:-1], kept(s).start, n) for s, n in zip(self.sequences, self.prefixes, strict=True)]

    @property
    def tokens(self) -> int:
        """How many tokens the teacher answers for, those of shared prefixes included."""
        return sum(len(s.tokens) for s in self.sequences)

    @property
    def states(self) -> int:
        """How many states are kept."""
        return sum(len(kept(s)) for s in self.sequences)


def kept(sequence: Sequence) -> range:
    """The positions whose states are kept: those that an answer token was chosen from, and ``LEAD`` before them."""
    return range(max(0, sequence.answer_start - 1 - LEAD), len(sequence.tokens) - 1)


def cut(sequences: list[Sequence], size: int, seed: int) -> list[Part]:
    """The parts of a corpus, ``size`` sequences each, in an order drawn by ``seed``: any of them is a fair sample."""
    order = np.random.default_rng(seed).permutation(len(sequences))
    count = -(-len(order) // size)
    shared = shared_prefixes([s.tokens[: kept(s).start] for s in sequences], count)
    chosen = [order[k * size : (k + 1) * size] for k in range(count)]
    return [Part([sequences[i] for i in some], [shared[i] for i in some]) for some in chosen]


def read(reader: Reader, part: Part, told: Told = lambda *_: None) -> dict[str, np.ndarray]:
    """The arrays of one shard, with unreduced ``states`` ``(R, H)`` float32 in place of ``reduced``.

    Args:
        told: called with (sequences done, sequences).

    Raises:
        DaariError: the teacher gave something that is no number.
    """
    states = reader.states(part.pieces, told)
    for sequence, found in zip(part.sequences, states, strict=True):
        check_numbers(found, sequence)
    return {"states": np.concatenate(states), **rows_of(part.sequences)}


def check_numbers(states: FloatArray, sequence: Sequence) -> None:
    """Raise :class:`DaariError` where a state of a sequence holds what is no number, or none that fits a float32."""
    if not np.isfinite(states).all():
        raise DaariError(
            f"The teacher's states of {sequence.source} are not all finite numbers: nothing can be learnt from them. "
            "Its weights may be damaged, or too large for their type: take another --layer, or weights of another type."
        )


def rows_of(sequences: list[Sequence]) -> dict[str, np.ndarray]:
    """The arrays of one shard but for its states."""
    rows = [kept(s) for s in sequences]
    both = list(zip(sequences, rows, strict=True))
    return {
        "tokens": np.concatenate([np.array(s.tokens[row.start + 1 :], np.int32) for s, row in both]),
        "rows": np.array([len(row) for row in rows], np.int32),
        "before": np.concatenate([np.array(s.tokens[: row.start + 1], np.int32) for s, row in both]),
        "before_rows": np.array([row.start + 1 for row in rows], np.int32),
        "lead": np.array([max(0, s.answer_start - 1 - row.start) for s, row in both], np.int32),
        "prompts": np.array([prompt_key(s.prompt, s.identity) for s in sequences], np.uint64),
    }


def reduce(arrays: dict[str, np.ndarray], projection: Projection) -> dict[str, np.ndarray]:
    """The arrays of one shard as they are kept."""
    states: FloatArray = arrays.pop("states")
    # float16 moves a reduced state by 0.05 % at the most, far less than nodes lie apart, and halves the folder
    return {**arrays, "reduced": projection(states).astype(np.float16)}
