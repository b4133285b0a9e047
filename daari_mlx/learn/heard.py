"""A finished answer as it is learnt from: what was said, and the teacher's states that its tokens were chosen from."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daari_mlx.graph.nodes import Projection, scale_states
from daari_mlx.ground.types import FloatArray, IntArray

_HEAD = struct.Struct("<dIIIIB")  # time, prompt, answer, states, width, reduced
FRAME = 9  # bytes by which a log marks a record
BEFORE = 4096  # tokens of a prompt, from its end, that are kept: sources look no farther back


@dataclass(frozen=True, slots=True)
class Heard:
    """One answer.

    Attributes:
        prompt: ``(P,)`` int32, at least one token.
        answer: ``(A,)`` int32, at least one token.
        states: ``(A, width)`` float16, the states that the answer's tokens were chosen from; with one row more, the
            first is that which the prompt's last token was chosen from. Teacher states are scaled to unit root mean
            square; ``reduced`` ones went through a projection.
        reduced: whether they did.
        at: when it was said, in seconds since 1970.
    """

    prompt: IntArray
    answer: IntArray
    states: NDArray[np.float16]
    reduced: bool = False
    at: float = 0.0

    @property
    def lead(self) -> int:
        """How many rows stand before the answer's own: 0 or 1."""
        return len(self.states) - len(self.answer)

    @property
    def tokens(self) -> IntArray:
        """The token chosen from each state."""
        return np.concatenate([self.prompt[len(self.prompt) - self.lead :], self.answer])

    @property
    def before(self) -> IntArray:
        """The prompt's tokens ahead of those."""
        return self.prompt[: len(self.prompt) - self.lead]

    @property
    def nbytes(self) -> int:
        """What it takes, in memory or in a log."""
        return self.prompt.nbytes + self.answer.nbytes + self.states.nbytes + _HEAD.size + FRAME

    def through(self, projection: Projection) -> Heard:
        """The same with reduced states."""
        if self.reduced:
            return self
        reduced = projection(self.states.astype(np.float32)).astype(np.float16)
        return Heard(self.prompt, self.answer, reduced, True, self.at)

    def to_bytes(self) -> bytes:
        """For a log."""
        rows, width = self.states.shape
        head = _HEAD.pack(self.at, len(self.prompt), len(self.answer), rows, width, self.reduced)
        arrays = (self.prompt.astype("<i4"), self.answer.astype("<i4"), self.states.astype("<f2"))
        return head + b"".join(array.tobytes() for array in arrays)

    @classmethod
    def of_bytes(cls, data: bytes) -> Heard:
        """What :meth:`to_bytes` gave.

        Raises:
            ValueError: it is something else.
        """
        if len(data) < _HEAD.size:
            raise ValueError("too short")
        at, prompt, answer, rows, width, reduced = _HEAD.unpack_from(data)
        place = _HEAD.size
        if len(data) != place + 4 * (prompt + answer) + 2 * rows * width or rows - answer not in (0, 1):
            raise ValueError("its lengths do not agree")
        if not prompt or not answer or not width:
            raise ValueError("it is empty")
        tokens = np.frombuffer(data, "<i4", prompt + answer, place).astype(np.int32)
        states = np.frombuffer(data, "<f2", rows * width, place + 4 * (prompt + answer)).astype(np.float16)
        if (tokens < 0).any() or not np.isfinite(states).all():
            raise ValueError("it holds what is no token or no number")
        return cls(tokens[:prompt], tokens[prompt:], states.reshape(rows, width), bool(reduced), at)


def heard(prompt: Sequence[int], answer: Sequence[int], states: Sequence[Any], at: float) -> Heard | None:
    """What an answer taught; None where the states are not those of its tokens, or no numbers.

    Args:
        prompt, answer: token ids.
        states: ``(n, H)`` blocks, one after the other, as the rounds of the answer showed them.
        at: seconds since 1970.
    """
    if not prompt or not answer or not states:
        return None
    rows: FloatArray = np.concatenate([np.array(block, np.float32) for block in states])
    if len(rows) - len(answer) not in (0, 1) or not np.isfinite(rows).all():
        return None
    scaled = scale_states(rows).astype(np.float16)
    return Heard(np.array(prompt[-BEFORE:], np.int32), np.array(answer, np.int32), scaled, at=at)
