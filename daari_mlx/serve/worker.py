"""The one thread that owns the model: requests come in by a bounded queue, what each round brings goes out to asyncio.

Nobody else touches the model, a cache or an array of MLX.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from time import perf_counter

from daari_mlx.batch.engine import BatchEngine
from daari_mlx.batch.request import Event
from daari_mlx.draft.drafter import Drafter
from daari_mlx.draft.predicted import PredictedDrafter
from daari_mlx.ground.wired import wired
from daari_mlx.serve.caches import PromptCaches
from daari_mlx.serve.errors import ApiError
from daari_mlx.serve.tickets import News, Ticket, failed_news, news_of

log = logging.getLogger("daari_mlx.server")
IDLE = 1.0  # seconds without a request after which caches are written to disk


class Worker:
    """Answers tickets on a thread of its own.

    Args:
        make_engine: makes the engine, on that thread; again where one has failed.
        caches: what conversations have read.
        copier: makes a drafter that copies from its text, for answers with a prediction; None where nothing is drafted.
        most_rows: how many answers share a forward.
        queue_limit: how many may wait besides.
    """

    def __init__(
        self,
        make_engine: Callable[[], BatchEngine],
        caches: PromptCaches,
        copier: Callable[[], Drafter] | None,
        *,
        most_rows: int,
        queue_limit: int,
    ) -> None:
        self._make_engine, self.caches, self._copier = make_engine, caches, copier
        self._most_rows, self._queue_limit = most_rows, queue_limit
        self._engine: BatchEngine | None = None
        self._waiting: deque[Ticket] = deque()
        self._running: dict[int, Ticket] = {}
        self._left: list[Ticket] = []  # those that nobody waits for any more
        self._wake = threading.Condition()
        self._ending = False
        self._renewed: tuple[Callable[[], BatchEngine], Callable[[], Drafter] | None] | None = None
        self.draining = False
        self.failure: str | None = None
        self._thread = threading.Thread(target=self._run, name="daari-mlx-engine", daemon=True)

    # asked by others

    @property
    def queued(self) -> int:
        """How many answers wait for a place."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """How many are under way."""
        return len(self._running)

    @property
    def cache_bytes(self) -> int:
        """Bytes of the caches of answers that are under way."""
        engine = self._engine
        return 0 if engine is None else engine.nbytes

    @property
    def healthy(self) -> bool:
        """Whether it answers."""
        return self._thread.is_alive() and self.failure is None

    def start(self) -> None:
        """Begin, once."""
        self._thread.start()

    def submit(self, tickets: list[Ticket]) -> None:
        """Take all of them, or none.

        Raises:
            ApiError: there is no room, or this server is ending or broken.
        """
        with self._wake:
            if self.draining or self._ending or not self.healthy:
                why = self.failure or "it is ending"
                raise ApiError(503, f"This server takes no requests: {why}.", "server_error", retry_after=5)
            free = self._most_rows - len(self._running)
            if len(self._waiting) + len(tickets) > self._queue_limit + max(free, 0):
                raise ApiError(
                    429,
                    f"{len(self._waiting)} answers wait already, and at most {self._queue_limit} may: try again later.",
                    "rate_limit_error",
                    code="queue_full",
                    retry_after=max(1, len(self._waiting) // max(self._most_rows, 1)),
                )
            self._waiting.extend(tickets)
            self._wake.notify()

    def cancel(self, tickets: list[Ticket]) -> None:
        """Nobody waits for these any more: their places are free within a round."""
        with self._wake:
            for ticket in tickets:
                ticket.cancelled = True
            self._left += tickets
            self._wake.notify()

    def renew(self, make_engine: Callable[[], BatchEngine], copier: Callable[[], Drafter] | None) -> None:
        """Go on with another engine once the answers under way are done; those that wait then begin with it."""
        with self._wake:
            self._renewed = make_engine, copier
            self._wake.notify()

    def close(self) -> None:
        """End once the round that runs is over; what is not answered by then is told so."""
        with self._wake:
            self._ending = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()

    # the thread

    def _run(self) -> None:
        busy = ExitStack()
        try:
            engine = self._engine = self._make_engine()
            self.caches.load()
            while self._wait(engine, busy):
                try:
                    if self._renewed is not None and not len(engine):
                        (self._make_engine, self._copier), self._renewed = self._renewed, None
                        engine = self._engine = self._make_engine()
                    self._let_go(engine)
                    self._admit(engine)
                    self._tell(engine.step() if len(engine) else [])
                except Exception as error:
                    log.exception("a round failed; the answers under way end with it")
                    self._fail(error)
                    engine = self._engine = self._make_engine()
        except Exception as error:
            log.exception("the engine cannot go on")
            self.failure = f"{type(error).__name__}: {error}"
            self._fail(error)
        finally:
            busy.close()
            self._fail(ApiError(503, "This server ended before the answer did.", "server_error", retry_after=5))
            self.caches.write()

    def _wait(self, engine: BatchEngine, busy: ExitStack) -> bool:
        """Wait for something to do; False at the end."""
        while True:
            with self._wake:
                if self._ending:
                    return False
                if self._waiting or self._left or self._renewed or len(engine):
                    break
                busy.close()  # an idle server holds no memory for the next answer
                idle = not self._wake.wait(IDLE if self.caches.unwritten else None)
            if idle:
                self.caches.write_one()
        if not len(engine):
            busy.close()
            busy.enter_context(wired(engine.model, engine.stream))
        return True

    def _let_go(self, engine: BatchEngine) -> None:
        with self._wake:
            left, self._left = self._left, []
            if left:
                self._waiting = deque(ticket for ticket in self._waiting if not ticket.cancelled)
        for ticket in left:
            if ticket.uid is not None and self._running.pop(ticket.uid, None) is not None:
                engine.cancel(ticket.uid)

    def _admit(self, engine: BatchEngine) -> None:
        while self._renewed is None and len(self._running) < self._most_rows:
            with self._wake:
                if not self._waiting:
                    return
                ticket = self._waiting.popleft()
            try:
                request = ticket.request
                request.known, request.prompt_cache = self.caches.fetch(ticket.salt, request.prompt)
                ticket.cached = request.known
                request.keep_cache, request.whole_cache = self.caches.wanted, False
                request.salt, request.scope = ticket.salt, ticket.salt or None
                if ticket.prediction and self._copier is not None:
                    request.drafter = PredictedDrafter(self._copier(), ticket.prediction)
                ticket.uid = engine.add(request)
                self._running[ticket.uid] = ticket
            except Exception as error:
                self._send([(ticket, failed_news(ticket, error))])

    def _tell(self, events: list[Event]) -> None:
        now, out = perf_counter(), []
        for event in events:
            ticket = self._running.get(event.uid)
            if ticket is None:
                continue
            try:
                news = news_of(ticket, event, now)
            except Exception as error:
                assert self._engine is not None
                self._engine.cancel(event.uid)
                news = failed_news(ticket, error)
            ticket.tokens += [token.id for token in news.tokens]
            if news.ended:
                del self._running[event.uid]
                if event.prompt_cache is not None and event.error is None:
                    held = (ticket.request.prompt + ticket.tokens)[: event.held]
                    self.caches.keep(ticket.salt, held, event.prompt_cache)
                ticket.request.prompt_cache = None
            out += [(ticket, one) for one in ticket.due(news)]
        self._send(out)

    def _fail(self, error: Exception) -> None:
        with self._wake:
            lost = [*self._running.values(), *self._waiting]
            self._running.clear()
            self._waiting.clear()
        self._send([(ticket, failed_news(ticket, error)) for ticket in lost])

    @staticmethod
    def _send(out: list[tuple[Ticket, News]]) -> None:
        """Hand news to the loops that wait for them, in one call each."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Ticket, News]]] = {}
        for ticket, news in out:
            by_loop.setdefault(ticket.loop, []).append((ticket, news))
        for loop, part in by_loop.items():
            if not loop.is_closed():
                loop.call_soon_threadsafe(_deliver, part)


def _deliver(out: list[tuple[Ticket, News]]) -> None:
    for ticket, news in out:
        if not ticket.cancelled:
            ticket.news.put_nowait(news)
