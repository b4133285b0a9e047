"""The answers that are remembered: the newest within a number of bytes, and what of them becomes tables."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np

from daari_mlx.graph.corpus import Corpus
from daari_mlx.graph.exemplars import Coarse
from daari_mlx.graph.nodes import Nodes, Projection
from daari_mlx.ground.types import FloatArray
from daari_mlx.learn.heard import Heard

LEFT = 0.8  # of the bytes, what is left once they are exceeded: then nothing goes for a while


class Memory:
    """Answers, oldest first.

    Args:
        max_bytes: that they may take together; the oldest go.
        answers: those that are known from before.
    """

    def __init__(self, max_bytes: int, answers: Iterable[Heard] = ()) -> None:
        self.max_bytes = max_bytes
        self.answers: deque[Heard] = deque(answers)
        self.nbytes = sum(one.nbytes for one in self.answers)
        self.forgotten = self._forget()

    def __len__(self) -> int:
        return len(self.answers)

    def add(self, one: Heard) -> bool:
        """Remember an answer; whether others were forgotten for it."""
        self.answers.append(one)
        self.nbytes += one.nbytes
        gone = self._forget()
        self.forgotten += gone
        return gone > 0

    def _forget(self) -> int:
        gone = 0
        if self.nbytes > self.max_bytes:
            while self.answers and self.nbytes > LEFT * self.max_bytes:
                self.nbytes -= self.answers.popleft().nbytes
                gone += 1
        return gone

    def reduce(self, projection: Projection) -> None:
        """Keep reduced states from here on."""
        self.answers = deque(one.through(projection) for one in self.answers)
        self.nbytes = sum(one.nbytes for one in self.answers)


def corpus_of(answers: Sequence[Heard], nodes: Nodes) -> Corpus:
    """The labelled corpus of some answers, in their order; their states are reduced."""
    states = reduced_states(answers)
    return Corpus(
        nodes.label(states),
        np.concatenate([one.tokens for one in answers]),
        np.array([len(one.states) for one in answers], np.int64),
        np.array([one.lead for one in answers], np.int64),
        np.concatenate([one.before for one in answers]),
        np.array([len(one.before) for one in answers], np.int64),
        Coarse.of(states),
    )


def reduced_states(answers: Sequence[Heard]) -> FloatArray:
    """``(n, D)`` float32: those of all of them, one after the other."""
    return np.concatenate([one.states for one in answers]).astype(np.float32)
