"""T(m) on this machine: how long a teacher forward over m rows takes, measured once for each model and kept."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from daari_mlx import blas
from daari_mlx.errors import DaariError
from daari_mlx.files import write_json
from daari_mlx.fingerprint import context_length, fingerprint_model
from daari_mlx.length import Cost
from daari_mlx.progress import bar
from daari_mlx.quirks import forward_rows

ROWS = tuple(range(1, 34))
QUICK_ROWS = (1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 13, 16, 17, 20, 24, 25, 28, 32, 33)
CONTEXT = 256  # tokens in the cache while measuring
MAX_SPREAD = 0.5  # a record whose times scatter more, relative to their median, is not kept
MIN_REPEATS = 3  # of fewer forwards nobody knows how much they scatter
PROMPT_TOKEN = 1
_ATTRIBUTE = "_daari_cost"


@dataclass(frozen=True)
class ProbeRecord:
    """T(m) of one model on one machine.

    Attributes:
        key: what it depends on: chip, model, bits, mlx version, BLAS.
        rows: the measured m.
        seconds: the median time of a forward over m rows, sampling included.
        spread: interquartile range over median, the worst of all m.
        context: tokens in the cache while measuring.
        repeats: forwards measured for each m.
    """

    key: dict[str, Any]
    rows: tuple[int, ...]
    seconds: tuple[float, ...]
    spread: float
    context: int
    repeats: int

    @property
    def cost(self) -> Cost:
        """The curve relative to one row."""
        return Cost(self.rows, tuple(s / self.seconds[0] for s in self.seconds))

    @property
    def noisy(self) -> bool:
        """Whether the times scatter too much to be kept, or are too few to tell."""
        return self.spread > MAX_SPREAD or self.repeats < MIN_REPEATS


def cost_of(model: nn.Module) -> Cost:
    """The kept T(m) of this model on this machine; measured quickly where there is none yet."""
    known: Cost | None = getattr(model, _ATTRIBUTE, None)
    if known is None:
        record = load(model)
        if record is None:
            record = measure(model, rows=QUICK_ROWS, repeats=3)
            save(record)
        known = record.cost  # a noisy one serves this process, so that it is not measured for every answer
        object.__setattr__(model, _ATTRIBUTE, known)
    return known


def measure(model: nn.Module, *, rows: tuple[int, ...] = ROWS, repeats: int = 7, context: int = CONTEXT) -> ProbeRecord:
    """Time forwards over m rows on a cache of ``context`` tokens; the m are interleaved, so drift hits all alike."""
    from mlx_lm.models.cache import make_prompt_cache

    limit = context_length(model)
    if limit is not None:
        context = max(1, min(context, limit - max(rows) - 1))
    times: dict[int, list[float]] = {m: [] for m in rows}
    cache = make_prompt_cache(model)
    _forward(model, cache, context)
    for m in rows:  # warm up: kernels are compiled and buffers allocated at the first use of a shape
        _timed(model, cache, context, m)
    with bar(total=repeats * len(rows), desc="measuring T(m), kept for this model", unit="forward") as progress:
        for _ in range(repeats):
            for m in rows:
                times[m].append(_timed(model, cache, context, m))
                progress.update(1)
    spread = max(_spread(t) for t in times.values())
    medians = tuple(statistics.median(times[m]) for m in rows)
    return ProbeRecord(key_of(model), rows, medians, spread, context, repeats)


def _timed(model: nn.Module, cache: list[Any], context: int, rows: int) -> float:
    from mlx_lm.models.cache import can_trim_prompt_cache, make_prompt_cache, trim_prompt_cache

    start = time.perf_counter()
    _forward(model, cache, rows)
    seconds = time.perf_counter() - start
    if not can_trim_prompt_cache(cache) or trim_prompt_cache(cache, rows) != rows:
        cache[:] = make_prompt_cache(model)
        _forward(model, cache, context)
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
    print_of_model = fingerprint_model(model)
    return {
        "chip": chip(),
        "structure": print_of_model["structure"],
        "quantisation": print_of_model["quantisation"],
        "mlx": importlib.metadata.version("mlx"),
        "blas": blas.status().name,
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


def _path(key: dict[str, Any]) -> Path:
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    return cache_dir() / "probe" / f"{digest}.json"


def save(record: ProbeRecord) -> Path | None:
    """Keep a clean record in place of an older one; return where, or None when it is noisy or cannot be written."""
    if record.noisy:
        return None
    path = _path(record.key)
    try:
        write_json(path, asdict(record))
    except (OSError, DaariError):
        return None
    return path


def load(model: nn.Module) -> ProbeRecord | None:
    """The kept record of this model on this machine; None when there is none that can be read."""
    try:
        value = json.loads(_path(key_of(model)).read_text(encoding="utf-8"))
        record = ProbeRecord(**{**value, "rows": tuple(value["rows"]), "seconds": tuple(value["seconds"])})
        _ = record.cost
    except (OSError, ValueError, TypeError, KeyError, ArithmeticError, RecursionError):
        return None
    return record
