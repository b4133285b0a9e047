"""One HTTP request on its way: what it asks, the chunks of its answers, and its end where the client leaves."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, TypeVar

from starlette.requests import Request as HttpRequest

from daari_mlx.batch.request import Request
from daari_mlx.serve.errors import ApiError, error_of
from daari_mlx.serve.parts import Chunk, Reader
from daari_mlx.serve.service import Service
from daari_mlx.serve.streaming import EventStream, unless_gone
from daari_mlx.serve.tickets import News, Ticket

T = TypeVar("T")
PATIENCE = 10.0  # seconds without an event after which a stream says that it is alive
EARLY = 3.0  # seconds within which an error still gets its own status, before a stream's headers go out


@dataclass(slots=True)
class Asked:
    """What a request comes to, whatever the API.

    Attributes:
        requests: of the engine, one for each answer.
        readers: of each answer.
        logprobs: see :class:`daari_mlx.serve.tickets.Ticket`.
        shown: the end of what was asked, for the operator.
        model: its name as the client knows it.
        prediction: see :class:`daari_mlx.serve.tickets.Ticket`.
        n: how many answers each prompt has.
    """

    requests: list[Request]
    readers: list[Reader]
    model: str
    logprobs: int | None = None
    shown: str = ""
    prediction: list[int] = field(default_factory=list)
    n: int = 1

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(len(request.prompt) for request in self.requests[:: self.n])


@dataclass(slots=True)
class Totals:
    """Tokens of all answers of a request."""

    prompt: int
    cached: int = 0
    completion: int = 0
    reasoning: int = 0
    drafted: int = 0
    accepted: int = 0


class Answering:
    """The answers to one request.

    Args:
        service: of the server.
        asked: what is answered.
        path: of the request.
        salt: whose caches may be used.
        prefix: of the answer's id.
    """

    def __init__(self, service: Service, asked: Asked, path: str, salt: str, prefix: str) -> None:
        self.service, self.asked = service, asked
        self.id, self.created = f"{prefix}{uuid.uuid4().hex}", int(time.time())
        news: asyncio.Queue[News] = asyncio.Queue()
        self._news, self._salt = news, salt
        self._tickets = [
            Ticket(request, news, index, asked.logprobs, salt, asked.prediction)
            for index, request in enumerate(asked.requests)
        ]
        self._open = len(self._tickets)
        self._done: dict[int, Chunk] = {}
        self._ahead: News | None = None  # taken before the stream began
        service.worker.submit(self._tickets)
        self._record = service.book.open(self.id, path, asked.shown, asked.prompt_tokens)
        self._finish = "left"

    @property
    def totals(self) -> Totals:
        """Counts so far."""
        done = list(self._done.values())
        return Totals(
            self.asked.prompt_tokens,
            sum(ticket.cached for ticket in self._tickets[:: self.asked.n]),
            sum(chunk.figures.tokens for chunk in done),
            sum(chunk.reasoning_tokens for chunk in done),
            sum(chunk.figures.drafted for chunk in done),
            sum(chunk.figures.accepted for chunk in done),
        )

    async def chunks(self) -> AsyncIterator[Chunk | None]:
        """What comes, in its order; None where nothing came for a while.

        Raises:
            ApiError: an answer failed.
        """
        limit = self.service.options.timeout
        try:
            while self._open:
                left = PATIENCE if limit is None else min(PATIENCE, limit - (perf_counter() - self._record.started))
                if left <= 0:
                    told = f"The answer took more than {limit:g} seconds, the server's --timeout: ask for fewer tokens."
                    raise ApiError(503, told, "timeout")
                news = await self._next(left)
                if news is None and not self.service.worker.healthy:
                    told = "This server's engine has failed and has to be started again; its log says why."
                    raise ApiError(503, told, "server_error", retry_after=5)
                yield None if news is None else self._read(news)
            self._finish = ",".join(sorted({str(chunk.finish_reason) for chunk in self._done.values()}))
        except Exception:
            self._finish = "error"
            raise

    async def early(self) -> None:
        """Wait a little for the first news: an error gets its own status as long as no header is out."""
        self._ahead = await self._next(EARLY)
        if self._ahead is not None and self._ahead.error is not None:
            self._finish = "error"
            raise error_of(self._ahead.error)

    def gather(self) -> None:
        """Nobody waits for single tokens: what comes is handed over now and then, and at the end."""
        for ticket in self._tickets:
            ticket.gathered = True

    async def _next(self, patience: float) -> News | None:
        if self._ahead is not None:
            news, self._ahead = self._ahead, None
            return news
        if not self._news.empty():
            return self._news.get_nowait()
        try:
            async with asyncio.timeout(patience):
                return await self._news.get()
        except TimeoutError:
            return None

    def _read(self, news: News) -> Chunk:
        if news.error is not None:
            raise error_of(news.error)
        chunk = self.asked.readers[news.index].read(news)
        self._done[news.index] = chunk
        self._open -= news.ended
        self.service.book.add(self._record, chunk, news.at)
        return chunk

    def close(self) -> None:
        """The request is over, however it ended: places that are still taken are freed."""
        if self._open:
            self.service.worker.cancel(self._tickets)
        record, totals = self._record, self.totals
        if record.finish is None:
            record.cached_tokens, record.drafted, record.accepted = totals.cached, totals.drafted, totals.accepted
            record.forwards = sum(chunk.figures.forwards for chunk in self._done.values())
            self.service.book.close(record, self._finish)


def daari(chunk: Chunk, sources: list[tuple[str | None, str]]) -> dict[str, Any]:
    """The extra field of answers and chunks; see :mod:`daari_mlx.serve`."""
    done = chunk.figures
    return {
        "sources": sources,
        "tokens": done.tokens,
        "forwards": done.forwards,
        "tokens_per_forward": done.tokens / done.forwards if done.forwards else 0.0,
        "drafted": done.drafted,
        "accepted": done.accepted,
        "drafting_off": done.drafting_off,
        "alone": done.alone,
    }


@dataclass(slots=True)
class Whole:
    """One answer put together from its chunks: what is sent without streaming is what streaming sends, joined."""

    text: str = ""
    reasoning: str = ""
    calls: list[Any] = field(default_factory=list)
    tokens: list[Any] = field(default_factory=list)
    sources: list[tuple[str | None, str]] = field(default_factory=list)
    last: Chunk | None = None

    def add(self, chunk: Chunk) -> None:
        """The next chunk."""
        for piece in chunk.pieces:
            if piece.kind == "text":
                self.text += piece.text
            elif piece.kind == "reasoning":
                self.reasoning += piece.text
            else:
                self.calls.append(piece.call)
            self.sources += piece.sources
        self.tokens += chunk.tokens
        self.last = chunk


async def stream(
    http: HttpRequest,
    answering: Answering,
    events: AsyncIterator[str | None],
    failed: Callable[[ApiError], str],
) -> EventStream:
    """The stream of an answer, once it is known that it begins."""
    try:
        await unless_gone(http, answering.early())
    except BaseException:
        answering.close()
        raise
    return EventStream(events, answering.close, failed)


async def at_once(http: HttpRequest, answering: Answering, collected: Awaitable[T]) -> T:
    """What is collected of an answer that is not streamed; its places are freed, however it ends.

    Raises:
        ClientGone: the client has left.
    """
    answering.gather()
    try:
        return await unless_gone(http, collected)
    finally:
        answering.close()


async def all_of(events: AsyncIterator[Any]) -> None:
    """Let a writer write to its end, where only what its events add up to is wanted."""
    async for _ in events:
        pass


async def wholes(answering: Answering) -> list[Whole]:
    """All answers to a request, whole."""
    found = [Whole() for _ in answering.asked.requests]
    async for chunk in answering.chunks():
        if chunk is not None:
            found[chunk.index].add(chunk)
    return found
