"""Picture: what a fixed draft length would give on held-out answers, under several T(m), against the chosen lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from daari_mlx.cost.curves import CURVES, Curve
from daari_mlx.cost.length import MAX_DRAFT
from daari_mlx.graph.outlook import Outlook
from daari_mlx.ground.errors import DaariError
from daari_mlx.measure.forecast import go_through, go_through_fixed, ratio_interval
from daari_mlx.measure.replay import Replayed
from daari_mlx.show.plots.style import Palette, foot, picture


@dataclass(frozen=True)
class Point:
    """What came of one draft length.

    Attributes:
        drafted: the length: fixed, or the mean over all forwards.
        value: the figure.
        low, high: between them lies that of nine in ten sets of as many answers.
    """

    drafted: float
    value: float
    low: float
    high: float


def plot_length(
    outlook: Outlook,
    path: str | Path,
    *,
    curves: Sequence[Curve] | None = None,
    name: str | None = None,
    dark: bool = False,
) -> Path:
    """Draw tokens per forward and projected speed-up against a fixed draft length, and where ``auto`` lands.

    Args:
        outlook: the held-out answers that a graph's ``compile_stats.json`` keeps.
        path: the picture to write, of the kind that its suffix names (.png, .svg, .pdf); its folder is made.
        curves: the machines; None: all published ones. Nothing is drawn beyond the rows that were measured.
        name: what the graph is called.
        dark: light on dark.

    Raises:
        DaariError: there is no answer or no machine, or matplotlib is missing.
    """
    machines = list(CURVES.values()) if curves is None else list(curves)
    if not outlook.tokens or not machines:
        raise DaariError(
            f"There are {len(outlook.answers)} held-out answers and {len(machines)} machines to draw for: give a graph "
            "that keeps held-out answers, and at least one T(m) curve."
        )
    fixed = [go_through_fixed(outlook, length) for length in range(MAX_DRAFT + 1)]
    autos = [go_through(outlook, curve.cost, curve.most) for curve in machines]
    columns = ceil(len(machines) / 2) if len(machines) > 1 else 1
    with picture(path, (4.6 + 2.5 * columns, 5.4), dark=dark) as (figure, palette):
        left, right = figure.subfigures(1, 2, width_ratios=(4.6, 2.5 * columns))
        for part in (left, right):
            part.set_facecolor(palette.ground)
        draw_tokens(left.subplots(), fixed, autos, machines, palette)
        places = right.subplots(2 if len(machines) > 1 else 1, columns, sharex=True, sharey=True, squeeze=False).ravel()
        for number, (axes, curve, auto) in enumerate(zip(places, machines, autos, strict=False)):
            draw_speedup(axes, curve, fixed, auto, palette.colour(number), palette)
        for axes in places[len(machines) :]:
            axes.remove()
        right.supylabel("projected speed-up", fontsize=10)
        right.supxlabel("draft length", fontsize=10)
        if name:
            figure.suptitle(name, x=0.01, ha="left", fontsize=12)
        note = f"n = {len(outlook.answers):,} held-out answers, {outlook.tokens:,} tokens; "
        foot(
            figure, note + "band: 90 % over answers; point: auto, at its mean length; drafting itself is free", palette
        )
    return Path(path)


def draw_tokens(
    axes: Any, fixed: Sequence[Replayed], autos: Sequence[Replayed], curves: Sequence[Curve], palette: Palette
) -> None:
    """Tokens per forward of every fixed length, and of the lengths chosen under each T(m)."""
    points = [tokens_point(found, length) for length, found in enumerate(fixed)]
    _line(axes, points, palette.ink)
    for number, (found, curve) in enumerate(zip(autos, curves, strict=True)):
        _mark(axes, tokens_point(found), palette.colour(number), palette, f"auto, {curve.name}")
    axes.set(title="Tokens per teacher forward", xlabel="draft length", ylabel="tokens per forward", xlim=(-0.8, 33))
    axes.set_ylim(bottom=0)
    axes.legend(loc="lower right", fontsize=8.5)


def draw_speedup(
    axes: Any, curve: Curve, fixed: Sequence[Replayed], auto: Replayed, colour: str, palette: Palette
) -> None:
    """Projected speed-up of every fixed length within what was measured, and of the chosen lengths."""
    points = [speedup_point(found, curve, length) for length, found in enumerate(fixed[: curve.most + 1])]
    best, chosen = max(points, key=lambda point: point.value), speedup_point(auto, curve)
    axes.axhline(1, color=palette.quiet, linestyle="--", linewidth=1)
    _line(axes, points, colour)
    _mark(axes, chosen, colour, palette, None)
    axes.set_title(
        f"{curve.name}\nauto {chosen.value:.2f}x, best fixed {best.value:.2f}x ({best.drafted:.0f})", fontsize=9
    )
    axes.set(xlim=(-0.8, 33), xticks=(0, 8, 16, 24, 32))
    axes.set_ylim(bottom=0)


def tokens_point(found: Replayed, length: int | None = None) -> Point:
    """Tokens per forward; without a length, at the mean of those that were drafted."""
    counts = [(answer.tokens, len(answer.rounds)) for answer in found.answers]
    return _point(found, found.tokens_per_forward, counts, length)


def speedup_point(found: Replayed, curve: Curve, length: int | None = None) -> Point:
    """Projected speed-up over all tokens; without a length, at the mean of those that were drafted."""
    times = [(answer.tokens, answer.time(curve.cost)) for answer in found.answers]
    return _point(found, found.speedup(curve.cost), times, length)


def _point(found: Replayed, value: float, sums: Sequence[tuple[float, float]], length: int | None) -> Point:
    drafted = sum(round_[0] for answer in found.answers for round_ in answer.rounds) / found.forwards
    return Point(drafted if length is None else length, value, *ratio_interval(np.array(sums)))


def _line(axes: Any, points: Sequence[Point], colour: str) -> None:
    lengths = [point.drafted for point in points]
    axes.fill_between(lengths, [p.low for p in points], [p.high for p in points], color=colour, alpha=0.16, linewidth=0)
    axes.plot(lengths, [point.value for point in points], color=colour, linewidth=1.8)


def _mark(axes: Any, point: Point, colour: str, palette: Palette, label: str | None) -> None:
    axes.vlines(point.drafted, point.low, point.high, color=colour, linewidth=1.4, zorder=4)
    how = {"markersize": 8, "markeredgecolor": palette.ground, "zorder": 5, "linestyle": "none"}
    axes.plot(point.drafted, point.value, "o", color=colour, label=label, **how)
