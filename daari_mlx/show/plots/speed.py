"""Picture: how much faster than plain decoding each prompt was answered, losing ones in sight."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from daari_mlx.measure.records import Spread
from daari_mlx.show.plots.records import Plotted, bench_records, names_of
from daari_mlx.show.plots.style import SMALL, Palette, foot, picture

NEEDED = ("rows", "n")
KINDS = {"ratio": "decoding", "wall_ratio": "prefill included"}
BAND = 0.72  # of a row's height, that its points take
TICKS = (0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8, 10, 15, 20, 30, 50)


def plot_speed(
    records: Plotted | Sequence[Plotted],
    path: str | Path,
    *,
    names: Sequence[str] | None = None,
    dark: bool = False,
) -> Path:
    """Draw how many times faster than plain decoding every prompt was answered, sorted, with and without prefill.

    Args:
        records: one benchmark, or several; also as a line of a results file gives it.
        path: the picture to write, of the kind that its suffix names (.png, .svg, .pdf); its folder is made.
        names: what the records are called; None: after their data.
        dark: light on dark.

    Raises:
        DaariError: there is no record, one lacks its rows, or matplotlib is missing.
    """
    chosen = bench_records(records, NEEDED)
    called = names_of(chosen, names)
    with picture(path, (10.0, 1.4 + 1.55 * len(chosen)), dark=dark) as (figure, palette):
        axes = figure.subplots()
        for number, (record, name) in enumerate(zip(chosen, called, strict=True)):
            how = {"transform": axes.get_yaxis_transform(), "weight": "bold", "ha": "right", "va": "center"}
            axes.text(-0.006, 2 * number - 0.42, name, **how)
            for line, kind in enumerate(KINDS):
                ratios = sorted(row[kind] for row in record["rows"])
                draw_ratios(axes, ratios, 2 * number + line, palette.colour(number), palette)
        dress(axes, len(chosen), palette)
        prompts = sum(record["n"] for record in chosen)
        note = (
            f"n = {prompts:,} prompts, one point each, sorted; tick: median; bar: quartiles; crosses: slower than plain"
        )
        foot(figure, note, palette)
    return Path(path)


def draw_ratios(axes: Any, ratios: Sequence[float], row: int, colour: str, palette: Palette) -> None:
    """One point a prompt, rising through the row; median and quartiles behind them, and in words at the right."""
    spread = Spread.of(list(ratios))
    axes.plot((spread.lower, spread.upper), (row, row), color=colour, alpha=0.28, linewidth=15, solid_capstyle="butt")
    axes.vlines(spread.median, row - 0.3, row + 0.3, color=colour, linewidth=2.4)
    heights = [row + BAND * (0.5 - (rank + 0.5) / len(ratios)) for rank in range(len(ratios))]
    points = list(zip(ratios, heights, strict=True))
    for marker, kept, shade in (
        ("o", [p for p in points if p[0] >= 1], colour),
        ("x", [p for p in points if p[0] < 1], palette.bad),
    ):
        axes.plot([x for x, _ in kept], [y for _, y in kept], marker, color=shade, markersize=4, alpha=0.85)
    losing = sum(ratio < 1 for ratio in ratios)
    how = {"va": "center", "fontsize": SMALL + 1, "transform": axes.get_yaxis_transform()}
    axes.text(1.01, row - 0.1, f"{spread.median:.2f}x ({spread.lower:.2f}–{spread.upper:.2f})", **how)
    axes.text(
        1.01, row + 0.1, f"{losing} of {len(ratios)} slower", color=palette.bad if losing else palette.quiet, **how
    )


def dress(axes: Any, records: int, palette: Palette) -> None:
    """Axes, ticks and the line of plain decoding."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    low, high = min(low, 0.85), max(high, 1.2)
    ticks = [tick for tick in TICKS if low <= tick <= high]
    axes.set_xticks(ticks, [f"{tick:g}x" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlim(low, high)
    axes.axvline(1, color=palette.quiet, linestyle="--", linewidth=1.2)
    axes.set_yticks(range(2 * records), [*KINDS.values()] * records)
    axes.set_ylim(2 * records - 0.45, -0.75)
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")
    axes.set(title="Faster than plain mlx-lm, prompt by prompt", xlabel="plain seconds per token over ours (1x: plain)")
