"""T(m) on this machine: how long a teacher forward over m rows takes, measured once for each model and kept."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from daari_mlx.cost.batch_probe import POINTS, Point, measure_batches
from daari_mlx.cost.length import Cost
from daari_mlx.ground import blas
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.files import read_json, write_json
from daari_mlx.ground.given import check_whole
from daari_mlx.ground.progress import Bar, bar
from daari_mlx.teacher.batchable import why_alone
from daari_mlx.teacher.fingerprint import context_length, fingerprint_model
from daari_mlx.teacher.quirks import forward_rows
from daari_mlx.teacher.rewind import Checkpoint

ROWS = tuple(range(1, 34))
QUICK_ROWS = (1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 13, 16, 17, 20, 24, 25, 28, 32, 33)
LONG_ROWS = (1, 2, 4, 5, 8, 9, 16, 17, 33)  # of those, the ones measured in longer contexts: attention's own switches
CONTEXT = 256  # tokens in the cache while measuring
LONGER = (2048, 8192)  # further contexts, where model and time allow
LONG_SECONDS = 8.0  # a longer context that would take longer to measure than this is left out
CHUNK = 512  # tokens that a forward takes on the way to a context
MAX_SPREAD = 0.5  # a record whose times scatter more, relative to their median, is not kept
MIN_REPEATS = 3  # of fewer forwards nobody knows how much they scatter
PROMPT_TOKEN = 1


@dataclass(frozen=True)
class ProbeRecord:
    """T(m) of one model on one machine.

    Attributes:
        key: what it depends on: chip and device, model, bits, mlx version, BLAS and its threads.
        rows: the measured m.
        seconds: the median time of a forward over m rows, sampling included.
        spread: interquartile range over median, the worst of all m.
        context: tokens in the cache while measuring.
        repeats: forwards measured for each m.
        longer: (tokens in the cache, the measured m, their seconds) for each longer context, rising.
        batches: (rows, columns, seconds) of forwards over several rows; empty where none were measured.
    """

    key: dict[str, Any]
    rows: tuple[int, ...]
    seconds: tuple[float, ...]
    spread: float
    context: int
    repeats: int
    longer: tuple[tuple[int, tuple[int, ...], tuple[float, ...]], ...] = ()
    batches: tuple[Point, ...] = ()

    @property
    def batch_points(self) -> list[tuple[int, int, float]]:
        """(rows, columns, T) of batches, relative to one row of one column at ``context``."""
        if not all(b > 1 and m > 0 and 0 < s < inf for b, m, s in self.batches):
            raise ValueError("The times of batches are not positive and finite.")
        return [(b, m, s / self.seconds[0]) for b, m, s in self.batches]

    @property
    def cost(self) -> Cost:
        """The curves relative to one row at ``context``.

        Fewer m are measured in longer contexts: what these cost there in addition is taken as linear between them, and
        as nothing where noise made it less.
        """
        first, at = self.seconds[0], dict(zip(self.rows, self.seconds, strict=True))
        longer = []
        for context, rows, seconds in self.longer:
            if not all(0 < s < inf for s in seconds):
                raise ValueError(f"The times in a context of {context} tokens are not positive and finite.")
            more = [max(0.0, s - at[m]) for m, s in zip(rows, seconds, strict=True)]
            here = np.interp(self.rows, rows, more)
            longer.append((context, tuple((s + float(d)) / first for s, d in zip(self.seconds, here, strict=True))))
        return Cost(self.rows, tuple(s / first for s in self.seconds), self.context, tuple(longer))

    @property
    def noisy(self) -> bool:
        """Whether the times scatter too much to be kept, or are too few to tell."""
        return self.spread > MAX_SPREAD or self.repeats < MIN_REPEATS


def measure(
    model: nn.Module,
    *,
    rows: tuple[int, ...] = ROWS,
    repeats: int = 7,
    context: int = CONTEXT,
    longer: tuple[int, ...] = (),
    batches: bool = False,
) -> ProbeRecord:
    """Time forwards over m rows on a cache of ``context`` tokens; the m are interleaved, so drift hits all alike.

    Args:
        longer: further contexts, rising; left out where the model's own ends before, or where they would take more
            than ``LONG_SECONDS`` each. Only ``LONG_ROWS`` of ``rows`` (and the last) are measured there.
        batches: forwards over several rows too, where this model's rows can share one.
    """
    from mlx_lm.models.cache import make_prompt_cache

    check_whole("repeats", repeats, 1)
    check_whole("context", context, 1)
    limit = context_length(model)
    room = sys.maxsize if limit is None else limit - max(rows) - 1
    context = max(1, min(context, room))
    few = tuple(m for m in rows if m in LONG_ROWS or m == rows[-1])
    spreads: list[float] = []
    cache, start = make_prompt_cache(model), time.perf_counter()
    forwards = _chunks(context) + (1 + repeats) * len(rows) + bool(longer)
    with bar(total=forwards, desc="timing forwards, once for this model", unit="forward") as progress:
        fill(model, cache, 0, context, progress)
        seconds = _curve(model, cache, rows, repeats, progress, spreads)
        filled, curves = context, []
        a_token = _rate(model, cache, context, progress) if longer else 0.0
        for end in longer:
            left = (end - filled) * a_token + (repeats + 1) * sum(seconds[rows.index(m)] for m in few)
            if not filled < end <= room or left > LONG_SECONDS:
                break
            progress.expect(_chunks(end - filled) + (1 + repeats) * len(few))
            fill(model, cache, filled, end, progress)
            curves.append((end, few, _curve(model, cache, few, repeats, progress, spreads)))
            filled = end
        points: tuple[Point, ...] = ()
        if batches and why_alone(model) is None:
            progress.expect((1 + repeats) * len(POINTS))
            points = measure_batches(model, context=context, repeats=repeats, progress=progress)
        progress.note(f"{time.perf_counter() - start:.1f} s in all")
    return ProbeRecord(key_of(model), rows, seconds, max(spreads), context, repeats, tuple(curves), points)


def _chunks(tokens: int) -> int:
    """The forwards of :func:`fill`."""
    return -(-tokens // CHUNK)


def fill(model: nn.Module, cache: list[Any], filled: int, end: int, progress: Bar | None = None) -> None:
    """Bring a cache of ``filled`` tokens to ``end``."""
    while filled < end:
        size = min(CHUNK, end - filled)
        model(mx.array([[PROMPT_TOKEN] * size]), cache=cache)
        mx.eval([c.state for c in cache])
        filled += size
        if progress is not None:
            progress.update()


def _rate(model: nn.Module, cache: list[Any], context: int, progress: Bar) -> float:
    """Seconds a token on the way to a longer context; the cache is as before."""
    size = min(CHUNK, context)
    checkpoint, start = Checkpoint(cache, size), time.perf_counter()
    fill(model, cache, context, context + size, progress)
    seconds = time.perf_counter() - start
    checkpoint.drop(size)
    return seconds / size


def _curve(
    model: nn.Module, cache: list[Any], rows: tuple[int, ...], repeats: int, progress: Bar, spreads: list[float]
) -> tuple[float, ...]:
    """The median seconds of a forward over each m on this cache; their spreads are added to ``spreads``."""
    times: dict[int, list[float]] = {m: [] for m in rows}
    for m in rows:  # warm up: kernels are compiled and buffers allocated at the first use of a shape
        timed(model, cache, m)
        progress.update()
    for _ in range(repeats):
        for m in rows:
            times[m].append(timed(model, cache, m))
            progress.update()
    spreads.extend(_spread(t) for t in times.values())
    return tuple(statistics.median(times[m]) for m in rows)


def timed(model: nn.Module, cache: list[Any], rows: int) -> float:
    """The seconds of one forward over ``rows``, which are taken out of the cache again."""
    checkpoint = Checkpoint(cache, rows)
    start = time.perf_counter()
    _forward(model, cache, rows)
    seconds = time.perf_counter() - start
    checkpoint.drop(rows)
    return seconds


def _forward(model: nn.Module, cache: list[Any], rows: int) -> None:
    logits = forward_rows(model, mx.array([[PROMPT_TOKEN] * rows]), cache)[0]
    mx.eval(mx.argmax(logits - mx.logsumexp(logits, axis=-1, keepdims=True), axis=-1))


def _spread(times: list[float]) -> float:
    if len(times) < 4:
        return (max(times) - min(times)) / statistics.median(times)
    quartiles = statistics.quantiles(times, n=4)
    return (quartiles[2] - quartiles[0]) / quartiles[1]


def key_of(model: nn.Module) -> dict[str, Any]:
    """What T(m) depends on."""
    return key_for(fingerprint_model(model))


def key_for(teacher: dict[str, Any]) -> dict[str, Any]:
    """The same of the teacher with this fingerprint."""
    return {
        "chip": chip(),
        "structure": teacher["structure"],
        "quantisation": teacher["quantisation"],
        "mlx": importlib.metadata.version("mlx"),
        "blas": blas.status().name,
        "device": mx.default_device().type.name,
        "threads": next((os.environ[name] for name in blas.THREADS if os.environ.get(name)), None),
    }


def chip() -> str:
    """The device's name as MLX tells it, else the processor's."""
    info = mx.device_info() if mx.metal.is_available() else {}
    if "device_name" in info:
        return str(info["device_name"])
    return f"{_cpu_name()} ({os.cpu_count()} cores)"


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def cache_dir() -> Path:
    """Where measurements are kept: ``DAARI_MLX_CACHE``, else ``~/.cache/daari-mlx``."""
    return Path(os.environ.get("DAARI_MLX_CACHE") or Path.home() / ".cache" / "daari-mlx")


def path_of(key: dict[str, Any], kind: str = "probe") -> Path:
    """Where what this key says is kept."""
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    return cache_dir() / kind / f"{digest}.json"


def save(record: ProbeRecord) -> Path | None:
    """Keep a clean record in place of an older one; return where, or None when it is noisy or cannot be written."""
    if record.noisy:
        return None
    path = path_of(record.key)
    try:
        write_json(path, asdict(record))
    except (OSError, DaariError):
        return None
    return path


def load(model: nn.Module) -> ProbeRecord | None:
    """The kept record of this model on this machine; None when there is none that can be read.

    One of an earlier version, without longer contexts, counts as none: it is measured anew.
    """
    return load_for(fingerprint_model(model))


def load_for(teacher: dict[str, Any]) -> ProbeRecord | None:
    """The same of the teacher with this fingerprint, which need not be loaded for that."""
    try:
        value = read_json(path_of(key_for(teacher)), "measurement")
        longer = tuple((context, tuple(rows), tuple(seconds)) for context, rows, seconds in value["longer"])
        batches = tuple((rows, columns, seconds) for rows, columns, seconds in value.get("batches", ()))
        arrays = {
            "rows": tuple(value["rows"]),
            "seconds": tuple(value["seconds"]),
            "longer": longer,
            "batches": batches,
        }
        record = ProbeRecord(**{**value, **arrays})
        _ = record.cost, record.batch_points
    except (DaariError, ValueError, TypeError, KeyError, ArithmeticError):
        return None
    return record
