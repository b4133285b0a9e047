"""How every picture looks, on a light and on a dark ground, and how it gets into its file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.regular import check_new_file

SUFFIXES = (".png", ".svg", ".pdf")
SMALL = 8  # points of notes and counts


@dataclass(frozen=True)
class Palette:
    """The colours of a picture.

    Attributes:
        ground: behind everything.
        ink: of text and axes.
        quiet: of notes, counts and reference lines.
        grid: of lines that only help to read.
        bad: of what lost.
        colours: of records, machines and the like, in this order.
        sources: of draft sources by name; teacher among them.
        on_source: of text on those.
    """

    ground: str
    ink: str
    quiet: str
    grid: str
    bad: str
    colours: tuple[str, ...]
    sources: dict[str, str]
    on_source: str

    def colour(self, number: int) -> str:
        """The colour of a series; they repeat."""
        return self.colours[number % len(self.colours)]

    def source(self, name: str, number: int = 0) -> str:
        """The colour of a draft source; one without its own takes the series colour ``number``."""
        return self.sources.get(name) or self.colour(number)


LIGHT = Palette(
    ground="#ffffff",
    ink="#1f2328",
    quiet="#50565c",
    grid="#dfe3e7",
    bad="#c0262d",
    colours=("#2a6f97", "#c8553d", "#588157", "#7b5ea7", "#b08900", "#1b8a8f"),
    sources={
        "teacher": "#b9c0c7",
        "copy": "#588157",
        "edge": "#2a6f97",
        "path": "#a0529c",
        "near": "#1b8a8f",
        "session": "#d08c2e",
    },
    on_source="#ffffff",
)
DARK = Palette(
    ground="#0d1117",
    ink="#e6edf3",
    quiet="#a3adb8",
    grid="#2a313a",
    bad="#ff6b6b",
    colours=("#5ab0e0", "#f0876b", "#8cc287", "#b79cf0", "#e3bd4d", "#4fd0d6"),
    sources={
        "teacher": "#5b646e",
        "copy": "#7ab575",
        "edge": "#4a9fd0",
        "path": "#cf82ca",
        "near": "#4fd0d6",
        "session": "#e0a34a",
    },
    on_source="#0d1117",
)


@contextmanager
def picture(path: str | Path, size: tuple[float, float], *, dark: bool = False) -> Iterator[tuple[Any, Palette]]:
    """An empty matplotlib figure and its colours; after the block it is written to ``path``, whose folder is made.

    Args:
        path: of the kind that its suffix names, one of ``SUFFIXES``.
        size: width and height in inches.

    Raises:
        DaariError: the suffix is another, or matplotlib is missing.
    """
    path = check_picture(path)
    import matplotlib

    palette = DARK if dark else LIGHT
    with matplotlib.rc_context(_style(palette)):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=size, dpi=160, layout="constrained")
        FigureCanvasAgg(figure)
        yield figure, palette
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)


def check_picture(path: str | Path) -> Path:
    """What can be told before anything is drawn: whether a picture could be written there.

    Raises:
        DaariError: the suffix is none of ``SUFFIXES``, something else than a file stands there, or matplotlib is
            missing.
    """
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise DaariError(
            f"A picture cannot be written as {path.name!r}: give a file that ends in {', '.join(SUFFIXES)}."
        )
    check_new_file(path, "the picture")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise DaariError(
            "Pictures need the package matplotlib, which is missing: install it with pip install '.[plot]' in a clone."
        ) from error
    return path


def foot(figure: Any, note: str, palette: Palette) -> None:
    """What n is and what bands and small figures mean, under the picture."""
    figure.supxlabel(note, x=0.01, ha="left", fontsize=SMALL, color=palette.quiet)


def tick_counts(axes: Any, counts: Sequence[int]) -> None:
    """Each doubling as far as the last, and just these counts named, below a picture."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.set_xticks([], minor=True)


def distinct(names: Sequence[str]) -> list[str]:
    """The names, those that occur more often numbered."""
    seen: dict[str, int] = {}
    for name in names:
        seen[name] = seen.get(name, 0) + 1
    counts: dict[str, int] = {}
    told = []
    for name in names:
        counts[name] = counts.get(name, 0) + 1
        told.append(f"{name} ({counts[name]})" if seen[name] > 1 else name)
    return told


def _style(palette: Palette) -> dict[Any, Any]:
    return {
        "font.size": 10,
        "text.color": palette.ink,
        "axes.labelcolor": palette.ink,
        "xtick.color": palette.ink,
        "ytick.color": palette.ink,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": palette.quiet,
        "axes.axisbelow": True,
        "axes.grid": True,
        "grid.color": palette.grid,
        "grid.linewidth": 0.8,
        "axes.titlelocation": "left",
        "axes.titlesize": 11,
        "figure.facecolor": palette.ground,
        "savefig.facecolor": palette.ground,
        "axes.facecolor": palette.ground,
        "legend.frameon": False,
        "svg.fonttype": "none",
    }
