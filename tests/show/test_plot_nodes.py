"""The map of nodes: where they lie, what their colours and sizes say, and that any token can stand on it."""

from __future__ import annotations

import subprocess
import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest
from graphs import chain, full_graph, graph_of, random_graph

from daari_mlx.graph.nodes import Nodes
from daari_mlx.show.plots.nodes import COLOURS, commonest, draw_nodes, plot_nodes, positions
from daari_mlx.show.plots.style import DARK, LIGHT

PNG = b"\x89PNG\r\n\x1a\n"


def moved(graph, centroids, support=None):
    nodes = Nodes(graph.nodes.projection, np.asarray(centroids, np.float32))
    return replace(graph, nodes=nodes, support=graph.support if support is None else np.array(support, np.int32))


def drawn(graph, words=None, palette=LIGHT):
    """The axes of a map, laid out."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    draw_nodes(axes, graph, words, palette)
    return axes


def test_the_map_is_a_picture_of_its_graph_light_and_dark(tmp_path):
    graph = full_graph()
    light = plot_nodes(graph, tmp_path / "new" / "light.png")
    assert light == tmp_path / "new" / "light.png"
    pictures = [
        light.read_bytes(),
        plot_nodes(graph, tmp_path / "dark.png", dark=True).read_bytes(),
        plot_nodes(graph, tmp_path / "words.png", words=lambda ids: f"w{ids[0]}").read_bytes(),
    ]
    assert all(picture.startswith(PNG) for picture in pictures)
    assert len(set(pictures)) == 3


def test_positions_keep_what_differs_most_and_weigh_nodes_by_their_states():
    corners = [[0, 0, 0, 0], [8, 0, 0, 0], [0, 3, 0, 0], [8, 3, 0, 0]]
    graph = moved(chain([1, 2, 3, 4]), corners)
    places, shares = positions(graph)
    assert shares == pytest.approx((64 / 73, 9 / 73))
    assert np.ptp(places, axis=0) == pytest.approx([8, 3], abs=1e-4)
    assert positions(moved(graph, corners, [10, 0, 10, 0]))[1] == pytest.approx((1, 0))  # the others have no state


@pytest.mark.parametrize(
    "graph",
    [
        graph_of(1, 5, {0: {1: 1.0}}, {}),
        graph_of(3, 5, {}, {}),
        moved(chain([1, 2, 3]), np.arange(3)[:, None]),
        moved(chain([1, 2, 3]), np.ones((3, 4)), [0, 0, 0]),
        random_graph(3),
    ],
    ids=["one node", "no edges", "one dimension", "all the same", "some lead nowhere"],
)
def test_any_graph_has_a_map(graph, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        places, shares = positions(graph)
        assert plot_nodes(graph, tmp_path / "map.png").read_bytes().startswith(PNG)
    assert places.shape == (graph.size, 2) and np.isfinite(places).all()
    assert all(0 <= share <= 1 for share in shares)


def test_the_commonest_tokens_have_a_colour_and_counts_are_told():
    count = 12
    edges = {node: {100 + max(node - 3, 0): 1.0} for node in range(count)}  # nodes 0 to 3 say the same token
    graph = graph_of(count, 200, edges, {(0, 100): 1, (1, 100): 5})
    assert commonest(graph)[0] == 100 and len(commonest(graph)) == len(COLOURS) + 1
    axes = drawn(graph)
    dots, lines = axes.collections[1], axes.collections[0]
    rgba = [tuple(colour) for colour in dots.get_facecolors()]
    assert max(rgba.count(colour) for colour in rgba) == 4 and len(set(rgba)) == len(COLOURS) + 2  # one is of others
    assert len(lines.get_segments()) == 2
    assert axes.get_title().startswith("12 nodes, 120 states")
    labels = [text.get_text() for text in axes.figure.legends[0].get_texts()]
    assert labels[0] == "#100  (40)" and labels[-1] == "all others  (10)"
    assert "%" in axes.get_xlabel() and "%" in axes.get_ylabel()


def test_areas_follow_the_states():
    graph = moved(chain([1, 2, 3]), np.eye(3, 4), [100, 50, 0])
    areas = drawn(graph).collections[1].get_sizes()
    assert areas[0] - areas[2] == pytest.approx(2 * (areas[1] - areas[2]))
    assert areas[2] > 0


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_every_token_can_be_shown(palette):
    texts = {1: "$x$", 2: " \n", 3: "日本", 4: "\u202eאב", 5: "_" * 40}
    graph = moved(chain([1, 2, 3, 4, 5]), np.diag([50, 40, 30, 20, 10]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib warns of signs that its font lacks
        axes = drawn(graph, lambda ids: texts[ids[0]], palette)
        axes.figure.canvas.draw()
    shown = {text.get_text() for text in axes.texts}
    assert {"$x$", "·\\n", "\\u65e5\\u672c"} <= shown
    assert all(len(text) <= 14 for text in shown)


def test_importing_it_does_not_import_matplotlib():
    code = "import sys, daari_mlx.show.plots.nodes; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
