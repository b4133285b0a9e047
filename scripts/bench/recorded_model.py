"""What a drafting model says along recorded streams, and a stand-in for it that drafts this again without the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daari_mlx.ground.progress import bar
from daari_mlx.measure.streams import Stream
from daari_mlx.teacher.follower import Follower

Said = tuple[list[int], list[float]]  # for each token of an answer: what the model would say there, its own probability


def record_drafts(model: Any, streams: Sequence[Stream]) -> list[Said]:
    """Let a model read every stream: one forward tells what it would say at each token of the answer."""
    follower, said = Follower(model), []
    for stream in bar(streams, desc="the model's drafts", unit="stream"):
        said.append(follower.look(stream.tokens[:-1], len(stream.answer)))
    return said


def save_drafts(said: Sequence[Said], path: Path) -> None:
    """Write what :func:`record_drafts` gave."""
    np.savez(
        path,
        lengths=[len(tokens) for tokens, _ in said],
        tokens=np.concatenate([tokens for tokens, _ in said]),
        promises=np.concatenate([promises for _, promises in said]).astype(np.float32),
    )


def load_drafts(path: Path) -> list[Said]:
    """Read what :func:`save_drafts` wrote."""
    with np.load(path) as arrays:
        ends = np.cumsum(arrays["lengths"])[:-1]
        tokens, promises = (np.split(arrays[name], ends) for name in ("tokens", "promises"))
    return [(t.tolist(), p.tolist()) for t, p in zip(tokens, promises, strict=True)]


@dataclass
class Bill:
    """What a stand-in's forwards would have taken, in units of the teacher's T(1)."""

    time: float = 0.0


class RecordedFollower(Follower):
    """Stands in for a model: says what was recorded, and counts what each forward would have cost.

    After a token that the teacher did not say, nobody recorded what the model would do: there it says what it said at
    the same place of the answer. Such tokens are never accepted; only how many are drafted can depend on them.

    Args:
        cost: what a forward of the model over so many rows takes, in units of the teacher's T(1).
        bill: where that is added up.
    """

    def __init__(self, cost: Callable[[int], float], bill: Bill) -> None:
        self.cost, self.bill = cost, bill
        self._held: list[int] = []

    def follow(self, stream: Stream, said: Said) -> None:
        """From now on, stand for what was said along this stream."""
        self.stream, self.said = stream, said

    def renew(self) -> None:
        """What was recorded does not change."""

    @property
    def takes_back(self) -> bool:
        """As models with ordinary caches do."""
        return True

    def behind(self, text: list[int]) -> int:
        """See :meth:`daari_mlx.teacher.follower.Follower.behind`."""
        if self._held == text:
            return 0
        return len(text) - min(self._shared(text), len(text) - 1)

    def look(self, text: list[int], rows: int = 1) -> Said:
        """See :meth:`daari_mlx.teacher.follower.Follower.look`."""
        if rows > 1 or self._held != text:
            self._pay(max(rows, self.behind(text)))
        self._held = list(text)
        places = [len(text) - rows + 1 + row - self.stream.start for row in range(rows)]
        last = len(self.said[0]) - 1
        return ([self.said[0][min(p, last)] for p in places], [self.said[1][min(p, last)] for p in places])

    def steps(self, text: list[int], limit: int) -> Iterator[tuple[int, float]]:
        """See :meth:`daari_mlx.teacher.follower.Follower.steps`."""
        for _ in range(limit):
            (token,), (promise,) = self.look(text)
            yield token, promise
            text = [*text, token]

    def _shared(self, text: list[int]) -> int:
        if text[: len(self._held)] == self._held:
            return len(self._held)
        return next((k for k, (a, b) in enumerate(zip(self._held, text, strict=False)) if a != b), len(text))

    def _pay(self, rows: int) -> None:
        self.bill.time += self.cost(rows)
