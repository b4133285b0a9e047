"""Pictures of benchmark records."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from pathlib import Path
from typing import Any

from daari_mlx.errors import DaariError
from daari_mlx.records import BenchRecord

Z = 1.96  # of a 95 % interval
COLOURS = ("#2a6f97", "#c8553d", "#588157", "#7b5ea7", "#b08900")
Record = dict[str, Any]
Plotted = BenchRecord | Record  # a record, or what its as_dict gave
GRID, QUIET = "#d9dde1", "#50565c"


def plot_acceptance(records: Plotted | Sequence[Plotted], path: str | Path) -> Path:
    """Draw how far drafts hold: acceptance by position in the draft, and tokens per forward.

    Args:
        records: one benchmark, or several to compare, each named by its draft length; also as a line of a results
            file gives it.
        path: the PNG to write; its folder is made.
    """
    import matplotlib

    several = [records] if isinstance(records, (BenchRecord, dict)) else list(records)
    chosen = [record.as_dict() if isinstance(record, BenchRecord) else record for record in several]
    with matplotlib.rc_context(_STYLE):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(10.5, 4.4), dpi=160, layout="constrained")
        FigureCanvasAgg(figure)
        left, right = figure.subplots(1, 2, width_ratios=(3, 2))
        for number, record in enumerate(chosen):
            colour = COLOURS[number % len(COLOURS)]
            _positions(left, record, colour, single=len(chosen) == 1)
            _sizes(right, record, colour, 0.8 * ((number + 0.5) / len(chosen) - 0.5), 0.8 / len(chosen))
        _dress(left, right, chosen)
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    return path


def plot_calibration(record: Record, path: str | Path) -> Path:
    """Draw how far promised probabilities come true on held-out text.

    Args:
        record: a ``"reliability"`` line of ``results/replay.jsonl``: ``bins`` of ``tokens`` (how many), ``promised``
            (their mean probability) and ``right`` (the share that came true); bins without tokens are left out.
        path: the picture to write, of the kind that its suffix names; its folder is made.

    Raises:
        DaariError: the record has no bins, or none with tokens.
    """
    bins = [part for part in record.get("bins") or [] if part["tokens"]]
    if not bins:
        raise DaariError(
            "The record has no reliability bins with tokens: give a line of results/replay.jsonl whose measurement is "
            "reliability."
        )
    import matplotlib

    with matplotlib.rc_context(_STYLE):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6.2, 5.8), dpi=160, layout="constrained")
        FigureCanvasAgg(figure)
        _reliability(figure.subplots(), record, bins)
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    return path


def _reliability(axes: Any, record: Record, bins: list[Record]) -> None:
    """Right against promised shares with their intervals and counts, and the line on which both are equal."""
    promised, shares = [part["promised"] for part in bins], [part["right"] for part in bins]
    tokens = [part["tokens"] for part in bins]
    low, high = zip(*(wilson(round(r * n), n) for r, n in zip(shares, tokens, strict=True)), strict=True)
    axes.plot((0, 1), (0, 1), color=QUIET, linestyle="--", linewidth=1, label="as promised")
    axes.vlines(promised, low, high, color=COLOURS[0], linewidth=1.6)
    axes.plot(promised, shares, color=COLOURS[0], marker="o", markersize=5, linewidth=1.2, label="held-out text")
    for x, y, count in zip(promised, high, tokens, strict=True):
        axes.annotate(f"{count:,}", (x, y), (0, 4), textcoords="offset points", ha="center", fontsize=7.5, color=QUIET)
    name = " ".join(str(record[key]) for key in ("set", "teacher") if record.get(key))
    axes.set(xlim=(0, 1.04), ylim=(0, 1.08), xlabel="promised probability of a draft token", ylabel="share right")
    axes.set_title("Do promises come true?" + (f" ({name})" if name else ""))
    axes.xaxis.set_major_formatter("{x:.0%}")
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.grid(color=GRID, linewidth=0.8)
    axes.legend(loc="lower right")
    note = f"n = {sum(tokens):,} draft tokens; lines: 95 % interval (Wilson); small figures: tokens"
    axes.figure.supxlabel(note, x=0.01, ha="left", fontsize=8, color=QUIET)


def wilson(hits: int, tries: int) -> tuple[float, float]:
    """The 95 % score interval (Wilson) of a share; (0, 1) without tries."""
    if tries == 0:
        return 0.0, 1.0
    share, square = hits / tries, Z * Z / tries
    middle = (share + square / 2) / (1 + square)
    half = Z * sqrt(share * (1 - share) / tries + square / (4 * tries)) / (1 + square)
    return max(0.0, middle - half), min(1.0, middle + half)


_STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#6b7278",
    "axes.axisbelow": True,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "legend.frameon": False,
}


def _positions(axes: Any, record: Record, colour: str, *, single: bool) -> None:
    """The share accepted at each position, with its interval, and how many tokens were drafted there."""
    drafted, accepted = record["positions"]["drafted"], record["positions"]["accepted"]
    if not drafted:
        return
    places = list(range(1, len(drafted) + 1))
    shares = [hits / tries for hits, tries in zip(accepted, drafted, strict=True)]
    low, high = zip(*map(wilson, accepted, drafted), strict=True)
    axes.fill_between(places, low, high, color=colour, alpha=0.18, linewidth=0)
    axes.plot(places, shares, color=colour, marker="o", markersize=4.5, linewidth=1.8, label=_name(record))
    for index in range(0, len(places) if single else 0, max(1, len(places) // 12)):
        axes.annotate(
            f"{drafted[index]:,}",
            (places[index], shares[index]),
            (0, 7),
            textcoords="offset points",
            ha="center",
            fontsize=7.5,
            color=QUIET,
        )


def _sizes(axes: Any, record: Record, colour: str, shift: float, width: float) -> None:
    """How many tokens a forward emitted."""
    sizes = {int(size): count for size, count in record["round_sizes"].items()}
    total = sum(sizes.values())
    mean = sum(size * count for size, count in sizes.items()) / total
    places, shares = [size + shift for size in sizes], [count / total for count in sizes.values()]
    axes.bar(places, shares, width=width, color=colour, alpha=0.85)
    axes.axvline(mean, color=colour, linestyle="--", linewidth=1.3, label=f"mean {mean:.2f}")


def _dress(left: Any, right: Any, records: list[Record]) -> None:
    """Titles, axes, legends, and what n is."""
    left.set_title("Accepted draft tokens by position")
    left.set_xlabel("position in the draft")
    left.set_ylabel("share accepted")
    left.set_ylim(0, 1.08)
    right.set_title("Tokens per teacher forward")
    right.set_xlabel("tokens emitted by one forward")
    right.set_ylabel("share of forwards")
    right.legend()
    if len(records) > 1:
        left.legend()
    for axes in (left, right):
        axes.yaxis.set_major_formatter("{x:.0%}")
        axes.grid(axis="y", color=GRID, linewidth=0.8)
        axes.locator_params(axis="x", integer=True, nbins=18)
    drafted = sum(record["drafted"] for record in records)
    forwards = sum(record["forwards"] for record in records)
    note = f"n = {drafted:,} draft tokens, {forwards:,} forwards, {records[0]['n']} prompts"
    note += "; band: 95 % interval (Wilson)" + ("; small figures: drafted there" if len(records) == 1 else "")
    left.figure.supxlabel(note, x=0.01, ha="left", fontsize=8, color=QUIET)


def _name(record: Record) -> str:
    return f"num_draft_tokens {record.get('num_draft_tokens')}"
