"""Picture: what was found on machines beside what published T(m) let one expect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from daari_mlx.cost.curves import CURVES
from daari_mlx.ground.errors import DaariError
from daari_mlx.show.plots.records import Record, check_entries
from daari_mlx.show.plots.style import SMALL, Palette, distinct, foot, picture, tick_counts

NEEDED = ("device", "model", "probe", "predicted", "single", "batched")
HERE = "this machine"  # under ``predicted``, what the machine's own T(m) let one expect
LINES = ("-o", "--s", ":^", "-.D")  # of machines, where they share a panel
ROW = 0.72  # inches of a machine's row
MOST_ROWS = 33  # of a forward, that are drawn


def plot_machines(
    records: Record | Sequence[Record],
    path: str | Path,
    *,
    names: Sequence[str] | None = None,
    dark: bool = False,
) -> Path:
    """Draw each machine's speed-up beside what was predicted for it and for published ones, its T(m), and its batches.

    Args:
        records: what ``scripts/record`` wrote on some machines, one or several.
        path: the picture to write, of the kind that its suffix names (.png, .svg, .pdf); its folder is made.
        names: what the machines are called; None: after chip and model.
        dark: light on dark.

    Raises:
        DaariError: there is no record, one is of another kind, or matplotlib is missing.
    """
    chosen = [records] if isinstance(records, Mapping) else list(records)
    if not chosen:
        raise DaariError("There is no record of a machine to draw: give files that scripts/record wrote.")
    check_entries(chosen, NEEDED, "scripts/record")
    called = list(names) if names is not None else distinct([f"{r['device']}, {_model(r)}" for r in chosen])
    heights = (1.3 + ROW * len(chosen), 3.3 + 0.2 * len(chosen))
    with picture(path, (10.0, sum(heights) + 0.3), dark=dark) as (figure, palette):
        top, bottom = figure.subfigures(2, 1, height_ratios=heights)
        for part in (top, bottom):
            part.set_facecolor(palette.ground)
        rows = top.subplots()
        draw_machines(rows, chosen, called, palette)
        marks = legend_of(rows)
        top.legend(marks.values(), marks, loc="outside upper left", ncols=4, fontsize=SMALL)
        left, right = bottom.subplots(1, 2)
        draw_costs(left, chosen, palette)
        draw_batches(right, chosen, called, palette)
        bottom.legend(*right.get_legend_handles_labels(), loc="outside upper left", ncols=2, fontsize=SMALL)
        answers = sum(record["single"]["n"] for record in chosen)
        note = f"n = {answers:,} answers one at a time; bar: quartiles; dashed: plain; coloured: by published T(m); "
        foot(figure, note + "predictions: of the graph's held-out answers", palette)
    return Path(path)


def _model(record: Record) -> str:
    return str(record["model"]["name"]).rsplit("/", 1)[-1]


def draw_machines(axes: Any, records: Sequence[Record], names: Sequence[str], palette: Palette) -> None:
    """A row for each machine: measured with its quartiles, predicted for it, and projected by each published T(m)."""
    for place, (record, name) in enumerate(zip(records, names, strict=True)):
        how: dict[str, Any] = {"bbox": {"facecolor": palette.ground, "edgecolor": "none", "pad": 1.5}}
        axes.text(0.006, place - 0.42, name, weight="bold", va="center", transform=axes.get_yaxis_transform(), **how)
        found, predicted = record["single"]["decode_ratio"], record["predicted"]
        axes.plot((found["lower"], found["upper"]), (place, place), color=palette.ink, alpha=0.25, linewidth=13,
                  solid_capstyle="butt")  # fmt: skip
        for number, curve in enumerate(CURVES):
            if curve in predicted:
                how = {"markeredgewidth": 2, "color": palette.colour(number), "linestyle": "none"}
                axes.plot(predicted[curve]["speedup"], place, "|", markersize=15, label=f"by {curve}", **how)
        told = f"{found['median']:.2f}x ({found['lower']:.2f}–{found['upper']:.2f})"
        if HERE in predicted:
            speedup = predicted[HERE]["speedup"]
            how = {"markerfacecolor": palette.ground, "markeredgewidth": 1.6, "linestyle": "none", "zorder": 4}
            axes.plot(speedup, place, "D", color=palette.ink, markersize=8, label="predicted for it", **how)
            told += f"\npredicted {speedup:.2f}x ({speedup / found['median'] - 1:+.0%})"
        how = {"markersize": 7, "linestyle": "none", "zorder": 5}
        axes.plot(found["median"], place, "o", color=palette.ink, label="measured", **how)
        axes.text(1.01, place, told, va="center", fontsize=SMALL + 1, transform=axes.get_yaxis_transform())
    axes.axvline(1, color=palette.quiet, linestyle="--", linewidth=1.2)
    axes.set(title="One answer at a time, over plain mlx-lm", xlabel="times as fast while decoding")
    axes.set_yticks([])
    axes.set_ylim(len(records) - 0.6, -0.75)
    axes.set_xlim(left=0)
    axes.grid(False, axis="y")


def legend_of(axes: Any) -> dict[str, Any]:
    """Each kind of mark once by its label: what was measured first, then in the order of the published curves."""
    handles, labels = axes.get_legend_handles_labels()
    marks = dict(zip(labels, handles, strict=True))
    order = ["measured", "predicted for it", *(f"by {curve}" for curve in CURVES)]
    return {label: marks[label] for label in order if label in marks}


def draw_costs(axes: Any, records: Sequence[Record], palette: Palette) -> None:
    """T(m) of each machine, in the ink, over the published ones."""
    for number, curve in enumerate(CURVES.values()):
        axes.plot(curve.cost.rows, curve.cost.relative, color=palette.colour(number), linewidth=1.4, alpha=0.75)
    for place, record in enumerate(records):
        probe = record["probe"]
        rows = [m for m in probe["rows"] if m <= MOST_ROWS]
        times = [seconds / probe["seconds"][0] for seconds in probe["seconds"][: len(rows)]]
        axes.plot(rows, times, LINES[place % len(LINES)], color=palette.ink, markersize=3.5)
    axes.set(title="What a forward over m tokens costs", xlabel="m", ylabel="T(m) / T(1)")
    axes.set_xlim(0, MOST_ROWS + 0.5)
    axes.set_ylim(bottom=0)


def draw_batches(axes: Any, records: Sequence[Record], names: Sequence[str], palette: Palette) -> None:
    """How much faster than mlx-lm's own batch, by how many answers share a forward."""
    for place, (record, name) in enumerate(zip(records, names, strict=True)):
        sizes = record["batched"]["sizes"]
        rows, ratios = [size["rows"] for size in sizes], [size["decode_ratio"] for size in sizes]
        axes.plot(rows, ratios, LINES[place % len(LINES)], color=palette.ink, markersize=5, label=name)
        for count, ratio in zip(rows, ratios, strict=True) if len(records) == 1 else ():
            losing = {"color": palette.bad if ratio < 1 else palette.ink, "fontsize": SMALL}
            axes.annotate(f"{ratio:.2f}", (count, ratio), (0, 6), textcoords="offset points", ha="center", **losing)
    axes.axhline(1, color=palette.quiet, linestyle="--", linewidth=1.2)
    every = sorted({size["rows"] for record in records for size in record["batched"]["sizes"]})
    tick_counts(axes, every)
    axes.set_ylim(0, axes.get_ylim()[1] * 1.1)
    axes.set(title="Many at once, over mlx-lm's own batches", xlabel="answers at once", ylabel="times as fast")
