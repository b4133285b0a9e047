"""T(m) for who drafts: as measured, else timed for some seconds before a first answer and corrected by rounds."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from daari_mlx.cost import probe
from daari_mlx.cost.batch_cost import BatchCost
from daari_mlx.cost.curves import CURVES, published_for
from daari_mlx.cost.length import Cost
from daari_mlx.cost.probe import LONGER, QUICK_ROWS, fill, key_for, key_of, load, path_of, save, timed
from daari_mlx.cost.rounds import RoundCost
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.files import read_json, write_json
from daari_mlx.ground.progress import bar, note
from daari_mlx.teacher.fingerprint import fingerprint_model

LOOK_ROWS = (1, 8, 2, 16, 4, 32)  # what is timed before a first answer, as far as the time for that lasts
LOOK_SECONDS = 3.0
NEWS = 16  # new rounds that are worth keeping
_ATTRIBUTE = "_daari_cost"


def cost_of(model: nn.Module) -> Cost | RoundCost:
    """T(m) of this model on this machine as far as it is known: measured and kept, or provisional.

    Where nothing was measured, a published curve is the start, a look of a few seconds at most corrects it, and so does
    every round of an answer that :func:`provisional` hands on to; that is kept too.
    """
    return measured_before(model) or _provisional(model, look=True)


def ready_cost(model: nn.Module) -> Cost | RoundCost:
    """The same without a look: nothing is waited for."""
    return measured_before(model) or _provisional(model, look=False)


def batch_cost_of(model: nn.Module, *, look: bool = True) -> BatchCost:
    """T(B, m) of this model on this machine, with what was measured of it. One for each engine: it learns.

    Args:
        look: as :func:`cost_of`; else nothing is waited for.
    """
    measured, record = measured_before(model), load(model)
    if measured is None:
        return BatchCost(_provisional(model, look=look))
    return BatchCost(measured, () if record is None else record.batch_points)


def measured_cost(model: nn.Module) -> Cost:
    """The kept T(m) of this model on this machine; measured where there is none yet, within a minute or so.

    A noisy one serves this process alone: a note says so.
    """
    known = measured_before(model)
    if known is None:
        record = probe.measure(model, rows=QUICK_ROWS, repeats=3, longer=LONGER)
        if save(record) is None and record.noisy:
            note(
                "note: the times scattered too much to be kept (is something else running?), so the next command "
                "measures anew; on a quiet machine, daari-mlx probe keeps them"
            )
        known = record.cost
        object.__setattr__(model, _ATTRIBUTE, (_kind(model), known))
    return known


def measured_before(model: nn.Module) -> Cost | None:
    """T(m) of this model as it was measured on this machine; None where it was not yet."""
    known = _known(model)
    if isinstance(known, Cost):
        return known
    record = load(model)
    if record is None:
        return None
    cost = record.cost
    object.__setattr__(model, _ATTRIBUTE, (_kind(model), cost))
    return cost


def provisional(model: nn.Module) -> RoundCost | None:
    """What rounds of this model are told to, as long as its T(m) is provisional; else None."""
    known = _known(model)
    return known if isinstance(known, RoundCost) else None


def keep_rounds(model: nn.Module) -> None:
    """Keep what rounds told of T(m) for the next process."""
    cost = provisional(model)
    if cost is not None:
        cost.news = 0
        with contextlib.suppress(OSError, DaariError):  # it is found out anew
            times = {str(rows): known for rows, known in cost.times().items()}
            write_json(path_of(key_of(model), "rounds"), {"key": key_of(model), "times": times})


def kept_rounds(teacher: dict[str, Any]) -> RoundCost | None:
    """What rounds of the teacher with this fingerprint told of T(m) here; None where nothing sound was kept."""
    try:
        value = read_json(path_of(key_for(teacher), "rounds"), "measurement")["times"]
        times = {int(rows): times for rows, times in value.items()}
        return RoundCost(_start(teacher), times) if times else None
    except (DaariError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _start(teacher: dict[str, Any]) -> Cost:
    return CURVES[published_for(mx.default_device().type.name, teacher["quantisation"] is not None)].cost


def _provisional(model: nn.Module, look: bool) -> RoundCost:
    known = provisional(model)
    if known is None:
        teacher = fingerprint_model(model)
        known = kept_rounds(teacher) or RoundCost(_start(teacher))
        object.__setattr__(model, _ATTRIBUTE, (_kind(model), known))
    if look and not known.times():
        look_at(model, known)
        keep_rounds(model)
    return known


def look_at(model: nn.Module, cost: RoundCost, seconds: float = LOOK_SECONDS) -> None:
    """Time a few row counts, as long as ``seconds`` last, loading and compiling of the first forward left out."""
    from mlx_lm.models.cache import make_prompt_cache

    cache = make_prompt_cache(model)
    words = "timing this machine for a moment (provisional, answers go on with it)"
    with bar(total=len(LOOK_ROWS), desc=words, unit="forward", delay=2.0) as progress:
        fill(model, cache, 0, 1)
        start, last = time.perf_counter(), 0.0
        for rows in LOOK_ROWS:
            if time.perf_counter() - start + 4 * last > seconds:
                break
            first = timed(model, cache, rows)  # compiles
            if first > seconds / 3:  # a huge model: this has to do
                cost.timed(rows, first)
                progress.update(1)
                break
            for _ in range(2):
                last = timed(model, cache, rows)
                cost.timed(rows, last)
            progress.update(1)


def _known(model: nn.Module) -> Cost | RoundCost | None:
    """What this process knows already."""
    known: tuple[tuple[str, str | None], Cost | RoundCost] | None = getattr(model, _ATTRIBUTE, None)
    return None if known is None or known[0] != _kind(model) else known[1]


def _kind(model: nn.Module) -> tuple[str, str | None]:
    """What a change of weights or of an adapter's scale leaves."""
    teacher = fingerprint_model(model)
    return teacher["structure"], teacher["quantisation"]
