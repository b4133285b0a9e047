"""Picture: how far drafts hold, by position, by task and by source."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from daari_mlx.ground.accept import TEACHER
from daari_mlx.ground.intervals import wilson
from daari_mlx.show.plots.records import Plotted, Record, bench_records, names_of
from daari_mlx.show.plots.style import SMALL, Palette, foot, picture

NEEDED = ("positions", "round_sizes", "sources", "drafted", "forwards", "n")
LABELLED = 0.06  # a source's share from which its bar has room for a figure


def plot_acceptance(
    records: Plotted | Sequence[Plotted],
    path: str | Path,
    *,
    names: Sequence[str] | None = None,
    dark: bool = False,
) -> Path:
    """Draw how far drafts hold: acceptance by position in the draft, tokens per forward, and who drafted them.

    Args:
        records: one benchmark, or several to compare; also as a line of a results file gives it.
        path: the picture to write, of the kind that its suffix names (.png, .svg, .pdf); its folder is made.
        names: what the records are called; None: after their data.
        dark: light on dark.

    Raises:
        DaariError: there is no record, one lacks what is drawn, or matplotlib is missing.
    """
    chosen = bench_records(records, NEEDED)
    called = names_of(chosen, names)
    bars = 0.62 + 0.3 * len(chosen)
    with picture(path, (10.5, 4.0 + bars + 0.3), dark=dark) as (figure, palette):
        grid = figure.add_gridspec(2, 2, width_ratios=(3, 2), height_ratios=(4.0, bars))
        left, right = figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[0, 1])
        draw_positions(left, chosen, called, palette)
        draw_sizes(right, chosen, palette)
        draw_sources(figure.add_subplot(grid[1, :]), chosen, called, palette)
        foot(figure, _note(chosen), palette)
    return Path(path)


def draw_positions(axes: Any, records: Sequence[Record], names: Sequence[str], palette: Palette) -> None:
    """The share accepted at each position, with its interval; of a lone record also how many were drafted there."""
    for number, (record, name) in enumerate(zip(records, names, strict=True)):
        drafted, accepted = record["positions"]["drafted"], record["positions"]["accepted"]
        if not drafted:
            continue
        colour, places = palette.colour(number), range(1, len(drafted) + 1)
        shares = [hits / tries for hits, tries in zip(accepted, drafted, strict=True)]
        low, high = zip(*map(wilson, accepted, drafted), strict=True)
        axes.fill_between(places, low, high, color=colour, alpha=0.16, linewidth=0)
        label = f"{name}: {sum(accepted) / sum(drafted):.0%} of {sum(drafted):,}"
        axes.plot(places, shares, color=colour, marker="o", markersize=4, linewidth=1.8, label=label)
        for index in range(0, len(places) if len(records) == 1 else 0, max(1, len(places) // 12)):
            at = (places[index], shares[index])
            how = {"ha": "center", "fontsize": SMALL, "color": palette.quiet}
            axes.annotate(f"{drafted[index]:,}", at, (0, 7), textcoords="offset points", **how)
    axes.set(title="Accepted draft tokens by position", xlabel="position in the draft", ylabel="share accepted")
    axes.set_ylim(0, 1.08 + 0.1 * len(records))  # the legend has its place above the lines
    axes.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1])
    axes.set_xlim(left=0.4)
    if axes.lines:
        axes.legend(fontsize=9, loc="upper right")
    else:
        axes.text(0.5, 0.5, "nothing was drafted", transform=axes.transAxes, ha="center", color=palette.quiet)
    _percent(axes)


def draw_sizes(axes: Any, records: Sequence[Record], palette: Palette) -> None:
    """The share of forwards that emitted at least so many tokens, and their mean."""
    for number, record in enumerate(records):
        sizes = {int(size): count for size, count in record["round_sizes"].items()}
        total, colour = sum(sizes.values()), palette.colour(number)
        mean = sum(size * count for size, count in sizes.items()) / total
        places = range(1, max(sizes) + 2)
        shares = [sum(count for size, count in sizes.items() if size >= place) / total for place in places]
        axes.step(places, shares, where="mid", color=colour, linewidth=1.8)
        if len(records) == 1:
            axes.fill_between(places, shares, step="mid", color=colour, alpha=0.16, linewidth=0)
        axes.axvline(mean, color=colour, linestyle="--", linewidth=1.2, label=f"mean {mean:.2f}")
    axes.set(title="Tokens per teacher forward", xlabel="tokens", ylabel="share of forwards with at least as many")
    axes.set_ylim(0, 1.08)
    axes.set_xlim(left=0.5)
    axes.legend(fontsize=9)
    _percent(axes)


def draw_sources(axes: Any, records: Sequence[Record], names: Sequence[str], palette: Palette) -> None:
    """One bar a record: the shares of its tokens that each source drafted, the teacher's own last."""
    totals: dict[str, int] = {}
    for record in records:
        for source, count in record["sources"].items():
            totals[source] = totals.get(source, 0) + count
    order = sorted(totals, key=lambda source: (source == TEACHER, -totals[source]))
    starts = [0.0] * len(records)
    for number, source in enumerate(order):
        counts = [record["sources"].get(source, 0) for record in records]
        shares = [c / max(sum(r["sources"].values()), 1) for c, r in zip(counts, records, strict=True)]
        label = "the teacher's own" if source == TEACHER else source
        axes.barh(range(len(records)), shares, 0.66, starts, color=palette.source(source, number), label=label)
        for row, share in enumerate(shares):
            if share >= LABELLED:
                at, how = (starts[row] + share / 2, row), {"ha": "center", "va": "center", "fontsize": SMALL}
                ink = palette.ink if source == TEACHER else palette.on_source
                axes.text(*at, f"{share:.0%}", color=ink, **how)
        starts = [start + share for start, share in zip(starts, shares, strict=True)]
    labels = [f"{name} ({sum(r['sources'].values()):,})" for name, r in zip(names, records, strict=True)]
    axes.set_yticks(range(len(records)), labels)
    axes.set(xlim=(0, 1), ylim=(len(records) - 0.5, -0.5), title="Tokens by their source")
    axes.grid(False)
    axes.tick_params(axis="y", length=0)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.set_xticks([])
    axes.legend(ncols=len(order), loc="lower right", bbox_to_anchor=(1.0, 1.0), fontsize=9, borderaxespad=0.2)


def _percent(axes: Any) -> None:
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.grid(False, axis="x")
    axes.locator_params(axis="x", integer=True, nbins=12)


def _note(records: Sequence[Record]) -> str:
    drafted, forwards, prompts = (sum(record[name] for record in records) for name in ("drafted", "forwards", "n"))
    note = f"n = {drafted:,} draft tokens, {forwards:,} forwards, {prompts:,} prompts; band: 95 % interval (Wilson)"
    return note + ("; small figures: drafted there" if len(records) == 1 else "")
