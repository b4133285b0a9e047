"""A comparison by replay: some drafters on recorded streams, under the T(m) of some machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from daari_mlx.cost.curves import Curve
from daari_mlx.graph.graph import Graph
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.legible import padded, width
from daari_mlx.ground.progress import bar
from daari_mlx.measure.about import environment
from daari_mlx.measure.baselines import DRAFTERS
from daari_mlx.measure.replay import replay
from daari_mlx.measure.streams import Streams
from daari_mlx.teacher.fingerprint import describe, differences
from daari_mlx.text.identity import is_known


def choose_drafters(name: str) -> list[str]:
    """The drafter of this name, or all of them for ``"all"``.

    Raises:
        DaariError: it cannot be replayed.
    """
    if name == "all":
        return list(DRAFTERS)
    if name not in DRAFTERS:
        raise DaariError(f"The drafter {name!r} cannot be replayed: known are {', '.join(DRAFTERS)}, or 'all'.")
    return [name]


def compare_drafters(
    streams: Streams,
    graph: Graph,
    drafters: Sequence[str],
    curves: Sequence[Curve],
    *,
    allow_overlap: bool = False,
    command: str | None = None,
) -> dict[str, Any]:
    """Replay each drafter under each curve.

    Args:
        streams: of the teacher that the graph was compiled from.
        graph: whose drafts and whose corpus are compared.
        drafters: names of :data:`daari_mlx.measure.baselines.DRAFTERS`.
        curves: drafts are held within what each measured.
        allow_overlap: take prompts that the graph was compiled from as well; the record says how many.
        command: what the user typed, for the record.

    Returns:
        A record, ready for JSON; its ``results`` has a row for each drafter and curve.

    Raises:
        DaariError: another teacher, a layer that was not recorded, an overlap.
    """
    differing = differences(graph.teacher, streams.teacher)
    if differing:
        raise DaariError(
            f"The streams are another teacher's than the graph (they differ in: {', '.join(differing)}).\n"
            f"  graph:   {describe(graph.teacher)}\n"
            f"  streams: {describe(streams.teacher)}\n"
            "Record streams of the graph's teacher: daari-mlx bench --model <teacher> --data <data> --save-streams "
            "<file>."
        )
    compiled = set(graph.prompts.tolist())
    overlap = sum(is_known(stream.prompt, stream.key, compiled) for stream in streams.items)
    if overlap and not allow_overlap:
        raise DaariError(
            f"The graph was compiled from {overlap} of these {len(streams.items)} prompts. What it has seen measures "
            "nothing: record held-out prompts, or allow the overlap (--allow-overlap), which the record will then tell."
        )
    pairs = [(name, curve) for curve in curves for name in drafters]
    results = []
    with bar(total=len(pairs) * len(streams.items), desc="replay", unit="answer") as progress:
        for name, curve in pairs:
            drafter_of = DRAFTERS[name](graph, curve.cost, streams.ends)
            found = replay(streams, drafter_of, most=curve.most, told=progress.update)
            results.append({"drafter": name, "curve": curve.name, **found.as_dict(curve.cost)})
    return {
        "command": command,
        **environment(),
        "teacher": describe(streams.teacher),
        "graph": {"nodes": graph.size, "layer": graph.layer, "sources": list(graph.arbiter.names)},
        "prompts": len(streams.items),
        "overlap": overlap,
        "curves": {curve.name: curve.source for curve in curves},
        "results": results,
    }


def comparison_text(record: dict[str, Any]) -> str:
    """A comparison as an aligned table.

    Args:
        record: as :func:`compare_drafters` returns it.
    """
    head = ["curve", "drafter", "speed-up", "median", "losing", "tokens/forward", "forwards/answer", "accepted"]
    rows = [
        [
            row["curve"],
            row["drafter"],
            f"{row['speedup']:.2f}x",
            f"{row['median_speedup']:.2f}x",
            f"{row['losing']} of {row['n']}",
            f"{row['tokens_per_forward']:.2f}",
            f"{row['forwards_per_answer']:.2f}",
            f"{row['acceptance_rate']:.0%}",
        ]
        for row in record["results"]
    ]
    widths = [max(width(line[k]) for line in [head, *rows]) for k in range(len(head))]
    lines = ["  ".join(map(padded, line, widths)) for line in [head, *rows]]
    said = [f"{name}: {source}" for name, source in record["curves"].items()]
    if record["overlap"]:
        said.append(f"{record['overlap']} of these prompts were compiled into the graph: the figures flatter it")
    return "\n".join(
        [*(line.rstrip() for line in lines), "", "speed-ups are projected, drafting itself is free:", *said]
    )
