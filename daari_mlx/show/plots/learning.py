"""Picture: tokens a forward, answer by answer, while a graph is learnt from nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from daari_mlx.ground.errors import DaariError
from daari_mlx.show.plots.style import foot, picture

MEAN = 10  # answers that a point of a line is the mean of
ABREAST = 3  # panels


def plot_learning(
    records: Sequence[dict[str, Any]], path: str | Path, *, names: Sequence[str] | None = None, dark: bool = False
) -> Path:
    """Draw tokens a forward by the number of answers that were learnt, against who hears the same answers.

    Args:
        records: lines of ``results/learn.jsonl``, a panel each.
        path: the picture to write, of the kind that its suffix names (.png, .svg, .pdf); its folder is made.
        names: what the panels are called; None: after their set, the graph they began with, and T(m).
        dark: light on dark.

    Raises:
        DaariError: there is no record of learning, or matplotlib is missing.
    """
    chosen = [record for record in records if isinstance(record.get("each"), dict) and record["each"]]
    if not chosen:
        raise DaariError("None of these is a record of learning: give lines that scripts/bench/bench_learn.py wrote.")
    columns = min(len(chosen), ABREAST)
    rows = -(-len(chosen) // columns)
    with picture(path, (5.2 * columns, 4.2 * rows), dark=dark) as (figure, palette):
        panels = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes in panels[len(chosen) :]:
            axes.set_visible(False)
        for place, (record, axes) in enumerate(zip(chosen, panels, strict=False)):
            for number, (name, rates) in enumerate(record["each"].items()):
                axes.plot(rates, ".", color=palette.colour(number), markersize=3, alpha=0.4)
                axes.plot(running_mean(rates), color=palette.colour(number), linewidth=2, label=name)
            axes.axhline(1, color=palette.quiet, linestyle="--", linewidth=1.2, label="plain")
            axes.set(
                title=names[place] if names else _title(record),
                xlabel="answers learnt before",
                ylabel="tokens per forward",
            )
            axes.legend()
        foot(figure, f"replayed; a point: an answer; lines: the mean of the last {MEAN}", palette)
    return Path(path)


def _title(record: dict[str, Any]) -> str:
    """After its set and T(m), and after the text of the graph that learning began with."""
    begun = f", begun with a graph of {record['on']}" if record.get("on") else ""
    return f"{record['set']}{begun}, {record['curve']}"


def running_mean(values: Sequence[float]) -> list[float]:
    """The mean of each value and those before it, ``MEAN`` at the most."""
    windows: list[Any] = [values[max(0, end - MEAN) : end] for end in range(1, len(values) + 1)]
    return [sum(window) / len(window) for window in windows]
