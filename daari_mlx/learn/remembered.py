"""What a learner remembers: answers in memory, and the same in a log where one is kept. It alone changes them.

Answers may come from any thread at any time. What takes long (to see what is used least, to reduce states, to write the
log anew) is done without holding them up; only the last step, with what came meanwhile, is not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import NamedTuple

from daari_mlx.graph.nodes import Projection
from daari_mlx.ground.errors import DaariError
from daari_mlx.learn.fading import first_to_go
from daari_mlx.learn.heard import Heard
from daari_mlx.learn.log import Log
from daari_mlx.learn.memory import Memory

RAW_ROWS, RAW_BYTES = 8192, 32 << 20  # states, and their bytes, that directions are fitted on; then those stay
PATIENCE = 16  # answers after which a log that could not be written is tried again


class Known(NamedTuple):
    """What is remembered at some moment.

    Attributes:
        answers: oldest first.
        fresh: how many of the newest no table was counted of.
        heard: how many answers had been heard.
    """

    answers: list[Heard]
    fresh: int
    heard: int


class Remembered:
    """The answers of one learner.

    Args:
        memory_bytes: that they may take, in memory and in the log each.
        width: H, of the teacher's states.
        projection: that states are reduced by; None while they are few, then :meth:`settle` gives it.
        log: that keeps them, or None. What it holds is remembered, as far as it is of such states.

    Attributes:
        memory: the answers.
        projection: see above.
        fresh: how many of the newest answers no table was counted of.
        trouble: why the log lacks some of them, or None.
    """

    def __init__(self, memory_bytes: int, width: int, projection: Projection | None, log: Log | None = None) -> None:
        self.projection = log.projection if log is not None and projection is None else projection
        self.fresh = 0
        self.trouble = None if log is None else log.trouble
        self._log = log
        found = [] if log is None else log.take()
        self.memory = Memory(memory_bytes, _of_one_kind(found, width, self.projection))
        self._mutex = threading.Lock()  # of all of it
        self._behind = len(found) != len(self.memory)  # whether the log holds other answers than memory does
        self._lacks = False  # whether the log lacks the newest answers, since they could not be written
        self._patience = 0  # answers to hear before the log is written anew

    def hear(self, one: Heard) -> None:
        """Remember an answer."""
        one = _reduced(one, self.projection)
        with self._mutex:
            one = _reduced(one, self.projection)  # which may have come meanwhile
            self._behind |= self.memory.add(one)
            self.fresh = min(self.fresh + 1, len(self.memory))
            self._patience = max(0, self._patience - 1)
            if self._log is not None:
                self._behind |= self._log.nbytes + one.nbytes > self._log.head + self.memory.max_bytes
                if not self._lacks:  # what is too much goes later; what was said is kept at once
                    self._lacks = not self._try(self._log.append, one)
                    self._behind |= self._lacks

    def known(self) -> Known:
        """The answers as they are now."""
        with self._mutex:
            return Known(list(self.memory.answers), self.fresh, self.memory.heard)

    def newest(self) -> list[Heard]:
        """The fresh answers."""
        known = self.known()
        return known.answers[len(known.answers) - known.fresh :]

    def counted(self, heard: int) -> None:
        """Tables know all answers but those that came since so many had been heard."""
        with self._mutex:
            self.fresh = min(self.memory.heard - heard, len(self.memory))

    def tidy(self, at_once: bool = False) -> None:
        """Let go of what is used least where bytes are few, and bring the log up to what is remembered.

        Args:
            at_once: whether to try again at once to write a log that could not be written.
        """
        surplus = self.memory.surplus
        if surplus or (self._behind and self._log is not None and (at_once or self._patience == 0)):
            self._renew(self.projection, surplus)

    def settle(self, projection: Projection) -> None:
        """Once there are many states, keep them reduced by these directions."""
        rows = sum(len(one.states) for one in self.known().answers)
        if self.projection is None and (rows >= RAW_ROWS or self.memory.nbytes >= RAW_BYTES):
            self._renew(projection, 0)

    def close(self) -> None:
        """Bring the log up to what is remembered, and let go of it."""
        self.tidy(at_once=True)
        self._log = None

    def _renew(self, projection: Projection | None, surplus: int) -> None:
        """Hold the answers reduced, without those that are used least, in the log first.

        Args:
            projection: that states are reduced by from here on; where the log cannot be written anew, they are not.
            surplus: bytes that go.
        """
        with self._mutex:
            before, forgotten = list(self.memory.answers), self.memory.forgotten
        gone = first_to_go(before, surplus)
        kept = {k: _reduced(one, projection) for k, one in enumerate(before) if k not in gone}

        @contextmanager
        def ending(written: bool = True) -> Iterator[list[Heard]]:
            """Give what came meanwhile; then all is held, and the log has it if it was ``written`` anew."""
            with self._mutex:
                first = self.memory.forgotten - forgotten  # the number of the first one that is left
                late = islice(enumerate(self.memory.answers, first), max(0, len(before) - first), None)
                left = {k: one for k, one in kept.items() if k >= first}
                left.update((k, _reduced(one, projection)) for k, one in late)
                yield [one for k, one in left.items() if k >= len(before)]
                known = first + len(self.memory) - self.fresh
                self.memory.hold(left.values())
                self.fresh = min(sum(k >= known for k in left), len(self.memory))
                self.projection = projection
                self._behind = first > 0 or not written
                self._lacks = self._lacks and not written

        if self._log is None:
            with ending():
                return
        if not self._try(self._log.rewrite, kept.values(), projection, ending):
            self._patience = PATIENCE
            if projection is self.projection:
                with ending(written=False):
                    pass

    def _try(self, write: Callable[..., None], *what: object) -> bool:
        """Whether something could be written; why not is kept, and learning goes on."""
        try:
            write(*what)
        except (OSError, DaariError) as error:
            self.trouble = str(error)
            return False
        return True


def _reduced(one: Heard, projection: Projection | None) -> Heard:
    return one if projection is None else one.through(projection)


def _of_one_kind(answers: list[Heard], width: int, projection: Projection | None) -> list[Heard]:
    """Those whose states have the width that they should, reduced where the others are."""
    fitting = [one for one in answers if one.states.shape[1] == (_width(projection) if one.reduced else width)]
    return [_reduced(one, projection) for one in fitting]


def _width(projection: Projection | None) -> int:
    return 0 if projection is None else projection.basis.shape[1]
