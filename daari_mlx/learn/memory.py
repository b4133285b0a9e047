"""The answers that are remembered: the newest within a number of bytes, and what of them becomes tables."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np

from daari_mlx.graph.codepoints import BREAK_CHARACTER, as_text
from daari_mlx.graph.corpus import Corpus
from daari_mlx.graph.exemplars import Coarse
from daari_mlx.graph.nodes import Nodes
from daari_mlx.ground.types import FloatArray
from daari_mlx.learn.heard import Heard

COPIED = 2048  # tokens of the newest answers that are copied from while there is no graph
CROWDED, LEFT = 0.9, 0.8  # of the bytes: from where on answers go that are used least, and what is left of them then


class Memory:
    """Answers, oldest first.

    Args:
        max_bytes: that they may take together. The oldest go at once where they take more; before that, whoever has
            time lets those go that are used least, see :meth:`surplus`.
        answers: those that are known from before.

    Attributes:
        heard, forgotten: how many were added since, and how many are gone.
    """

    def __init__(self, max_bytes: int, answers: Iterable[Heard] = ()) -> None:
        self.max_bytes = max_bytes
        self.answers: deque[Heard] = deque(answers)
        self.nbytes = sum(one.nbytes for one in self.answers)
        self.heard = self.forgotten = 0
        self._forget()

    def __len__(self) -> int:
        return len(self.answers)

    @property
    def surplus(self) -> int:
        """Bytes that should go, least used first; 0 where there is room."""
        return int(self.nbytes - LEFT * self.max_bytes) if self.nbytes > CROWDED * self.max_bytes else 0

    def add(self, one: Heard) -> bool:
        """Remember an answer; whether others were forgotten for it."""
        self.answers.append(one)
        self.nbytes += one.nbytes
        self.heard += 1
        return self._forget()

    def _forget(self) -> bool:
        if self.nbytes <= self.max_bytes:
            return False
        while self.answers and self.nbytes > LEFT * self.max_bytes:
            self.nbytes -= self.answers.popleft().nbytes
            self.forgotten += 1
        return True

    def hold(self, answers: Iterable[Heard]) -> None:
        """Hold these in place of those that are remembered: some of the same, or the same with reduced states."""
        before = len(self.answers)
        self.answers = deque(answers)
        self.forgotten += before - len(self.answers)
        self.nbytes = sum(one.nbytes for one in self.answers)
        self._forget()


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


def newest_text(answers: Sequence[Heard]) -> str:
    """The newest answers as code points, each behind its prompt's last token and with a break after it."""
    texts: list[str] = []
    size = 0
    for one in reversed(answers):
        texts.append(as_text([int(one.prompt[-1]), *one.answer.tolist()]) + BREAK_CHARACTER)
        size += len(texts[-1])
        if size >= COPIED:
            break
    return "".join(reversed(texts))
