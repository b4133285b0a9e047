"""The command that says what a graph is, and whether it pays: inspect."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from daari_mlx.cli import prompts
from daari_mlx.cli.options import common as options
from daari_mlx.cost.curves import CURVES
from daari_mlx.ground.errors import DaariError
from daari_mlx.show import report

OF_OWN_TEXT = (  # options that say how to measure on --data
    "adapter_path",
    "trust_remote_code",
    "number",
    "max_tokens",
    "split",
    "skip_bad_rows",
    "chat_template_config",
)
Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="CURVE|all",
        help=f"Whose published T(m) the verdict is for: {', '.join(CURVES)}, or all.",
        show_default="this machine and all",
    ),
]
OwnText = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="PATH",
        help="Held-out text of your own: the teacher of --model answers its prompts, and the graph is asked along the "
        "way.",
    ),
]


def inspect(
    ctx: typer.Context,
    graph: options.GraphArgument,
    model: options.MaybeModel = None,
    device: Device = None,
    data: OwnText = None,
    number: options.Number = 30,
    adapter_path: options.AdapterPath = None,
    trust_remote_code: options.TrustRemoteCode = False,
    max_tokens: options.MaxTokens = options.MAX_TOKENS_CHAT,
    split: options.Split = "test",
    skip_bad_rows: options.SkipBadRows = False,
    chat_template_config: options.ChatTemplateConfig = None,
    top: options.Top = 8,
    as_json: options.Json = False,
) -> None:
    """Show what a graph is, and whether it pays. Tokens per forward and speed-up to expect, and what that rests on."""
    if data is None:
        options.refuse_unused(ctx, OF_OWN_TEXT, "goes with --data: leave it out")
    elif model is None:
        raise typer.BadParameter("--data needs --model: the teacher that answers", ctx=ctx)
    from daari_mlx.graph.artifact import STATS, read_stats
    from daari_mlx.measure.prospect import choose, kept_outlook, measured_here, prospect
    from daari_mlx.share.find import graph_folder, load_graph
    from daari_mlx.show.graph_view import graph_view, tokenizer_for

    folder = graph_folder(graph)
    known = load_graph(folder)
    stats = read_stats(folder) if (folder / STATS).exists() else {}
    choose(device, None)  # a name that is none is told before anything is read
    if data is None:
        outlook, missing = kept_outlook(stats)
        source = _compiled_answers(stats)
        tokenizer, why = tokenizer_for(known, model)
        if why is not None:
            report.note(f"note: {why}")
    else:
        assert model is not None
        rows = (number, max_tokens, split, skip_bad_rows, chat_template_config)
        tokenizer, outlook, source = _own_text(known, model, adapter_path, trust_remote_code, data, *rows)
        missing = None
    here, unmeasured = measured_here(known) if device is None else (None, None)
    size = sum(file.stat().st_size for file in folder.iterdir())
    view = {
        **graph_view(known, graph, stats, size, tokenizer, top),
        "held_out": None if outlook is None else prospect(outlook, choose(device, here)),
        "held_out_from": None if outlook is None else source,
        "held_out_missing": missing,
        "probe_command": unmeasured,
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
    if kind == "teacher":
        return "the teacher's own, from the corpus that was compiled"
    if kind == "reference":
        return "those of the corpus that was compiled; the teacher's own may differ from them"
    return "from the corpus that was compiled"


def _own_text(
    graph: Any,
    model: str,
    adapter_path: str | None,
    trust_remote_code: bool,
    data: str,
    number: int,
    max_tokens: int,
    split: str,
    skip_bad_rows: bool,
    chat_template_config: dict[str, Any] | None,
) -> tuple[Any, Any, str]:
    """The teacher's tokenizer, what the graph promised along its answers, and which answers those are."""
    from daari_mlx.graph.artifact import attach
    from daari_mlx.measure.own_text import ask
    from daari_mlx.teacher.load import load_teacher
    from daari_mlx.text.data import read_prompts

    options.check_exists(data)
    teacher = load_teacher(model, adapter_path=adapter_path, trust_remote_code=trust_remote_code)
    attach(graph, teacher.model, teacher.tokenizer)
    if max_tokens == 0:
        raise DaariError("max_tokens is 0: give at least 1, or -1 for no limit.")
    rows = prompts.read_rows(
        read_prompts,
        data,
        teacher,
        split=split,
        skip_bad_rows=skip_bad_rows,
        limit=number,
        chat_template_config=chat_template_config,
    )
    outlook, known = ask(teacher, graph, rows, max_tokens)
    if known:
        report.note(f"note: {known} of these prompts were compiled into the graph: left out")
    return teacher.tokenizer, outlook, f"the teacher's own to prompts of {data}"
