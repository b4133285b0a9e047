"""Decoding without a drafter: mlx-lm's own loop."""

from __future__ import annotations

import importlib
from collections.abc import Generator

import mlx.core as mx
import mlx.nn as nn

from daari_mlx.decode.emitted import Emitted, Round
from daari_mlx.decode.limits import Options
from daari_mlx.ground.accept import Statistics
from daari_mlx.teacher.rewind import Cache, Checkpoint


def plain_steps(
    prompt: list[int], model: nn.Module, cache: Cache, options: Options, statistics: Statistics, whole: bool
) -> Generator[Emitted, None, None]:
    """mlx-lm's own loop, which runs one row ahead of what it has yielded.

    Args:
        cache: one that can drop a single row.
        whole: leave the row of the newest token in the cache, as mlx-lm does; else it is taken out.
    """
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
        **options.caching.filling(),
        prompt_progress_callback=progress,
    )
    try:
        for token, logprobs in steps:
            statistics.forward(0)
            statistics.emit(None)
            emitted += 1
            yield Emitted(token, logprobs, None, Round(statistics.forwards, [token]))
    finally:
        steps.close()
        checkpoint.back_to(prefilled + emitted + (whole and emitted > 0))
