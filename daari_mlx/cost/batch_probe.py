"""Measuring T(B, m): forwards over m columns of B rows, at few points on both sides of the kernels' cliffs.

T(m) tells most of it, since a forward reads the weights once for all rows; what padding, attention and the rows' own
places cost besides is what these points add.
"""

from __future__ import annotations

import statistics
import time

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache

from daari_mlx.ground.progress import Bar
from daari_mlx.teacher.ragged import RaggedCache

# kernels for quantised weights read tiles of 32 rows: B * m of 32 and 64, and one step beyond each
POINTS = tuple([(4, m) for m in (1, 2, 4, 8, 9, 16)] + [(16, m) for m in (1, 2, 3, 4, 5)])
Point = tuple[int, int, float]  # rows, columns, seconds


def measure_batches(
    model: nn.Module,
    *,
    context: int,
    repeats: int,
    progress: Bar | None = None,
    points: tuple[tuple[int, int], ...] = POINTS,
) -> tuple[Point, ...]:
    """The median seconds of a forward at each point, for a model whose rows can share forwards.

    Args:
        context: tokens that each row holds.
        repeats: forwards at each point, the points interleaved.
        progress: a bar that counts forwards, or None.
    """
    single = make_prompt_cache(model)
    model(mx.array([[1] * context]), cache=single)
    mx.eval([layer.state for layer in single])
    times: dict[tuple[int, int], list[float]] = {point: [] for point in points}
    for rows in dict.fromkeys(rows for rows, _ in points):
        cache = RaggedCache(model)
        for _ in range(rows):
            cache.join(single, context)
        for repeat in range(repeats + 1):  # the first allocates and compiles
            for _, columns in [point for point in points if point[0] == rows]:
                seconds = _timed(cache, rows, columns)
                if repeat:
                    times[rows, columns].append(seconds)
                if progress is not None:
                    progress.update()
    return tuple((*point, statistics.median(found)) for point, found in times.items())


def _timed(cache: RaggedCache, rows: int, columns: int) -> float:
    start = time.perf_counter()
    logits, _ = cache.forward([[1] * columns] * rows)
    mx.eval(mx.argmax(logits - mx.logsumexp(logits, axis=-1, keepdims=True), axis=-1))
    seconds = time.perf_counter() - start
    cache.settle([0] * rows)
    return seconds
