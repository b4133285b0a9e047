"""What a generation is given besides prompt, model and drafter, and what it must not exceed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from daari_mlx.decode.options import CacheOptions
from daari_mlx.teacher.judge import LogitsProcessor, Sampler
from daari_mlx.teacher.rewind import Cache

NO_LIMIT = sys.maxsize


@dataclass(slots=True)
class Options:
    """What ``generate_step`` takes besides prompt, model, cache and drafter; names and defaults are mlx-lm's.

    Attributes:
        max_tokens: how many tokens at the most; -1 for no limit.
        sampler: from ``(1, V)`` log-probabilities to a token; None for greedy.
        logits_processors: functions of (tokens so far, ``(1, V)`` logits), or None.
        caching: how the cache is filled and quantised; its size was chosen when it was made.
        prompt_progress_callback: called with (prompt tokens done, prompt tokens).
        context_length: the most tokens that the teacher can hold, None where it is not known.
        blocks_until: the most tokens that the cache may hold after a block of several rows; None for no limit.
        stream: the MLX stream to run on; None for mlx-lm's generation stream.
    """

    max_tokens: int = 256
    sampler: Sampler | None = None
    logits_processors: list[LogitsProcessor] | None = None
    caching: CacheOptions = field(default_factory=CacheOptions)
    prompt_progress_callback: Callable[[int, int], None] | None = None
    context_length: int | None = None
    blocks_until: int | None = None
    stream: Any = None

    def run_stream(self) -> Any:
        """The stream to run on."""
        return importlib.import_module("mlx_lm.generate").generation_stream if self.stream is None else self.stream

    def quantise(self, cache: Cache) -> None:
        """mlx-lm's own KV quantisation of ``cache``, in place."""
        importlib.import_module("mlx_lm.generate").maybe_quantize_kv_cache(
            cache,
            quantized_kv_start=self.caching.quantized_kv_start,
            kv_group_size=self.caching.kv_group_size,
            kv_bits=self.caching.kv_bits,
        )

    def report(self, total: int) -> Callable[[int], None]:
        """Tell of prefill: how many of ``total`` prompt tokens are done, from none on."""
        told = self.prompt_progress_callback or (lambda *_: None)
        told(0, total)
        return lambda done: told(done, total)

    def draft_limit(self, emitted: int, cached: int) -> int:
        """The most tokens that may be drafted now.

        Args:
            emitted: tokens emitted so far.
            cached: tokens that the cache stands for (rows still owed to it included).
        """
        limits = [NO_LIMIT]
        if self.max_tokens >= 0:
            limits.append(self.max_tokens - emitted - 1)  # the bonus token takes one place
        if self.context_length is not None:
            limits.append(self.context_length - cached - 1)
        if self.blocks_until is not None:
            limits.append(self.blocks_until - cached - 1)
        unquantised = self.caching.quantized_kv_start - cached
        if self.caching.kv_bits is not None and unquantised > 0:
            limits.append(unquantised - 2)  # plain quantises after the very row that reaches it
        return max(0, min(limits))

    def row_limit(self, emitted: int, cached: int) -> int:
        """The most rounds of one row each that may follow one another here, each started before the last is read.

        Args:
            emitted, cached: as for :meth:`draft_limit`.
        """
        limits = [NO_LIMIT]
        if self.max_tokens >= 0:
            limits.append(self.max_tokens - emitted)
        unquantised = self.caching.quantized_kv_start - cached
        if self.caching.kv_bits is not None and unquantised > 0:
            limits.append(unquantised - 1)  # no way back behind the row that quantises
        return max(1, min(limits))

    def ends_drafting(self, cached: int) -> str | None:
        """Why nothing can be drafted from here to the end of the answer, or None where something may be.

        Args:
            cached: as for :meth:`draft_limit`.
        """
        if self.context_length is not None and cached + 1 >= self.context_length:
            return f"the teacher's context of {self.context_length} tokens is full"
        if self.blocks_until is not None and cached + 1 >= self.blocks_until:
            return f"past {self.blocks_until} tokens this teacher answers a block of rows otherwise than single rows"
        return None
