"""The learner: hears finished answers, and gives drafters the newest graph that was made of them.

What was heard last can be drafted at once: without a graph its tokens are copied, with one its states join those that
the graph goes on from. Tables are counted anew at growing intervals, in a thread beside the answers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from daari_mlx.compile.budget import MAX_BYTES
from daari_mlx.compile.calibrate import MIN_SEQUENCES
from daari_mlx.compile.compiler import held_out_stats, peak_mb, summary
from daari_mlx.graph.codepoints import BREAK_CHARACTER, as_text
from daari_mlx.graph.graph import Graph
from daari_mlx.graph.nodes import Projection
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.progress import quiet
from daari_mlx.learn.fold import FEWEST, Folded, fold, nothing_known, with_newest
from daari_mlx.learn.heard import Heard, heard
from daari_mlx.learn.memory import Memory
from daari_mlx.learn.prior import prior
from daari_mlx.learn.store import Store

GROWTH = 0.5  # of the answers that tables were counted of, how many more there are before they are counted anew
COPIED = 2048  # tokens of the newest answers that are copied from while there is no graph
RAW_ROWS, RAW_BYTES = 8192, 32 << 20  # states, and their bytes, that directions are fitted on; then those stay
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
        memory_bytes: the most bytes that remembered answers may take; the oldest go first.
        beside: make tables in a thread of its own, not in the one that tells of an answer.
        clock: gives seconds; making tables may take a small share of them.
        store: where it is kept, which the learner then owns; None keeps it until the process ends.

    Attributes:
        snapshot: what is known now.
        trouble: why the newest answers could not be kept in the store, or None.
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
        self.trouble: str | None = None
        self._store = store
        self._log = None if store is None else store.open({"teacher": graph.teacher, "layer": graph.layer})
        self.memory = Memory(memory_bytes, self._log.answers if self._log is not None else ())
        self._max_bytes, self._beside, self._clock, self._start = max_bytes, beside, clock, clock()
        known = graph.size > 1 or len(graph.edge_token) > 0
        self._projection: Projection | None = graph.nodes.projection if known else None
        self._folded: Graph | None = graph if known else None
        self._counted = 0  # answers that its tables were counted of
        self._fresh: list[Heard] = []  # answers that they do not know
        self._due = threading.Event()
        self._spent = 0.0
        self._mutex = threading.Lock()  # of what is remembered
        self._working = threading.Lock()
        self._thread: threading.Thread | None = None
        self._forgotten = 0  # answers that are gone from memory, and from the log
        self.snapshot = Snapshot(graph)
        if store is not None:
            self._go_on(store)

    @classmethod
    def of_nothing(
        cls, teacher: dict[str, Any], hidden_size: int, vocab_size: int, layer: int | str = "final", **options: Any
    ) -> Learner:
        """A learner that knows no text yet; ``options`` are those of the class."""
        graph = replace(nothing_known(hidden_size, vocab_size, layer, prior()), teacher=teacher)
        return cls(graph, **options)

    def _go_on(self, store: Store) -> None:
        """Begin with what the store holds."""
        assert self._log is not None
        if self._projection is None:
            self._projection = self._log.projection
        if store.graph is not None:
            self._folded = store.graph
        until = store.until()
        self._fresh = [one for one in self.memory.answers if one.at > until]
        self._counted = len(self.memory) - len(self._fresh)
        self._show(self._fresh)

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
        with self._mutex:
            if self._projection is not None:
                one = one.through(self._projection)
            self.memory.add(one)
            self._fresh.append(one)
            if self._log is not None:
                with self._keeping():
                    self._log.append(one)
        if not self._beside:
            self._work()
            return
        self._due.set()
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._work, name="daari-mlx learn", daemon=True)
            self._thread.start()

    def wait(self) -> None:
        """Until all that was heard is in the snapshot."""
        while self._thread is not None and self._thread.is_alive():
            self._thread.join()

    def close(self) -> None:
        """Count what was heard, and let go of the store."""
        self.wait()
        store, self._store, self._log = self._store, None, None
        if store is not None:
            store.close()

    @contextmanager
    def _keeping(self) -> Iterator[None]:
        """What cannot be kept is told, and learning goes on without."""
        try:
            yield
        except (OSError, DaariError) as error:
            self.trouble = str(error)

    def _work(self) -> None:
        """Take in what was heard, until there is nothing new."""
        with self._working, quiet():
            while True:
                self._due.clear()
                start = time.thread_time()
                try:
                    self._take_in()
                except Exception as error:  # what is known stays as it is; nobody waits for this thread
                    if not self._beside:
                        raise
                    self.trouble = f"counting what was heard failed: {error!r}"
                self._spent += time.thread_time() - start
                if not self._due.is_set():
                    return

    def _take_in(self) -> None:
        with self._mutex:
            fresh, count = list(self._fresh), len(self.memory)
        if self._is_due(len(fresh), count):
            self.fold()
        else:
            self._show(fresh)

    def _show(self, fresh: Sequence[Heard]) -> None:
        """What is known now: the tables, and answers that they do not know."""
        if self._folded is None:
            self.snapshot = Snapshot(self.base, newest_text(fresh))
        else:
            self.snapshot = Snapshot(with_newest(self._folded, fresh))

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
            DaariError: fewer than ``FEWEST`` answers are remembered.
        """
        with self._mutex:
            answers, fresh = list(self.memory.answers), len(self._fresh)
        if len(answers) < FEWEST:
            raise DaariError(f"{len(answers)} answers are too few to make a graph of: {FEWEST} are needed.")
        start = time.perf_counter()
        made = fold(answers, self.base, self._projection, max_bytes=self._max_bytes, held_out=held_out)
        stats = self._stats(made, answers, time.perf_counter() - start)
        with self._mutex:
            self._folded, self._counted = made.graph, len(answers)
            del self._fresh[:fresh]
            self._settle(made.graph.nodes.projection)
            left = list(self._fresh)
        if self._store is not None:
            with self._keeping():
                self._store.save(made.graph, stats)
        self._show(left)
        return stats

    def _settle(self, projection: Projection) -> None:
        """Once there are many states, keep them reduced by the directions that they have now."""
        rows = sum(len(one.states) for one in self.memory.answers)
        settled = self._projection is None and (rows >= RAW_ROWS or self.memory.nbytes >= RAW_BYTES)
        if settled:
            self._projection = projection
            self.memory.reduce(projection)
            self._fresh = [one.through(projection) for one in self._fresh]
        if self._log is not None and (settled or self.memory.forgotten != self._forgotten):
            self._forgotten = self.memory.forgotten
            with self._keeping():
                self._log.rewrite(self.memory.answers, self._projection)

    def _stats(self, made: Folded, answers: Sequence[Heard], seconds: float) -> dict[str, Any]:
        graph = made.graph
        return {
            **summary(graph, sum(len(one.answer) for one in answers)),
            "states": sum(len(one.states) for one in answers),
            "sequences": len(graph.prompts),
            "learnt": {
                "answers": len(answers),
                "since": answers[0].at,
                "until": answers[-1].at,
                "forgotten": self.memory.forgotten,
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
                "corpus": "learnt",
            },
            **held_out_stats(made.outlook),
        }


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
