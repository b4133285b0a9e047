"""The command that makes one graph of two: merge."""

from __future__ import annotations

from typing import Annotated

from daari_mlx.cli.options import words
from daari_mlx.cli.options.command import takes
from daari_mlx.ground.option import Option
from daari_mlx.show import report


@takes()
def merge(
    graph: Annotated[str, Option("The folder of a compiled graph.", "GRAPH", by_place=True)],
    other: Annotated[str, Option("Another graph of the same teacher and layer.", "OTHER", by_place=True)],
    graph_path: words.GraphPath,
    max_bytes: words.MaxBytes = None,
    as_json: words.Json = False,
) -> None:
    """Make one graph of two. Both of one teacher and layer, compiled apart."""
    from daari_mlx.compile.update import merge_graphs
    from daari_mlx.graph.artifact import check_target, read_stats, save_graph
    from daari_mlx.share.find import load_graph

    check_target(graph_path)
    merged = merge_graphs(load_graph(graph), load_graph(other), max_bytes=max_bytes)
    save_graph(merged.graph, graph_path, {**merged.stats, "command": report.command_line()})
    stats = read_stats(graph_path)
    print(report.as_json({"graph": graph_path, **stats}) if as_json else report.compile_text(stats, graph_path))
