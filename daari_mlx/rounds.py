"""The loop: draft → verify → accept → re-anchor, until the budget is spent or the caller stops.

The cache belongs to the caller. However a generation ends (the budget, ``close()``, an exception or Ctrl-C at any
yield), the cache holds exactly prompt + emitted tokens but the last one, so that feeding that token next continues it.
(If prefill itself is interrupted, it holds the part of the prompt that was done.)
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from daari_mlx.accept import Statistics
from daari_mlx.draft import Context, Draft, Drafter
from daari_mlx.nodes import FloatArray
from daari_mlx.rewind import Cache, Checkpoint, cached_tokens, can_drop_one
from daari_mlx.tap import Tap
from daari_mlx.verify import MAX_PENDING, LogitsProcessor, Sampler, Verifier

CLEAR_EVERY = 256  # tokens between two returns of freed buffers to the system, as mlx-lm does


@dataclass(slots=True)
class Emitted:
    """One token of the answer.

    Attributes:
        token: its id.
        logprobs: ``(V,)`` log-probabilities it was chosen from.
        source: which source drafted it; None for the teacher's own bonus token.
    """

    token: int
    logprobs: mx.array
    source: str | None


@dataclass(slots=True)
class Options:
    """What :func:`generate_step` takes besides prompt, model, cache and drafter; names and defaults are mlx-lm's.

    Attributes:
        max_tokens: how many tokens at the most; -1 for no limit.
        sampler: from ``(1, V)`` log-probabilities to a token; None for greedy.
        logits_processors: functions of (tokens so far, ``(1, V)`` logits), or None.
        prefill_step_size: prompt tokens a prefill forward takes.
        kv_bits, kv_group_size, quantized_kv_start: KV cache quantisation; None bits for none.
        prompt_progress_callback: called with (prompt tokens done, prompt tokens).
        context_length: the most tokens that the teacher can hold, None where it is not known.
        blocks_until: the most tokens that the cache may hold after a block of several rows; None for no limit.
        stream: the MLX stream to run on; None for mlx-lm's generation stream.
    """

    max_tokens: int = 256
    sampler: Sampler | None = None
    logits_processors: list[LogitsProcessor] | None = None
    prefill_step_size: int = 2048
    kv_bits: int | None = None
    kv_group_size: int = 64
    quantized_kv_start: int = 5000
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
            quantized_kv_start=self.quantized_kv_start,
            kv_group_size=self.kv_group_size,
            kv_bits=self.kv_bits,
        )

    def draft_limit(self, emitted: int, cached: int) -> int:
        """The most tokens that may be drafted now.

        Args:
            emitted: tokens emitted so far.
            cached: tokens that the cache stands for (rows still owed to it included).
        """
        limits = [np.iinfo(np.int32).max]
        if self.max_tokens >= 0:
            limits.append(self.max_tokens - emitted - 1)  # the bonus token takes one place
        if self.context_length is not None:
            limits.append(self.context_length - cached - 1)
        if self.blocks_until is not None:
            limits.append(self.blocks_until - cached - 1)
        if self.kv_bits is not None and cached < self.quantized_kv_start:
            limits.append(self.quantized_kv_start - cached - 2)  # plain quantises after the very row that reaches it
        return max(0, min(limits))


@dataclass(slots=True)
class _Run:
    """The state of one generation."""

    context: Context
    cached: int  # tokens the cache stands for
    emitted: int = 0
    draft: Draft = field(default_factory=Draft)


def generate_step(
    prompt: list[int],
    model: nn.Module,
    cache: Cache,
    *,
    options: Options,
    drafter: Drafter | None,
    tap: Tap | None,
    statistics: Statistics,
) -> Generator[Emitted, None, None]:
    """Yield the teacher's own tokens, several a forward where the drafter was right.

    Args:
        prompt: token ids, at least one; ``cache`` may already hold what came before them.
        model: the teacher.
        cache: the prompt cache, changed in place; see the head of this file for what it holds afterwards.
        options: see :class:`Options`.
        drafter: who drafts; None for mlx-lm's own pipelined loop, with only the cache kept exact.
        tap: where the drafter's states are read; needed with a drafter.
        statistics: counts are added to it.
    """
    if drafter is None and can_drop_one(cache):
        yield from _plain_steps(prompt, model, cache, options, statistics)
        return
    history = mx.array(prompt[:-1], dtype=mx.uint32) if options.logits_processors and len(prompt) > 1 else None
    verifier = Verifier(
        model,
        cache,
        tap=tap,
        sampler=options.sampler,
        logits_processors=options.logits_processors,
        history=history,
        quantise=options.quantise if options.kv_bits is not None else None,
    )
    with mx.stream(options.run_stream()):
        state = _prefill(prompt, model, cache, options, tap)
    run = _Run(Context(list(prompt), state), cached=cached_tokens(cache))
    try:
        while run.emitted != options.max_tokens:
            yield from _round(run, verifier, drafter, options, statistics)
    finally:
        with mx.stream(options.run_stream()):
            verifier.finish()


def _round(
    run: _Run, verifier: Verifier, drafter: Drafter | None, options: Options, statistics: Statistics
) -> Generator[Emitted, None, None]:
    """One draft, one teacher forward, and its tokens."""
    start = perf_counter()
    limit = options.draft_limit(run.emitted, run.cached)
    draft = Draft()
    if drafter is not None and limit > 0 and len(verifier.pending) <= MAX_PENDING:
        draft = drafter.draft(run.context, limit, len(verifier.pending))
    statistics.draft_seconds += perf_counter() - start
    with mx.stream(options.run_stream()):
        verified = verifier.verify(run.context.tokens[-1], draft.tokens)
    statistics.forward(verified.drafted)
    if run.emitted == 0 and options.prompt_progress_callback:
        prompt_tokens = len(run.context.tokens)
        options.prompt_progress_callback(prompt_tokens, prompt_tokens)
    emitted = 0
    try:
        for row, (token, logprobs) in enumerate(zip(verified.tokens, verified.logprobs, strict=True)):
            source = draft.source_of(row) if row < verified.accepted else None
            emitted += 1
            run.emitted += 1
            run.context.tokens.append(token)
            statistics.emit(source)
            yield Emitted(token, logprobs, source)
            if run.emitted % CLEAR_EVERY == 0:
                mx.clear_cache()
    finally:
        with mx.stream(options.run_stream()):
            verifier.settle(emitted)
    run.cached += emitted
    run.context.states = verified.states
    run.context.state = None if verified.states is None else verified.states[-1]


def _prefill(prompt: list[int], model: nn.Module, cache: Cache, options: Options, tap: Tap | None) -> FloatArray | None:
    """All but the last prompt token go into the cache, as mlx-lm does; the state at the newest of them comes back."""
    done, last = 0, len(prompt) - 1
    state: mx.array | None = None
    report = options.prompt_progress_callback or (lambda *_: None)
    report(0, len(prompt))
    tokens = mx.array(prompt, dtype=mx.uint32)[None]
    while done < last:
        size = min(options.prefill_step_size, last - done)
        chunk = tokens[:, done : done + size]
        if tap is None:
            model(chunk, cache=cache)
        else:
            with tap.reading() as seen:
                model(chunk, cache=cache)
            state = seen[-1][0, -1].astype(mx.float32)
        if options.kv_bits is not None:
            options.quantise(cache)
        done += size
        mx.eval([c.state for c in cache], state if state is not None and done == last else [])
        report(done, len(prompt))
        mx.clear_cache()
    return None if state is None else np.array(state, copy=False)


def _plain_steps(
    prompt: list[int], model: nn.Module, cache: Cache, options: Options, statistics: Statistics
) -> Generator[Emitted, None, None]:
    """mlx-lm's own loop, which runs one row ahead of what it has yielded; that row is taken out at the end."""
    plain = importlib.import_module("mlx_lm.generate").generate_step
    checkpoint = Checkpoint(cache, rows=0)
    emitted = 0
    steps = plain(
        prompt=mx.array(prompt),
        model=model,
        stream=options.run_stream(),
        max_tokens=options.max_tokens,
        sampler=options.sampler,
        logits_processors=options.logits_processors,
        prompt_cache=cache,
        prefill_step_size=options.prefill_step_size,
        kv_bits=options.kv_bits,
        kv_group_size=options.kv_group_size,
        quantized_kv_start=options.quantized_kv_start,
        prompt_progress_callback=options.prompt_progress_callback,
    )
    try:
        for token, logprobs in steps:
            emitted += 1
            statistics.forward(0)
            statistics.emit(None)
            yield Emitted(token, logprobs, None)
    finally:
        steps.close()
        checkpoint.back_to(len(prompt) - 1 + emitted)
