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
    force: words.Force = False,
    as_json: words.Json = False,
) -> None:
    """Make one graph of two. Both have to be of the same teacher and layer."""
    from daari_mlx.compile.update import merge_graphs
    from daari_mlx.graph.artifact import check_target, read_stats, save_graph
    from daari_mlx.learn.kept import check_counts_once
    from daari_mlx.measure.prospect import first_verdict
    from daari_mlx.share.find import load_graph, load_stats
    from daari_mlx.show.learnt import note_what_waits

    check_target(graph_path, replace=force)
    stats_of = load_stats(graph), load_stats(other)
    check_counts_once(graph_path, *stats_of)
    for source in (graph, other):
        note_what_waits(source)
    merged = merge_graphs(load_graph(graph), load_graph(other), max_bytes=max_bytes, stats=stats_of)
    if shared := merged.stats["shared_prompts"]:
        once = "one of them has all that the other has, and is taken alone" if merged.stats["counted_once"] else None
        report.note(f"note: {shared:,} prompts are in both graphs: {once or 'what they taught counts twice'}")
    save_graph(merged.graph, graph_path, {**merged.stats, "command": report.command_line()})
    stats = read_stats(graph_path)
    verdict = first_verdict(stats, merged.graph, graph_path)
    if as_json:
        print(report.as_json({"graph": graph_path, **stats, "verdict": verdict}))
    else:
        print(report.compile_text(stats, graph_path, verdict))
