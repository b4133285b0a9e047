"""The command that draws records and graphs: plot."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from daari_mlx.cli.options.command import refuse_unused, takes
from daari_mlx.cli.tokenizer import tokenizer_for
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.option import Option
from daari_mlx.show import report


class Kind(StrEnum):
    """What is drawn."""

    ACCEPTANCE = "acceptance"
    BATCH = "batch"
    CALIBRATION = "calibration"
    LEARNING = "learning"
    LENGTH = "length"
    MACHINES = "machines"
    SPEED = "speed"
    NODES = "nodes"


KindArgument = Annotated[
    Kind,
    Option(
        "What to draw. acceptance: by position, task and source; batch: speed by answers at once; calibration: what "
        "was promised against what came true; length: gain by draft length; learning: tokens per forward by answers "
        "learnt; machines: what was measured beside what was predicted; speed: against plain mlx-lm, prompt by prompt; "
        "nodes: a map of the states.",
        by_place=True,
    ),
]
Sources = Annotated[
    list[str],
    Option(
        "Records that bench --out wrote (acceptance, batch, speed), results/replay.jsonl or graphs (calibration), "
        "results/learn.jsonl (learning), files that scripts/record wrote (machines), one graph (length, nodes).",
        "SOURCE...",
        by_place=True,
    ),
]
Words = Annotated[str | None, Option("For nodes: the teacher, whose tokenizer names the tokens.", "PATH_OR_REPO")]


@takes()
def plot(
    ctx: typer.Context,
    kind: KindArgument,
    sources: Sources,
    out: Annotated[str, Option("The picture to write: .png, .svg or .pdf.", "FILE")],
    dark: Annotated[bool, Option("Draw on a dark ground.")] = False,
    model: Words = None,
    device: Annotated[str, Option("For length: which machine, as in inspect.", "CURVE|all")] = "all",
) -> None:
    """Draw a picture of benchmark records or of a graph. Needs matplotlib: pip install '.[plot]' in a clone."""
    if kind is not Kind.NODES:
        refuse_unused(ctx, "model", "goes with the kind nodes: leave it out")
    if kind is not Kind.LENGTH:
        refuse_unused(ctx, "device", "goes with the kind length: leave it out")
    if kind in (Kind.LENGTH, Kind.NODES) and len(sources) != 1:
        raise typer.BadParameter(f"{kind.value} draws one graph, {len(sources)} sources were given", ctx=ctx)
    from daari_mlx.show.plots.style import check_picture

    check_picture(out)
    draw: dict[Kind, Callable[[], Path]] = {
        Kind.ACCEPTANCE: lambda: _draw_records("plot_acceptance", sources, out, dark),
        Kind.BATCH: lambda: _draw_batch(sources, out, dark),
        Kind.LEARNING: lambda: _draw_learning(sources, out, dark),
        Kind.MACHINES: lambda: _draw_machines(sources, out, dark),
        Kind.SPEED: lambda: _draw_records("plot_speed", sources, out, dark),
        Kind.CALIBRATION: lambda: _draw_calibration(sources, out, dark),
        Kind.LENGTH: lambda: _draw_length(sources[0], device, out, dark),
        Kind.NODES: lambda: _draw_nodes(sources[0], model, out, dark),
    }
    report.note(f"wrote {draw[kind]()}")


def _draw_records(function: str, sources: list[str], out: str, dark: bool) -> Path:
    from daari_mlx.show import plots

    named = [(name, line) for source in sources for name, line in _lines(source)]
    names = [name for name, _ in named]
    drawn: Path = getattr(plots, function)([line for _, line in named], out, names=names, dark=dark)
    return drawn


def _draw_batch(sources: list[str], out: str, dark: bool) -> Path:
    from daari_mlx.show.plots import plot_batch
    from daari_mlx.show.plots.records import names_of

    named = [(name, line) for source in sources for name, line in _lines(source)]
    lines = [line for _, line in named]
    data = [names_of([line], None)[0] for line in lines]
    # after their data, and where two runs had the same, after their files
    names = [f"{of}, {name}" if data.count(of) > 1 else of for of, (name, _) in zip(data, named, strict=True)]
    return plot_batch(lines, out, names=names, dark=dark)


def _draw_learning(sources: list[str], out: str, dark: bool) -> Path:
    from daari_mlx.show.plots import plot_learning

    lines = [line for source in sources for _, line in _lines(source)]
    first = lines[0].get("curve")  # who drafts what differs little from one T(m) to another
    return plot_learning([line for line in lines if line.get("curve") == first], out, dark=dark)


def _draw_machines(sources: list[str], out: str, dark: bool) -> Path:
    from daari_mlx.ground.files import read_json
    from daari_mlx.show.plots import plot_machines

    return plot_machines([read_json(Path(source), "record of a machine") for source in sources], out, dark=dark)


def _draw_calibration(sources: list[str], out: str, dark: bool) -> Path:
    from daari_mlx.show.plots import plot_calibration

    told: list[tuple[str, Any]] = []
    for source in sources:
        if Path(source).is_file():
            lines = [line for _, line in _lines(source) if line.get("measurement") == "reliability"]
            if not lines:
                raise DaariError(
                    f"{source} has no line whose measurement is reliability: give results/replay.jsonl, or a graph."
                )
            told += [(" ".join(str(line.get(key, "")) for key in ("set", "teacher")).strip(), line) for line in lines]
        else:
            told.append((_graph_name(source), _outlook(source)))
    return plot_calibration([record for _, record in told], out, names=[name for name, _ in told], dark=dark)


def _draw_length(source: str, device: str, out: str, dark: bool) -> Path:
    from daari_mlx.cost.curves import choose_curves
    from daari_mlx.show.plots import plot_length

    curves = choose_curves(device)
    return plot_length(_outlook(source), out, curves=curves, name=_graph_name(source), dark=dark)


def _draw_nodes(source: str, model: str | None, out: str, dark: bool) -> Path:
    from daari_mlx.ground.legible import Words
    from daari_mlx.share.find import load_graph
    from daari_mlx.show.plots.nodes import plot_nodes

    graph = load_graph(source)
    tokenizer = tokenizer_for(graph, model)
    return plot_nodes(graph, out, words=None if tokenizer is None else Words(tokenizer), dark=dark)


def _outlook(source: str) -> Any:
    """The held-out answers that a graph's compilation kept."""
    from daari_mlx.graph.artifact import STATS, read_stats
    from daari_mlx.measure.prospect import kept_outlook
    from daari_mlx.share.find import graph_folder

    folder = graph_folder(source)
    if not (folder / STATS).exists():
        raise DaariError(f"{source} has no {STATS}: give a graph's folder, as daari-mlx compile writes it.")
    outlook, missing = kept_outlook(read_stats(folder), source)
    if outlook is None:
        raise DaariError(f"{source} keeps no held-out answers: {missing}.")
    return outlook


def _graph_name(source: str) -> str:
    return Path(source).name.removesuffix(".graph")


def _lines(source: str) -> list[tuple[str, dict[str, Any]]]:
    """The records of a file, one a line, each with a name: the file's, numbered where it has several.

    Raises:
        DaariError: see :func:`daari_mlx.ground.files.read_json_lines`.
    """
    from daari_mlx.ground.files import read_json_lines

    path = Path(source)
    found = read_json_lines(path, "record", instead="Give a file that daari-mlx bench --out wrote.")
    return [(path.stem if len(found) == 1 else f"{path.stem}:{n}", value) for n, value in enumerate(found, start=1)]
