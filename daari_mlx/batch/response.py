"""The events of all rows, put together: what `batch_generate` gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
from mlx_lm.generate import BatchResponse as PlainResponse
from mlx_lm.generate import BatchStats

from daari_mlx.batch.request import Counts, Event, Request
from daari_mlx.ground.accept import Statistics


@dataclass
class BatchResponse(PlainResponse):
    """mlx-lm's response with what drafting did.

    Attributes:
        statistics: of each prompt, in their order.
        finish_reasons: ``"stop"`` or ``"length"``, of each prompt.
        errors: what ended a row instead, by its place; the others are whole.
        alone: why the rows did not share a batch, or None.
    """

    statistics: list[Statistics] = field(default_factory=list)
    finish_reasons: list[str | None] = field(default_factory=list)
    errors: dict[int, Exception] = field(default_factory=dict)
    alone: str | None = None

    @property
    def tokens_per_forward(self) -> float:
        """Emitted tokens of a row per forward that it took part in; plain decoding is 1.0."""
        return total(self.statistics).tokens_per_forward

    @property
    def acceptance_rate(self) -> float:
        """Accepted draft tokens per draft token, over all rows."""
        return total(self.statistics).acceptance_rate


def total(statistics: Sequence[Statistics]) -> Statistics:
    """The counts of several answers added up."""
    found = Statistics()
    for one in statistics:
        found.add(one)
    return found


class Collected:
    """Events of rows that are numbered from 0, as they come, and the response that they make."""

    def __init__(self, count: int, logprobs: bool) -> None:
        self._texts, self._ids = [""] * count, [list[int]() for _ in range(count)]
        self._logprobs = [list[float]() for _ in range(count)] if logprobs else None
        self._caches: list[Any] = [None] * count
        self._statistics: list[Statistics] = [Statistics() for _ in range(count)]
        self._reasons: list[str | None] = [None] * count
        self._errors: dict[int, Exception] = {}
        self._alone: str | None = None

    def take(self, event: Event) -> None:
        """Add an event."""
        place = event.uid
        for response in event.responses:
            self._texts[place] += response.text
            self._statistics[place] = response.statistics
            self._reasons[place] = response.finish_reason
            self._ids[place].append(response.token)
            if self._logprobs is not None:
                self._logprobs[place].append(response.logprobs[response.token].item())
        if event.error is not None:
            self._errors[place] = event.error
        self._caches[place] = event.prompt_cache
        self._alone = event.alone or self._alone

    def tokens(self, place: int) -> int:
        """How many tokens a row has."""
        return len(self._ids[place])

    def response(
        self, tokenizer: Any, requests: list[Request], counts: Counts, seconds: float, ids: bool
    ) -> BatchResponse:
        """All of it; as in mlx-lm, the end token is not among the ids."""
        stats = BatchStats(
            prompt_tokens=sum(
                len(request.prompt) - 1 for request in requests
            ),  # as mlx-lm counts: the last is no prefill
            prompt_time=counts.prompt_seconds,
            generation_tokens=sum(map(len, self._ids)),
            generation_steps=counts.rounds,
            decode_time=counts.round_seconds,
            wall_time=seconds,
            peak_memory=mx.get_peak_memory() / 1e9,
        )
        ends = set(tokenizer.eos_token_ids)
        kept = [i[:-1] if i and i[-1] in ends else i for i in self._ids]
        return BatchResponse(
            self._texts,
            stats,
            self._caches if any(request.keep_cache for request in requests) else None,
            kept if ids else None,
            self._logprobs,
            statistics=self._statistics,
            finish_reasons=self._reasons,
            errors=self._errors,
            alone=self._alone,
        )
