"""The learner: hears finished answers, and gives drafters the newest graph that was made of them.

What was heard last can be drafted at once: without a graph its tokens are copied, with one its states join those that
the graph goes on from. Tables are counted anew at growing intervals, in a thread beside the answers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from daari_mlx.compile.budget import MAX_BYTES
from daari_mlx.compile.calibrate import MIN_SEQUENCES
from daari_mlx.compile.compiler import held_out_stats, peak_mb, summary
from daari_mlx.graph.graph import Graph
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.learning import FEWEST
from daari_mlx.ground.progress import quiet
from daari_mlx.learn.fading import lasting
from daari_mlx.learn.fold import Folded, fold, nothing_known
from daari_mlx.learn.heard import Heard, heard
from daari_mlx.learn.kept import CORPUS
from daari_mlx.learn.memory import Memory
from daari_mlx.learn.newest import Newest, looked_up, newest_text, room_for_newest
from daari_mlx.learn.prior import prior
from daari_mlx.learn.remembered import Remembered
from daari_mlx.learn.store import Store

GROWTH = 0.5  # of the answers that tables were counted of, how many more there are before they are counted anew
MEMORY_BYTES = 64 << 20  # of all answers that are remembered
SHARE, ALLOWANCE = 0.02, 2.0  # of the time, and seconds besides, that counting may take


@dataclass(frozen=True)
class Snapshot:
    """What drafters go by until the next one.

    Attributes:
        graph: the tables.
        earlier: answers to copy from, as code points with a break behind each.
    """

    graph: Graph
    earlier: str = ""


class Learner:
    """Learns from the answers of one teacher.

    It may be told answers, and asked for its newest snapshot, by any thread.

    Args:
        graph: what is known before: a compiled graph of this teacher, or :func:`nothing_known`.
        max_bytes: the most bytes that its graph may have.
        memory_bytes: the most bytes that remembered answers may take; what no longer comes true goes first, then the
            oldest.
        beside: make tables in a thread of its own, not in the one that tells of an answer.
        clock: gives seconds; making tables may take a small share of them.
        store: where it is kept, which the learner then owns; None keeps it until the process ends.

    Attributes:
        snapshot: what is known now.
        trouble: why the newest answers could not be kept or counted, or None.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        max_bytes: int = MAX_BYTES,
        memory_bytes: int = MEMORY_BYTES,
        beside: bool = True,
        clock: Callable[[], float] = time.monotonic,
        store: Store | None = None,
    ) -> None:
        self.base, self.layer = graph, graph.layer
        self._store = store
        self._left: Path | None = None  # the path of a store that it let go of
        log = None if store is None else store.open({"teacher": graph.teacher, "layer": graph.layer})
        known = graph.size > 1 or len(graph.edge_token) > 0
        self._kept = Remembered(memory_bytes, graph.hidden_size, graph.nodes.projection if known else None, log)
        self._trouble: str | None = None
        self._max_bytes, self._beside, self._clock, self._start = max_bytes, beside, clock, clock()
        self._folded: Graph | None = graph if known else None
        self._counted = 0  # answers that its tables were counted of
        self._due = threading.Event()
        self._spent = 0.0
        self._newest = Newest(room_for_newest(max_bytes))
        self._working = threading.RLock()
        self._thread: threading.Thread | None = None
        self.snapshot = Snapshot(graph)
        if store is not None:
            self._go_on(store)

    @property
    def memory(self) -> Memory:
        """The answers that are remembered."""
        return self._kept.memory

    @property
    def trouble(self) -> str | None:
        """See :class:`Learner`."""
        return self._trouble or self._kept.trouble

    @classmethod
    def of_nothing(
        cls, teacher: dict[str, Any], hidden_size: int, vocab_size: int, layer: int | str = "final", **options: Any
    ) -> Learner:
        """A learner that knows no text yet; ``options`` are those of the class."""
        graph = replace(nothing_known(hidden_size, vocab_size, layer, prior()), teacher=teacher)
        return cls(graph, **options)

    def _go_on(self, store: Store) -> None:
        """Begin with what the store holds."""
        answers, until = self._kept.known().answers, store.until()
        space = self._kept.projection
        if store.graph is not None:
            if space is None or np.array_equal(space.basis, store.graph.nodes.projection.basis):
                self._folded = store.graph
            else:  # killed after states were reduced, before the graph that they belong to was kept
                until = 0.0
        self._kept.fresh = sum(1 for _ in takewhile(lambda one: one.at > until, reversed(answers)))
        self._counted = len(answers) - self._kept.fresh
        self._show()

    def hear(self, prompt: Sequence[int], answer: Sequence[int], states: Sequence[Any]) -> None:
        """Learn from a finished answer.

        Args:
            prompt: its tokens, those that a cache held included.
            answer: the emitted tokens.
            states: ``(n, H)`` blocks: the states that the answer's tokens were chosen from, in order, with or without
                that of the prompt's last token before them. Where they are others, nothing is learnt.
        """
        one = heard(prompt, answer, states, time.time())
        if one is None:
            return
        if self._left is not None:  # an answer that was under way
            self._trouble = f"the learner was closed before an answer ended, which {self._left} lacks"
        self._kept.hear(one)
        if not self._beside:
            self._work()
            return
        self._due.set()
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._work, name="daari-mlx learn", daemon=True)
            self._thread.start()

    def check_open(self) -> None:
        """See that what is heard from here on is kept, where anything was.

        Raises:
            DaariError: the learner was closed.
        """
        if self._left is not None:
            raise DaariError(
                f"This learner was closed, and what it hears is not kept in {self._left} any more: make another one "
                "with learner_for(...)."
            )

    def wait(self) -> None:
        """Until all that was heard is in the snapshot."""
        while self._thread is not None and self._thread.is_alive():
            self._thread.join()

    def close(self) -> None:
        """Count what was heard, and let go of the store: nothing is kept there any more."""
        self.wait()
        store, self._store = self._store, None
        if store is not None:
            self._left = store.path
            self._kept.close()
            store.close()

    def _work(self) -> None:
        """Take in what was heard, until there is nothing new."""
        with self._working, quiet():
            while True:
                self._due.clear()
                if len(self.memory) >= FEWEST:  # takes seconds, once in a process: no part of what counting takes
                    import sklearn.linear_model  # noqa: F401
                start = time.thread_time()
                try:
                    self._take_in()
                except Exception as error:  # what is known stays as it is; nobody waits for this thread
                    if not self._beside:
                        raise
                    self._trouble = f"counting what was heard failed: {error!r}"
                self._spent += time.thread_time() - start
                if not self._due.is_set():
                    return

    def _take_in(self) -> None:
        self._kept.tidy()
        if not self._is_due(self._kept.fresh, len(self.memory)):
            self._show()
            return
        stats = self._count()
        try:
            self._save(stats)
        except (OSError, DaariError) as error:  # it is made anew of the log next time
            self._trouble = str(error)

    def _show(self) -> None:
        """What is known now: the tables, and answers that they do not know."""
        fresh, graph = self._kept.newest(), self._folded
        if graph is None:
            self.snapshot = Snapshot(self.base, newest_text(fresh))
            return
        self.snapshot = Snapshot(looked_up(self._newest.within(graph, fresh)))

    def _is_due(self, fresh: int, count: int) -> bool:
        if count < FEWEST or self._spent > SHARE * (self._clock() - self._start) + ALLOWANCE:
            return False
        calibrates = self._counted < MIN_SEQUENCES <= count
        return calibrates or fresh >= max(FEWEST, GROWTH * self._counted)

    def fold(self, *, held_out: bool = False) -> dict[str, Any]:
        """Count tables anew, of all that is remembered; what was counted, as for ``compile_stats.json``.

        Args:
            held_out: tell what was promised on answers that were held out, too.

        Raises:
            DaariError: fewer than ``FEWEST`` answers are remembered; the graph could not be written; it was closed.
        """
        self.check_open()
        with self._working:
            stats = self._count(held_out=held_out)
            self._save(stats)
            return stats

    def _count(self, held_out: bool = False) -> dict[str, Any]:
        known = self._kept.known()
        if len(known.answers) < FEWEST:
            raise DaariError(
                f"A graph is made of {FEWEST} answers at least, found {len(known.answers)}: let it learn more first."
            )
        start, spare = time.perf_counter(), room_for_newest(self._max_bytes)
        counted = lasting(known.answers)
        made = fold(
            counted,
            self.base,
            self._kept.projection,
            max_bytes=self._max_bytes - spare,
            held_out=held_out,
            heard=len(known.answers),
        )
        self._folded, self._counted = made.graph, len(known.answers)
        self._kept.counted(known.heard)
        self._kept.settle(made.graph.nodes.projection)
        self._show()
        return self._stats(made, counted, len(known.answers), time.perf_counter() - start)

    def _save(self, stats: dict[str, Any]) -> None:
        if self._store is not None and self._folded is not None:
            self._store.save(self._folded, stats)

    def _stats(self, made: Folded, answers: Sequence[Heard], heard: int, seconds: float) -> dict[str, Any]:
        """What is told of a graph of some of the answers that were heard."""
        graph = made.graph
        return {
            **summary(graph, sum(len(one.answer) for one in answers)),
            "states": sum(len(one.states) for one in answers),
            "sequences": len(graph.prompts),
            "learnt": {
                "answers": heard,
                "faded": heard - len(answers),
                "since": answers[0].at,
                "until": answers[-1].at,
                "forgotten": self.memory.forgotten,
                "began": self.base.size > 1 or len(self.base.edge_token) > 0,
            },
            "seconds": {"fold": seconds},
            "peak_mb": peak_mb(),
            "settings": {
                "nodes": graph.size,
                "nodes_asked": "auto",
                "seed": 0,
                "max_bytes": self._max_bytes,
                "layer": graph.layer,
                "dimensions": graph.nodes.centroids.shape[1],
                "answers": "learnt",
                "max_tokens": 0,
                "corpus": CORPUS,
            },
            **held_out_stats(made.outlook),
        }
