"""From tokens to responses: text, figures and the reason of an answer's end, as mlx-lm tells them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
from mlx_lm.generate import GenerationResponse as PlainResponse

from daari_mlx.decode.emitted import Emitted, Round
from daari_mlx.decode.stops import StopText
from daari_mlx.ground.accept import Statistics


@dataclass
class GenerationResponse(PlainResponse):
    """mlx-lm's response with what drafting did.

    Attributes:
        source: which source drafted this token; None for the teacher's own bonus token. ``from_draft`` says whether
            it was drafted.
        statistics: the counts so far; one object for the whole answer, so read or copy it at the end.
        round: the round it came in: what was drafted, and what the teacher said; one object for all its tokens.
    """

    source: str | None = None
    statistics: Statistics = field(default_factory=Statistics)
    round: Round | None = None

    @property
    def tokens_per_forward(self) -> float:
        """Emitted tokens per teacher forward after prefill, so far; plain decoding is 1.0."""
        return self.statistics.tokens_per_forward

    @property
    def acceptance_rate(self) -> float:
        """Accepted draft tokens per draft token, so far."""
        return self.statistics.acceptance_rate

    @property
    def drafting_off(self) -> str | None:
        """Why nothing was drafted, or None while drafting is on."""
        return self.statistics.drafting_off


class Prefill:
    """Passes mlx-lm's prompt progress on, and keeps when the cache came to hold all of the prompt but its last token.

    Args:
        told: the caller's own callback, or None.
    """

    def __init__(self, told: Callable[[int, int], None] | None = None) -> None:
        self._told = told
        self.started = self.ended = time.perf_counter()

    def __call__(self, done: int, total: int) -> None:
        if done < total:
            self.ended = time.perf_counter()
        if self._told is not None:
            self._told(done, total)


class Responder:
    """Makes one response of every token of an answer.

    The clock of ``generation_tps`` starts at the end of prefill. mlx-lm's starts with the first token, and all that one
    forward gives along with that would have taken no time.

    Args:
        tokenizer: mlx-lm's wrapper.
        prompt_tokens: how many tokens were prefilled.
        max_tokens: how many tokens end the answer; -1 for no limit.
        statistics: of this answer.
        stops: texts that end it; see :mod:`daari_mlx.decode.stops`.
        prefill: when it began and ended.
    """

    def __init__(
        self,
        tokenizer: Any,
        prompt_tokens: int,
        max_tokens: int,
        statistics: Statistics,
        stops: list[str],
        prefill: Prefill,
    ) -> None:
        self._ends = frozenset(tokenizer.eos_token_ids)
        self._detokenizer = tokenizer.detokenizer
        self._stop_text = StopText(tokenizer.detokenizer, stops) if stops else None
        self._prompt_tokens, self._max_tokens, self._statistics = prompt_tokens, max_tokens, statistics
        self._prefill = prefill
        self._count, self._prompt_tps = 0, 0.0

    def respond(self, step: Emitted) -> GenerationResponse:
        """The response of the next token; the last one of the answer has a ``finish_reason``."""
        if self._count == 0:
            self._prompt_tps = self._prompt_tokens / (time.perf_counter() - self._prefill.started)
        self._count += 1
        ended = step.token in self._ends
        text, stopped = self._text(step.token, ended)
        reason = "stop" if ended or stopped else "length" if self._count == self._max_tokens else None
        return GenerationResponse(
            text=text,
            token=step.token,
            logprobs=step.logprobs,
            from_draft=step.source is not None,
            prompt_tokens=self._prompt_tokens,
            prompt_tps=self._prompt_tps,
            generation_tokens=self._count,
            generation_tps=self._count / (time.perf_counter() - self._prefill.ended),
            peak_memory=mx.get_peak_memory() / 1e9,
            finish_reason=reason,
            source=step.source,
            statistics=self._statistics,
            round=step.round,
        )

    def _text(self, token: int, ended: bool) -> tuple[str, bool]:
        """The text that can be shown with a token, and whether a stop was completed."""
        last = ended or self._count == self._max_tokens
        if self._stop_text is not None:
            return self._stop_text.take(None if ended else token, last)
        if not ended:
            self._detokenizer.add_token(token)
        if last:
            self._detokenizer.finalize()
        return self._detokenizer.last_segment, False
