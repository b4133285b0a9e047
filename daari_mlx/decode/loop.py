"""The loop: draft → verify → accept → re-anchor, until the budget is spent or the caller stops.

The cache belongs to the caller. However a generation ends (the budget, ``close()``, an exception or Ctrl-C at any
yield), the cache holds exactly prompt + emitted tokens but the last one, so that feeding that token next continues it.
(If prefill itself is interrupted, it holds the part of the prompt that was done.)
"""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from daari_mlx.decode.ahead import Row, Runner
from daari_mlx.decode.emitted import NOTHING, Emitted, Round
from daari_mlx.decode.limits import NO_LIMIT, Options
from daari_mlx.draft.drafter import Context, Draft, Drafter
from daari_mlx.ground.accept import Statistics
from daari_mlx.ground.types import FloatArray
from daari_mlx.teacher.rewind import Cache, Checkpoint, cached_tokens, can_drop_one
from daari_mlx.teacher.tap import Tap
from daari_mlx.teacher.verify import MAX_PENDING, Verifier

MAX_STATES = 64  # states of the newest tokens that are kept for the drafter over rounds of rest
CLEAR_EVERY = 256  # tokens between two returns of freed buffers to the system, as mlx-lm does


@dataclass(slots=True)
class _Run:
    """The state of one generation."""

    context: Context
    runner: Runner
    options: Options
    statistics: Statistics
    cached: int  # tokens the cache stands for
    prompt_tokens: int
    emitted: int = 0

    def start(self, last: int | mx.array) -> Row:
        """Start a row on the stream of this generation."""
        with mx.stream(self.options.run_stream()):
            return self.runner.start(last)

    def first_token(self) -> None:
        """Tell that the prompt is done, as mlx-lm does once the first token is there."""
        if self.emitted == 0 and self.options.prompt_progress_callback:
            self.options.prompt_progress_callback(self.prompt_tokens, self.prompt_tokens)

    def emit(self, token: Emitted) -> Emitted:
        """Count one token, directly before it is yielded."""
        self.emitted += 1
        self.context.tokens.append(token.token)
        self.statistics.emit(token.source)
        return token

    def clear(self) -> None:
        """Return freed buffers now and then."""
        if self.emitted % CLEAR_EVERY == 0:
            mx.clear_cache()


def generate_step(
    prompt: list[int],
    model: nn.Module,
    cache: Cache,
    *,
    options: Options,
    drafter: Drafter | None,
    tap: Tap | None,
    statistics: Statistics,
    earlier: list[int] | None = None,
) -> Generator[Emitted, None, None]:
    """Yield the teacher's own tokens, several a forward where the drafter was right.

    A token counts as emitted once it is yielded, unless the caller throws an exception back (``throw()``): then it
    could not be used, and the cache is left as if it had never been there.

    Args:
        prompt: token ids, at least one; ``cache`` may already hold what came before them.
        model: the teacher.
        cache: the prompt cache, changed in place; see the head of this file for what it holds afterwards.
        options: see :class:`Options`.
        drafter: who drafts; None for mlx-lm's own loop where the cache can then be made exact, else one alike.
        tap: where the drafter's states are read; needed with a drafter.
        statistics: counts are added to it.
        earlier: the tokens that ``cache`` holds already, where they are known: the drafter reads them too.
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
    context = Context([*(earlier or ()), *prompt], state)
    run = _Run(context, Runner(verifier), options, statistics, cached_tokens(cache), len(prompt))
    try:
        while run.emitted != options.max_tokens:
            draft, rest = _draft(run, drafter)
            if draft.tokens or (rest and verifier.filters):
                yield from _round(run, draft)
            if rest and not verifier.filters and run.emitted != options.max_tokens:
                yield from _rest(run, rest, Draft() if draft.tokens else draft)
    finally:
        with mx.stream(options.run_stream()):
            run.runner.stop()
            verifier.finish()


def _draft(run: _Run, drafter: Drafter | None) -> tuple[Draft, int]:
    """The next draft, and how many rounds without a draft come behind it: with no draft now, this one is the first."""
    options, pending = run.options, len(run.runner.verifier.pending)
    if drafter is None:
        return Draft(), NO_LIMIT
    limit = options.draft_limit(run.emitted, run.cached)
    if limit == 0:
        run.statistics.drafting_off = options.ends_drafting(run.cached)
        return Draft(), NO_LIMIT if run.statistics.drafting_off else 1
    if pending > MAX_PENDING:
        return Draft(), 1
    start = perf_counter()
    draft = drafter.draft(run.context, limit, pending)
    run.statistics.draft_seconds += perf_counter() - start
    return draft, draft.rest + (not draft.tokens)


def _round(run: _Run, draft: Draft) -> Generator[Emitted, None, None]:
    """One teacher forward over a draft, and its tokens."""
    verifier, emitted = run.runner.verifier, 0
    try:
        with mx.stream(run.options.run_stream()):
            verified = verifier.verify(run.context.tokens[-1], draft.tokens)
        number = run.statistics.forwards + 1
        made = Round(number, verified.tokens, draft, verified.drafted, verified.accepted)
        for row, (token, logprobs) in enumerate(zip(verified.tokens, verified.logprobs, strict=True)):
            source = draft.source_of(row) if row < verified.accepted else None
            if row == 0:
                run.first_token()
                run.statistics.forward(verified.drafted)
            try:
                yield run.emit(Emitted(token, logprobs, source, made))
            except GeneratorExit:
                emitted += 1
                raise
            emitted += 1
            run.clear()
    finally:
        with mx.stream(run.options.run_stream()):
            verifier.settle(emitted)
    run.cached += emitted
    run.context.states = verified.states
    run.context.state = None if verified.states is None else verified.states[-1]


def _rest(run: _Run, rounds: int, first: Draft) -> Generator[Emitted, None, None]:
    """Rounds without a draft, as mlx-lm runs its own: while a token is read and used, the next forward is under way.

    ``first`` is the empty draft that the first of them came from; for the others no drafter is asked.
    """
    rounds = min(rounds, run.options.row_limit(run.emitted, run.cached))
    states: deque[mx.array] = deque(maxlen=MAX_STATES)
    row = run.start(run.context.tokens[-1])
    for number in range(1, rounds + 1):
        following = run.start(row.token) if number < rounds else None
        token: Any = row.token.item()
        run.first_token()
        run.statistics.forward(0)
        made = Round(run.statistics.forwards, [token], first if number == 1 else NOTHING)
        try:
            yield run.emit(Emitted(token, row.logprobs, None, made))
        except GeneratorExit:
            run.runner.commit()
            raise
        run.runner.commit()
        run.cached += 1
        run.clear()
        if row.state is not None:
            states.append(row.state)
        if following is not None:
            row = following
    seen = np.concatenate([np.array(state, copy=False) for state in states]) if states else None
    run.context.states = seen
    run.context.state = None if seen is None else seen[-1]


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
        checkpoint = Checkpoint(cache, size)
        try:
            if tap is None:
                model(chunk, cache=cache)
            else:
                with tap.reading() as seen:
                    model(chunk, cache=cache)
                state = seen[-1][0, -1].astype(mx.float32)
        except BaseException:
            checkpoint.back_to(0)  # else some layers would hold the chunk and others not
            raise
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
    report = options.prompt_progress_callback or (lambda *_: None)
    checkpoint = Checkpoint(cache, rows=0)
    prefilled = emitted = 0

    def progress(done: int, total: int) -> None:
        nonlocal prefilled
        prefilled = min(done, total - 1)
        report(done, total)

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
        prompt_progress_callback=progress,
    )
    try:
        for token, logprobs in steps:
            statistics.forward(0)
            statistics.emit(None)
            try:
                yield Emitted(token, logprobs, None, Round(statistics.forwards, [token]))
            except GeneratorExit:
                emitted += 1
                raise
            emitted += 1
    finally:
        steps.close()
        checkpoint.back_to(prefilled + emitted)
