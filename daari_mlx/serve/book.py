"""What the server did: the newest requests, and counts in the text form that Prometheus reads."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from daari_mlx.ground.accept import TEACHER
from daari_mlx.serve.parts import Chunk

KEPT = 100  # requests that are listed
SHOWN = 80  # characters of a prompt that are shown, where the operator wants that
BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # seconds to the first token


@dataclass(slots=True)
class Record:
    """One request.

    Attributes:
        at: seconds since 1970.
        path: what was asked for.
        prompt: its beginning; None unless the operator wants it shown.
        finish: how it ended: reasons of its answers, ``"error"`` or ``"left"``; None while it is under way.
        first: seconds to the first token; None before it.
        first_tokens: how many came with it.
        seconds: all of it so far.
        sources: tokens by who drafted them.
    """

    id: str
    path: str
    at: float = field(default_factory=time.time)
    prompt: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0
    forwards: int = 0
    drafted: int = 0
    accepted: int = 0
    finish: str | None = None
    first: float | None = None
    first_tokens: int = 0
    seconds: float = 0.0
    sources: Counter[str] = field(default_factory=Counter)
    started: float = field(default_factory=perf_counter)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        decoding, later = self.seconds - (self.first or 0.0), self.tokens - self.first_tokens
        found = {name: getattr(self, name) for name in self.__slots__ if name not in ("started", "sources")}
        return {
            **found,
            "sources": dict(self.sources),
            "tokens_per_forward": self.tokens / self.forwards if self.forwards else None,
            "tokens_per_second": later / decoding if decoding > 0 and later else None,
        }


class Book:
    """The newest requests and all counts.

    Args:
        show_prompts: the beginning of each prompt is listed.
    """

    def __init__(self, show_prompts: bool) -> None:
        self.show_prompts = show_prompts
        self.newest: deque[Record] = deque(maxlen=KEPT)
        self.counts: Counter[tuple[str, str]] = Counter()  # (metric, its labels) -> value
        self._first = [0] * (len(BUCKETS) + 1)
        self._first_sum = 0.0

    def open(self, id: str, path: str, prompt: str, tokens: int) -> Record:
        """A request that was taken."""
        record = Record(id, path, prompt=prompt[:SHOWN] if self.show_prompts else None, prompt_tokens=tokens)
        self.newest.append(record)
        self.counts["daari_prompt_tokens_total", ""] += tokens
        return record

    def add(self, record: Record, chunk: Chunk, at: float) -> None:
        """What a round brought for it, and ``time.perf_counter()`` when it came."""
        record.seconds = at - record.started
        if record.first is None:
            record.first, record.first_tokens = record.seconds, len(chunk.tokens)
            place = next((k for k, bound in enumerate(BUCKETS) if record.seconds <= bound), len(BUCKETS))
            self._first[place] += 1
            self._first_sum += record.seconds
        record.tokens += len(chunk.tokens)
        for token in chunk.tokens:
            name = token.source or TEACHER
            record.sources[name] += 1
            self.counts["daari_tokens_total", f'source="{name}"'] += 1

    def close(self, record: Record, finish: str) -> None:
        """It is over."""
        record.seconds, record.finish = perf_counter() - record.started, finish
        counts = self.counts
        counts["daari_requests_total", f'path="{record.path}",finish="{finish}"'] += 1
        counts["daari_cached_tokens_total", ""] += record.cached_tokens
        counts["daari_forwards_total", ""] += record.forwards
        counts["daari_drafted_tokens_total", ""] += record.drafted
        counts["daari_accepted_tokens_total", ""] += record.accepted

    def refused(self, path: str, status: int) -> None:
        """A request that was not answered."""
        self.counts["daari_refused_total", f'path="{path}",status="{status}"'] += 1

    def metrics(self, gauges: Mapping[str, float]) -> str:
        """All of it as Prometheus reads it."""
        lines: list[str] = []
        for name in sorted({name for name, _ in self.counts}):
            lines.append(f"# TYPE {name} counter")
            lines += [
                f"{name}{f'{{{labels}}}' if labels else ''} {value}"
                for (known, labels), value in sorted(self.counts.items())
                if known == name
            ]
        for name, gauge in gauges.items():
            lines += [f"# TYPE {name} gauge", f"{name} {gauge:g}"]
        first, total = "daari_time_to_first_token_seconds", 0
        lines.append(f"# TYPE {first} histogram")
        for bound, count in zip((*BUCKETS, "+Inf"), self._first, strict=True):
            total += count
            lines.append(f'{first}_bucket{{le="{bound}"}} {total}')
        lines += [f"{first}_sum {self._first_sum:g}", f"{first}_count {total}"]
        return "\n".join(lines) + "\n"
