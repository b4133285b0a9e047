"""What travels between the thread that owns the model and asyncio: tickets one way, news the other."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import mlx.core as mx
import numpy as np

from daari_mlx.batch.request import Event, Request
from daari_mlx.ground.evaluated import evaluated

GATHERED = 0.25  # seconds of news that are told together where nobody waits for single tokens


@dataclass(frozen=True, slots=True)
class Token:
    """One token of an answer.

    Attributes:
        id: of the token.
        text: what could be shown with it.
        source: who drafted it; None for the teacher's own.
        logprob: its log-probability, where asked for.
        top: the likeliest tokens at its place with theirs, as many as asked for.
    """

    id: int
    text: str
    source: str | None
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Figures:
    """What drafting did so far in one answer; see :class:`daari_mlx.ground.accept.Statistics`.

    Attributes:
        alone: why it does not share the batch, or None.
    """

    tokens: int = 0
    forwards: int = 0
    drafted: int = 0
    accepted: int = 0
    drafting_off: str | None = None
    alone: str | None = None


@dataclass(frozen=True, slots=True)
class News:
    """What a round brought for one answer; the last has a reason of its end, or an error.

    Attributes:
        index: which of the request's answers.
        at: ``time.perf_counter()`` when it came.
    """

    index: int
    tokens: list[Token]
    finish_reason: str | None
    figures: Figures
    at: float
    error: Exception | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing more comes."""
        return self.finish_reason is not None or self.error is not None


@dataclass(slots=True, eq=False)
class Ticket:
    """One answer that is asked for.

    Attributes:
        request: of the engine.
        news: where what comes of it is put; several answers to one request share it.
        index: which of them this is.
        logprobs: how many likeliest tokens are told beside each token's own log-probability; None for neither.
        salt: whose caches it may use.
        prediction: tokens that the answer will probably repeat, to draft from.
        cached: prompt tokens that were taken from a cache; known once it began.
        gathered: nobody waits for single tokens, so that news are told together, ``kept`` until then.
        told: ``time.perf_counter()`` when that last was so.
    """

    request: Request
    news: asyncio.Queue[News]
    index: int = 0
    logprobs: int | None = None
    salt: str = ""
    prediction: list[int] = field(default_factory=list)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    uid: int | None = None
    cancelled: bool = False
    cached: int = 0
    tokens: list[int] = field(default_factory=list)
    gathered: bool = False
    kept: list[News] = field(default_factory=list)
    told: float = field(default_factory=perf_counter)

    def due(self, news: News) -> list[News]:
        """What is to be told now that this has come: each wake-up of asyncio costs the other rows time."""
        self.kept.append(news)
        if self.gathered and not news.ended and news.at - self.told < GATHERED:
            return []
        self.told = news.at
        due, self.kept = self.kept, []
        return due


def failed_news(ticket: Ticket, error: Exception) -> News:
    """What is told of an answer that failed."""
    return News(ticket.index, [], None, Figures(), perf_counter(), error)


def news_of(ticket: Ticket, event: Event, now: float) -> News:
    """What an event of the engine tells, without arrays of MLX."""
    responses = event.responses
    if not responses:
        return News(ticket.index, [], None, Figures(), now, event.error)
    told: list[tuple[float, tuple[tuple[int, float], ...]]] = []
    if ticket.logprobs is not None:
        rows = evaluated(mx.stack([response.logprobs for response in responses]).astype(mx.float32))
        told = [(float(row[r.token]), _top(row, ticket.logprobs)) for row, r in zip(rows, responses, strict=True)]
    tokens = [
        Token(int(r.token), r.text, r.source, *(told[k] if told else (None, ()))) for k, r in enumerate(responses)
    ]
    done = responses[-1].statistics
    figures = Figures(done.tokens, done.forwards, done.drafted, done.accepted, done.drafting_off, event.alone)
    return News(ticket.index, tokens, responses[-1].finish_reason, figures, now, event.error)


def _top(row: Any, count: int) -> tuple[tuple[int, float], ...]:
    """The likeliest tokens of ``(V,)`` log-probabilities, the likeliest first, of equals the lower id first."""
    if not count:
        return ()
    count = min(count, len(row))
    best = np.argpartition(-row, count - 1)[:count]
    best = best[np.lexsort((best, -row[best]))]
    return tuple((int(token), float(row[token])) for token in best)
