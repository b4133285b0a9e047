"""The commands that make a graph: extract, compile."""

from __future__ import annotations

import os
import shlex
import signal
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from daari_mlx.cli.options import words
from daari_mlx.cli.options.command import is_given, refuse_unused, takes
from daari_mlx.cli.options.names import FEATURES, RowsName, TeacherName
from daari_mlx.cli.shell import interrupt
from daari_mlx.compile.options import ExtractOptions
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.option import Option, whole
from daari_mlx.show import report

if TYPE_CHECKING:
    from daari_mlx.graph.graph import Graph
    from daari_mlx.teacher.ranks import Alone

Sharding = Literal["tensor", "pipeline"]
# options of compile that say how to extract
EXTRACTION = (
    f"adapter_path trust_remote_code answers layer max_tokens split skip_bad_rows limit chat_template_config {FEATURES}"
)
MaybeWorkdir = Annotated[
    str | None,
    Option(
        "A finished extraction; with --model and --data, where to extract to [default: GRAPH_PATH.work, removed after "
        "success].",
        "FOLDER",
    ),
]
NodeCount = Annotated[
    int | Literal["auto"],
    Option(
        "How many nodes; auto derives it from the number of states.",
        "N|auto",
        read=whole(1, "give a number from 1 on, or auto", "auto"),
    ),
]


@takes(
    "model data workdir adapter_path trust_remote_code answers layer max_tokens split skip_bad_rows limit seed "
    f"chat_template_config {FEATURES} shard_model as_json",
    answers="teacher",
)
def extract(
    teacher_name: TeacherName,
    rows_name: RowsName,
    how: ExtractOptions,
    workdir: Annotated[str, Option("Where the states are kept; the same command resumes there.", "FOLDER")],
    shard_model: Annotated[
        Sharding | None, Option("Under mlx.launch: one teacher over all ranks, by mlx-lm's own sharding.")
    ] = None,
    as_json: words.Json = False,
) -> None:
    """Read text with a model and keep its states, for compile. If it is stopped, the same command resumes."""
    from daari_mlx.teacher.ranks import crew

    if shard_model is not None and teacher_name.adapter_path is not None:
        raise DaariError("--shard-model cannot load adapters: fuse them into the model first (mlx_lm.fuse).")
    if shard_model == "pipeline" and how.layer != "final":
        raise DaariError("--shard-model pipeline gives each rank some of the layers: use --layer final, or tensor.")
    with crew(lockstep=shard_model is not None) as ranks:
        if ranks.size > 1:  # a launcher that lost one rank ends the others by SIGTERM
            signal.signal(signal.SIGTERM, interrupt)
        record = _extract(workdir, how, teacher_name, rows_name, ranks=ranks, shard_model=shard_model)
    if ranks.rank > 0:
        return
    print(report.as_json({"workdir": workdir, **record}) if as_json else report.extract_text(record, workdir))
    if not as_json:
        report.note(f"next: daari-mlx compile --workdir {shlex.quote(workdir)} --graph-path GRAPH")


def _extract(
    workdir: str,
    how: ExtractOptions,
    teacher_name: TeacherName,
    rows_name: RowsName,
    *,
    ranks: Alone | None = None,
    shard_model: Sharding | None = None,
    known: Graph | None = None,
) -> dict[str, Any]:
    """Fill a workdir, to join a ``known`` graph; what its extraction counted (nothing on ranks other than 0)."""
    from daari_mlx.compile.extract import extract as fill
    from daari_mlx.compile.extract import extraction_record
    from daari_mlx.compile.workdir import Workdir
    from daari_mlx.teacher.ranks import launched
    from daari_mlx.teacher.sharding import load_sharded
    from daari_mlx.text.data import read_prompts, read_sequences

    if ranks is None and launched():
        raise DaariError(
            "compile runs in one process: start daari-mlx extract with mlx.launch, then compile its --workdir without."
        )
    folder = Workdir(workdir)
    how = replace(how, chat_template_config=rows_name.chat_template_config)
    rows_name.check()
    # lazy: a mistake in the data shows before the weights are read
    teacher = (
        teacher_name.load(lazy=True)
        if shard_model is None or ranks is None
        else load_sharded(str(teacher_name.model), shard_model, ranks, trust_remote_code=teacher_name.trust_remote_code)
    )
    if known is not None:
        from daari_mlx.compile.update import check_same

        check_same(known, teacher.fingerprint(), how.layer, "The new text would be read")
    read: Any = read_prompts if how.answers == "teacher" else read_sequences
    rows: list[Any] = rows_name.read(read, teacher)
    if ranks is not None and ranks.lockstep and ranks.rank > 0:  # rank 0's folder counts; this one is passing
        with tempfile.TemporaryDirectory() as passing:
            fill(teacher, rows, Workdir(passing), how, ranks)
        return {}
    answerer = None
    if how.answers == "teacher" and (ranks is None or not ranks.lockstep):  # ranks in lockstep draft alike, or wait
        from daari_mlx.batch.answerer import LearningAnswerer

        answerer = LearningAnswerer()
    fill(teacher, rows, folder, how, ranks, None if known is None else known.nodes.projection, answerer)
    return extraction_record(folder) if ranks is None or ranks.rank == 0 else {}


@takes(
    "graph_path update workdir model data nodes max_bytes adapter_path trust_remote_code answers layer max_tokens "
    f"split skip_bad_rows limit seed chat_template_config {FEATURES} force as_json",
    model=None,
    data=None,
    answers="teacher",
)
def compile(
    ctx: typer.Context,
    teacher_name: TeacherName,
    rows_name: RowsName,
    how: ExtractOptions,
    graph_path: Annotated[
        str | None, Option("The folder to write the graph to; with --update, that graph by default.", "FOLDER")
    ] = None,
    update: Annotated[str | None, Option("Add the text to this graph; its old text is not needed.", "GRAPH")] = None,
    workdir: MaybeWorkdir = None,
    nodes: NodeCount = "auto",
    max_bytes: words.MaxBytes = None,
    force: words.Force = False,
    as_json: words.Json = False,
) -> None:
    """Make a graph that drafts. From prompts and the model that answers them, or from an extraction (--workdir)."""
    reads = teacher_name.model is not None
    if reads != (rows_name.data is not None) or not (reads or workdir):
        raise typer.BadParameter("give --workdir of a finished extraction, or --model and --data", ctx=ctx)
    if not reads:
        refuse_unused(ctx, EXTRACTION, "says how to extract: give it to extract, or give --model and --data too")
    if update is not None:
        if not reads:
            raise typer.BadParameter(
                "--update needs new text and the model that reads it: give --data and --model", ctx=ctx
            )
        refuse_unused(ctx, "nodes layer", "is the graph's own with --update: leave it out")
    elif graph_path is None:
        raise typer.BadParameter("Missing option '--graph-path'.", ctx=ctx)
    from daari_mlx.compile.compiler import compile_graph
    from daari_mlx.compile.workdir import Workdir
    from daari_mlx.graph.artifact import check_target, read_stats, save_graph
    from daari_mlx.ground.files import remove
    from daari_mlx.learn.kept import check_counts_once
    from daari_mlx.measure.prospect import first_verdict, next_command
    from daari_mlx.share.find import load_graph, load_stats
    from daari_mlx.show.learnt import note_what_waits

    known, earlier = (None, {}) if update is None else (load_graph(update), load_stats(update))
    graph_path = graph_path or str(update)
    target = Path(os.path.abspath(graph_path))
    in_place = update is not None and Path(os.path.abspath(update)) == target
    check_target(graph_path, replace=force or in_place)
    check_counts_once(graph_path, earlier)
    if update is not None:
        note_what_waits(update)
    folder = workdir or str(target.with_name(target.name + (".work" if known is None else ".update.work")))
    if reads:
        if known is not None:
            how, rows_name = _as_compiled(ctx, known, earlier, how, rows_name)
        _extract(folder, how, teacher_name, rows_name, known=known)
    if known is None:
        count = None if nodes == "auto" else nodes
        compiled = compile_graph(Workdir(folder), nodes=count, seed=how.seed, max_bytes=max_bytes)
    else:
        from daari_mlx.compile.update import update_graph

        compiled = update_graph(known, Workdir(folder), seed=how.seed, max_bytes=max_bytes, stats=earlier)
        if shared := compiled.stats["shared_prompts"]:
            known_already = f"{shared:,} of these {compiled.stats['added']['prompts']:,} prompts"
            report.note(f"note: {known_already} are in the graph already: what they taught counts twice")
    save_graph(compiled.graph, graph_path, {**compiled.stats, "command": report.command_line()})
    if workdir is None:
        remove(Path(folder))
    stats = read_stats(graph_path)
    verdict = first_verdict(stats, compiled.graph, graph_path)
    if as_json:
        print(report.as_json({"graph": graph_path, **stats, "verdict": verdict}))
        return
    print(report.compile_text(stats, graph_path, verdict))
    report.note(f"next: {next_command(stats, compiled.graph, graph_path)}")


def _as_compiled(
    ctx: typer.Context, known: Graph, stats: dict[str, Any], how: ExtractOptions, rows_name: RowsName
) -> tuple[ExtractOptions, RowsName]:
    """How new text is read for a graph: as its own was, unless the command line says otherwise."""
    how = replace(how, layer=known.layer, dimensions=known.nodes.centroids.shape[1])
    settings = stats.get("settings")
    settings = settings if isinstance(settings, dict) else {}
    was, limit = settings.get("answers"), settings.get("max_tokens")
    if was in ("teacher", "reference"):
        if not is_given(ctx, "answers"):
            how = replace(how, answers=was)
        elif how.answers != was:
            report.note(f"note: the graph holds {was} answers, these are {how.answers} ones: it will hold both")
    if type(limit) is int and limit > 0 and not is_given(ctx, "max_tokens"):
        how = replace(how, max_tokens=limit)
    config = settings.get("chat_template_config")
    if isinstance(config, dict) and config and not is_given(ctx, "chat_template_config"):
        rows_name = replace(rows_name, chat_template_config=config)
        report.note(f"note: --chat-template-config is the graph's own, {report.as_json(config)}")
    return how, rows_name
