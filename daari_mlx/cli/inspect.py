"""The command that says what a graph is, and whether it pays: inspect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from daari_mlx.cli.options import words
from daari_mlx.cli.options.command import refuse_unused, takes
from daari_mlx.cli.options.names import FEATURES, RowsName, TeacherName
from daari_mlx.cli.tokenizer import tokenizer_for
from daari_mlx.cost.curves import CURVES
from daari_mlx.decode.options import Length
from daari_mlx.ground.option import Option, number
from daari_mlx.show import report

if TYPE_CHECKING:
    from daari_mlx.graph.graph import Graph
    from daari_mlx.graph.outlook import Outlook

# options that say how to measure on --data
OF_OWN_TEXT = f"adapter_path trust_remote_code number max_tokens split skip_bad_rows chat_template_config {FEATURES}"
Device = Annotated[
    str | None,
    Option(
        f"Which machine, timed by others, the verdict is for: {', '.join(CURVES)}, or all.",
        "CURVE|all",
        shown="this machine and all",
    ),
]
OwnText = Annotated[
    str | None,
    Option(
        "Prompts of your own to try the graph on; --model answers them.",
        "PATH",
    ),
]


@takes(
    "graph model device data number adapter_path trust_remote_code max_tokens split skip_bad_rows "
    f"chat_template_config {FEATURES} top as_json",
    model=None,
    split="test",
)
def inspect(
    ctx: typer.Context,
    teacher_name: TeacherName,
    rows_name: RowsName,
    length: Length,
    graph: words.GraphArgument,
    device: Device = None,
    data: OwnText = None,
    number: words.Number = 30,
    top: Annotated[int, number("How many of the busiest nodes to show.", 0)] = 8,
    as_json: words.Json = False,
) -> None:
    """Show what a graph is, and whether it pays. Tokens per forward and speed-up to expect, and what that rests on."""
    if data is None:
        refuse_unused(ctx, OF_OWN_TEXT, "goes with --data: leave it out")
    elif teacher_name.model is None:
        raise typer.BadParameter("--data needs --model: the teacher that answers", ctx=ctx)
    from daari_mlx.graph.artifact import graph_bytes
    from daari_mlx.learn.kept import check_is_made, kept_at
    from daari_mlx.measure.prospect import asking, choose, kept_outlook, measured_here, prospect, why_unknown
    from daari_mlx.share.find import graph_folder, load_graph, load_stats
    from daari_mlx.show.graph_view import graph_view

    check_is_made(graph)
    folder = graph_folder(graph)
    known = load_graph(folder)
    stats = load_stats(folder)
    choose(device, None)  # a name that is none is told before anything is read
    if data is None:
        outlook, missing = kept_outlook(stats, graph, asking(known, graph))
        source = _compiled_answers(stats)
        tokenizer = tokenizer_for(known, teacher_name.model)
    else:
        tokenizer, outlook, source = _own_text(known, teacher_name, rows_name, number, length.max_tokens)
        missing = None
    unknown = why_unknown(stats) if data is None else None
    here, unmeasured = measured_here(known) if device is None else (None, None)
    kept = kept_at(graph)
    view = {
        **graph_view(known, graph, stats, graph_bytes(folder), tokenizer, top),
        "newer_answers": None if kept is None else kept.newer,
        "held_out": None if outlook is None else prospect(outlook, choose(device, here), unknown),
        "held_out_from": None if outlook is None else source,
        "held_out_missing": missing,
        "probe_command": unmeasured,
        "ask_command": asking(known, graph) if unknown or missing else None,
    }
    _print(view, as_json)


def _print(view: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(report.as_json(view))
        return
    from rich.text import Text

    from daari_mlx.show.annotate_lines import console_for
    from daari_mlx.show.inspect_lines import screen

    console = console_for()
    for text, style in screen(view, console.width):
        console.print(Text(text, style), soft_wrap=True)


def _compiled_answers(stats: dict[str, Any]) -> str:
    settings = stats.get("settings")
    kind = settings.get("answers") if isinstance(settings, dict) else None
    if kind == "learnt":
        return "the teacher's own, from what was learnt"
    if kind == "teacher":
        return "the teacher's own, from the corpus that was compiled"
    if kind == "reference":
        return "those of the corpus that was compiled; the teacher's own may differ from them"
    if kind == "mixed":
        return "partly the teacher's own, partly those of the corpus that was compiled"
    return "from the corpus that was compiled"


def _own_text(
    graph: Graph, teacher_name: TeacherName, rows_name: RowsName, number: int, max_tokens: int
) -> tuple[Any, Outlook, str]:
    """The teacher's tokenizer, what the graph promised along its answers, and which answers those are."""
    from daari_mlx.graph.artifact import attach
    from daari_mlx.measure.own_text import ask
    from daari_mlx.text.data import read_prompts

    rows_name.check()
    teacher = teacher_name.load()
    attach(graph, teacher.model, teacher.tokenizer)
    outlook, known = ask(teacher, graph, rows_name.read(read_prompts, teacher, limit=number), max_tokens)
    if known:
        report.note(f"note: {known} of these prompts were compiled into the graph: left out")
    return teacher.tokenizer, outlook, f"the teacher's own to prompts of {rows_name.data}"
