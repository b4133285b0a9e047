"""Picture: whether promised probabilities come true on held-out text."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Any

from daari_mlx.graph.outlook import Outlook
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.intervals import wilson
from daari_mlx.show.plots.style import SMALL, Palette, distinct, foot, picture

Record = dict[str, Any]
Told = Record | Outlook
COLUMNS = 3


def plot_calibration(
    records: Told | Sequence[Told],
    path: str | Path,
    *,
    names: Sequence[str] | None = None,
    dark: bool = False,
) -> Path:
    """Draw how far promised probabilities come true on held-out text.

    Args:
        records: one or several of: a ``"reliability"`` line of ``results/replay.jsonl``, with ``bins`` of ``tokens``
            (how many), ``promised`` (their mean probability) and ``right`` (the share that came true); or the held-out
            answers that a graph's ``compile_stats.json`` keeps. Bins without tokens are left out.
        path: the picture to write, of the kind that its suffix names (.png, .svg, .pdf); its folder is made.
        names: what they are called; None: after their set and teacher.
        dark: light on dark.

    Raises:
        DaariError: a record has no bins, or none with tokens; or matplotlib is missing.
    """
    several = [records] if isinstance(records, (dict, Outlook)) else list(records)
    parts = [bins_of(record) for record in several]
    if not parts:
        raise DaariError("There is nothing to draw: give a reliability line or a graph's held-out answers.")
    called = list(names) if names is not None else distinct([_name(record) for record in several])
    columns = min(COLUMNS, len(parts))
    rows = ceil(len(parts) / columns)
    size = (6.2, 5.8) if len(parts) == 1 else (3.6 * columns, 3.5 * rows + 0.5)
    with picture(path, size, dark=dark) as (figure, palette):
        places = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).ravel()
        for axes, bins, name in zip(places, parts, called, strict=False):
            draw_reliability(axes, bins, name, palette, alone=len(parts) == 1)
        for axes in places[len(parts) :]:
            axes.remove()
        places[0].legend(loc="lower right", fontsize=9)
        if len(parts) > 1:
            figure.suptitle("Do promises come true?", x=0.01, ha="left", fontsize=12)
            for number, axes in enumerate(places[: len(parts)]):
                if number % columns == 0:
                    axes.set_ylabel("share right")
                if number + columns >= len(parts):
                    axes.set_xlabel("promised probability")
                    axes.tick_params(labelbottom=True)
        tokens = sum(count for bins in parts for _, count, _ in bins)
        foot(figure, f"n = {tokens:,} draft tokens; lines: 95 % interval (Wilson); small figures: tokens", palette)
    return Path(path)


def bins_of(record: Told) -> list[tuple[float, int, int]]:
    """Mean promise, tokens and right tokens of every bin with tokens.

    Raises:
        DaariError: there is none.
    """
    if isinstance(record, Outlook):
        bins = [(b.promised, b.tokens, b.right) for b in record.reliability() if b.tokens]
    else:
        told = [part for part in record.get("bins") or [] if part["tokens"]]
        bins = [(part["promised"], part["tokens"], round(part["right"] * part["tokens"])) for part in told]
    if not bins:
        raise DaariError(
            "The record has no reliability bins with tokens: give a line of results/replay.jsonl whose measurement is "
            "reliability, or a graph that was compiled from enough text to hold some out."
        )
    return bins


def draw_reliability(
    axes: Any, bins: Sequence[tuple[float, int, int]], name: str, palette: Palette, *, alone: bool = True
) -> None:
    """Right against promised shares with their intervals and counts, and the line on which both are equal."""
    promised, shares = [p for p, _, _ in bins], [right / tokens for _, tokens, right in bins]
    low, high = zip(*(wilson(right, tokens) for _, tokens, right in bins), strict=True)
    colour = palette.colour(0)
    axes.plot((0, 1), (0, 1), color=palette.quiet, linestyle="--", linewidth=1, label="as promised")
    axes.vlines(promised, low, high, color=colour, linewidth=1.6)
    axes.plot(promised, shares, color=colour, marker="o", markersize=4.5, linewidth=1.2, label="held-out text")
    for x, y, (_, count, _) in zip(promised, high, bins, strict=True):
        how = {"ha": "center", "fontsize": SMALL - 1, "color": palette.quiet}
        axes.annotate(f"{count:,}", (x, y), (0, 4), textcoords="offset points", **how)
    axes.set(xlim=(0, 1.06), ylim=(0, 1.1))
    if alone:
        axes.set(xlabel="promised probability of a draft token", ylabel="share right")
        name = f"Do promises come true? ({name})" if name else "Do promises come true?"
    axes.set_title(name)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:.0%}")
        axis.set_ticks([0, 0.2, 0.4, 0.6, 0.8, 1])


def _name(record: Told) -> str:
    if isinstance(record, Outlook):
        return ""
    return " ".join(str(record[key]) for key in ("set", "teacher") if record.get(key))
