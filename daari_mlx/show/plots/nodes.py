"""A picture of a graph: its nodes on a map, coloured by the token that each says first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from daari_mlx.graph.graph import Graph
from daari_mlx.graph.source import CELL_BITS, NO_NODE
from daari_mlx.ground.accept import TEACHER
from daari_mlx.ground.legible import fit, visible
from daari_mlx.ground.types import FloatArray
from daari_mlx.show.plots.style import Palette, foot, picture

# Okabe and Ito's, told apart by the colour-blind too; the eighth is the ink of the page
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#f0e442")
STEPS = 150  # strongest ones that are drawn
LABELS = 60  # of the busiest nodes, where there is room
LABEL_COLUMNS = 14
RIGHT = 0.12  # of the map's width, where texts stand on the left of their dots
SMALLEST, LARGEST = 5.0, 230.0  # areas in square points: of a node that was never left, and of the busiest one

Words = Callable[[Iterable[int]], str]


def plot_nodes(graph: Graph, path: str | Path, *, words: Words | None = None, dark: bool = False) -> Path:
    """Draw the nodes of a graph where their states lie, by the two directions in which those differ most.

    Each node is a dot: its area tells how many states it stands for, its colour the token that it says first. The
    eight commonest of these have a colour, by states, and all others are grey.

    Args:
        graph: any.
        path: the picture to write, of the kind that its suffix names (.png, .svg, .pdf); its folder is made.
        words: token ids to text, such as :class:`daari_mlx.ground.legible.Words`; None shows the ids.
        dark: light on dark.

    Raises:
        DaariError: the suffix is another, or matplotlib is missing.
    """
    with picture(path, (9.5, 6.6), dark=dark) as (figure, palette):
        draw_nodes(figure.subplots(), graph, words, palette)
    return Path(path)


def positions(graph: Graph) -> tuple[FloatArray, tuple[float, float]]:
    """Where the nodes lie on the map: principal components of their centroids, each node weighted by its states.

    Returns:
        ``(N, 2)`` float32 positions, and what share of the variance each of the two directions holds.
    """
    points = graph.nodes.centroids.astype(np.float64)
    weights = np.asarray(graph.support, np.float64)
    if not weights.any():
        weights = np.ones(len(points))
    points = points - weights @ points / weights.sum()
    _, spread, axes = np.linalg.svd(np.sqrt(weights)[:, None] * points, full_matrices=False)
    axes = axes[:2] * np.sign(axes[np.arange(len(axes[:2])), np.abs(axes[:2]).argmax(axis=1)])[:, None]
    found = np.zeros((len(points), 2), np.float32)
    found[:, : len(axes)] = points @ axes.T  # one dimension of states makes a line
    shares = [*(spread**2 / max((spread**2).sum(), 1e-30)), 0.0]
    return found, (float(shares[0]), float(shares[1]))


def draw_nodes(axes: Any, graph: Graph, words: Words | None, palette: Palette) -> None:
    """Dots, their steps, the legend of colours, and as many tokens as there is room for."""
    places, shares = positions(graph)
    tokens, support = said_first(graph), np.asarray(graph.support)
    lines = _lines(axes, graph, places, palette)
    area = SMALLEST + (LARGEST - SMALLEST) * support / max(int(support.max()), 1)
    shades = dict(zip(commonest(graph), [*COLOURS, palette.ink], strict=False))
    order = np.argsort(-support, kind="stable")  # small dots lie over large ones
    axes.scatter(
        *places[order].T,
        s=area[order],
        c=[shades.get(tokens[node], palette.source(TEACHER)) for node in order],
        edgecolors=palette.ground,
        linewidths=0.6,
        zorder=2,
    )
    for axis, name, share in zip((axes.xaxis, axes.yaxis), ("first", "second"), shares, strict=True):
        axis.set_label_text(f"{name} principal component ({share:.0%} of the variance)")
        axis.set_ticks([])
    axes.margins(0.06)
    axes.set_title(f"{graph.size:,} nodes, {support.sum():,} states, layer {graph.layer}")
    _legend(axes.figure, graph, shades, words, palette)
    strongest = f"lines: the {lines:,} strongest of {len(graph.step_key):,} steps; " if lines else ""
    foot(axes.figure, f"area: states of the node; {strongest}texts: the token that the node says first", palette)
    _labels(axes, places, tokens, order, words, palette)


def said_first(graph: Graph) -> list[int]:
    """The token of each node's top edge; -1 where it has none."""
    return [voice >> CELL_BITS for voice in graph.walk[0][:-1]]


def commonest(graph: Graph) -> list[int]:
    """The tokens that most states' nodes say first, at most eight, the commonest first."""
    states: Counter[int] = Counter()
    for token, count in zip(said_first(graph), graph.support.tolist(), strict=True):
        if token >= 0:
            states[token] += count
    return [token for token, count in states.most_common(len(COLOURS) + 1) if count]


def _lines(axes: Any, graph: Graph, places: FloatArray, palette: Palette) -> int:
    """Faint lines from nodes to where their first token leads, of the steps taken most often; returns how many."""
    from matplotlib.collections import LineCollection

    target = np.array(graph.walk[1][:-1])
    leading = np.flatnonzero((target != NO_NODE) & (target != np.arange(graph.size)))
    taken = graph.edge_probability[graph.edge_start[leading]] * graph.support[leading]
    chosen = leading[np.argsort(-taken, kind="stable")[:STEPS]]
    ends = np.stack([places[chosen], places[target[chosen]]], axis=1)  # (steps, 2 ends, 2)
    axes.add_collection(LineCollection(list(ends), colors=palette.quiet, linewidths=0.6, alpha=0.25, zorder=1))
    return len(chosen)


def _legend(figure: Any, graph: Graph, shades: dict[int, str], words: Words | None, palette: Palette) -> None:
    """What each colour is, and how many states have it."""
    from matplotlib.lines import Line2D

    tokens, support = np.array(said_first(graph)), np.asarray(graph.support)
    groups = [(shade, _shown(token, words), tokens == token) for token, shade in shades.items()]
    groups.append((palette.source(TEACHER), "all others", ~np.isin(tokens, list(shades))))
    handles = [
        Line2D([], [], linestyle="", marker="o", markersize=7, color=shade, label=f"{name}  ({support[at].sum():,})")
        for shade, name, at in groups
        if at.any()
    ]
    legend = figure.legend(
        handles=handles, loc="outside right upper", title="first token (states)", alignment="left", fontsize=9
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


def _labels(
    axes: Any, places: FloatArray, tokens: list[int], order: Any, words: Words | None, palette: Palette
) -> None:
    """The first token of the busiest nodes, each where it covers no other."""
    from matplotlib.patheffects import withStroke

    figure, halo = axes.figure, withStroke(linewidth=2, foreground=palette.ground)
    figure.draw_without_rendering()  # lays out, so that texts have their places
    renderer, taken = figure.canvas.get_renderer(), list[Any]()
    wide = np.ptp(places[:, 0])
    last = set(np.flatnonzero(places[:, 0] > places[:, 0].max() - RIGHT * wide).tolist())
    for node in order[:LABELS]:
        if tokens[node] < 0:
            continue
        text = axes.annotate(
            _shown(tokens[node], words),
            places[node],
            (-5 if node in last else 5, 5),
            textcoords="offset points",
            ha="right" if node in last else "left",
            fontsize=7.5,
            color=palette.ink,
            parse_math=False,
            path_effects=[halo],
            zorder=3,
        )
        box = text.get_window_extent(renderer)
        if any(box.overlaps(other) for other in taken):
            text.remove()
        else:
            taken.append(box)


def _shown(token: int, words: Words | None) -> str:
    """A token's text with what is invisible or missing from the font spelled out, or its id."""
    if words is None:
        return f"#{token}"
    known = _glyphs()
    return fit("".join(c if ord(c) in known else _spelt(c) for c in visible(words([token]))), LABEL_COLUMNS)


def _spelt(sign: str) -> str:
    """A character that the font lacks as ``\\n`` or ``\\u65e5``; pictures of control characters as what they show."""
    code = ord(sign)
    return (chr(code - 0x2400) if 0x2400 <= code < 0x2420 else sign).encode("unicode_escape").decode()


@cache
def _glyphs() -> Any:
    """The characters of the font that texts are drawn in."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    return get_font(findfont(FontProperties())).get_charmap()
