"""The commands that make a graph: extract, compile."""

from __future__ import annotations

import os
import shlex
import signal
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from daari_mlx.cli import prompts
from daari_mlx.cli.options import common as options
from daari_mlx.cli.options import layer as options_layer
from daari_mlx.cli.options import update as options_update
from daari_mlx.ground.errors import DaariError
from daari_mlx.show import report

EXTRACTION = (  # options of compile that say how to extract
    "adapter_path",
    "trust_remote_code",
    "answers",
    "layer",
    "max_tokens",
    "split",
    "skip_bad_rows",
    "limit",
    "chat_template_config",
)


def extract(
    model: options.Model,
    data: options.Data,
    workdir: options.Workdir,
    adapter_path: options.AdapterPath = None,
    trust_remote_code: options.TrustRemoteCode = False,
    answers: options.Answers = "reference",
    layer: options_layer.Layer = "final",
    max_tokens: options.AnswerTokens = options.MAX_TOKENS_ANSWER,
    split: options.Split = "train",
    skip_bad_rows: options.SkipBadRows = False,
    limit: options.Limit = None,
    seed: options.RunSeed = 0,
    chat_template_config: options.ChatTemplateConfig = None,
    shard_model: options.ShardModel = None,
    as_json: options.Json = False,
) -> None:
    """Collect a teacher's states in a folder. Stopped anywhere, the same command resumes."""
    from daari_mlx.compile.extract import ExtractOptions
    from daari_mlx.teacher.ranks import crew

    if shard_model is not None and adapter_path is not None:
        raise DaariError("--shard-model cannot load adapters: fuse them into the model first (mlx_lm.fuse).")
    if shard_model == "pipeline" and layer != "final":
        raise DaariError("--shard-model pipeline gives each rank some of the layers: use --layer final, or tensor.")
    how = ExtractOptions(answers=answers, max_tokens=max_tokens, layer=layer, seed=seed)
    ranks = crew(lockstep=shard_model is not None)
    if ranks.size > 1:  # a launcher that lost one rank ends the others by SIGTERM
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    record = _extract(
        workdir,
        how,
        model,
        adapter_path,
        trust_remote_code,
        data,
        split,
        skip_bad_rows,
        limit,
        chat_template_config,
        ranks,
        shard_model,
    )
    if ranks.rank > 0:
        return
    if as_json:
        print(report.as_json({"workdir": workdir, **record}))
        return
    print(report.extract_text(record, workdir))
    report.note(f"next: daari-mlx compile --workdir {shlex.quote(workdir)} --graph-path GRAPH")


def _extract(
    workdir: str,
    how: Any,
    model: str,
    adapter_path: str | None,
    trust_remote_code: bool,
    data: str,
    split: str,
    skip_bad_rows: bool,
    limit: int | None,
    chat_template_config: dict[str, Any] | None,
    ranks: Any = None,
    shard_model: str | None = None,
    known: Any = None,
) -> dict[str, Any]:
    """Fill a workdir, to join a ``known`` graph; what its extraction counted (nothing on ranks other than 0)."""
    from daari_mlx.compile.extract import extract as fill
    from daari_mlx.compile.extract import extraction_record
    from daari_mlx.compile.workdir import Workdir
    from daari_mlx.teacher.load import load_teacher
    from daari_mlx.teacher.ranks import launched
    from daari_mlx.teacher.sharding import load_sharded
    from daari_mlx.text.data import read_prompts, read_sequences

    if ranks is None and launched():
        raise DaariError(
            "compile runs in one process: start daari-mlx extract with the launcher, then compile its --workdir alone."
        )
    folder = Workdir(workdir)
    options.check_exists(data)
    # lazy: a mistake in the data shows before the weights are read
    teacher = (
        load_teacher(model, adapter_path=adapter_path, trust_remote_code=trust_remote_code, lazy=True)
        if shard_model is None
        else load_sharded(model, shard_model, ranks, trust_remote_code=trust_remote_code)
    )
    if known is not None:
        from daari_mlx.compile.update import check_same

        check_same(known, teacher.fingerprint(), how.layer, "The new text would be read")
    read: Any = read_prompts if how.answers == "teacher" else read_sequences
    rows: list[Any] = prompts.read_rows(
        read,
        data,
        teacher,
        split=split,
        skip_bad_rows=skip_bad_rows,
        limit=limit,
        chat_template_config=chat_template_config,
    )
    if ranks is not None and ranks.lockstep and ranks.rank > 0:  # rank 0's folder counts; this one is passing
        with tempfile.TemporaryDirectory() as passing:
            fill(teacher, rows, Workdir(passing), how, ranks)
        return {}
    fill(teacher, rows, folder, how, ranks, None if known is None else known.nodes.projection)
    return extraction_record(folder) if ranks is None or ranks.rank == 0 else {}


def compile(
    ctx: typer.Context,
    graph_path: options_update.MaybeGraphPath = None,
    update: options_update.Update = None,
    workdir: options.MaybeWorkdir = None,
    model: options.MaybeModel = None,
    data: options.MaybeData = None,
    nodes: options.NodeCount = "auto",
    max_bytes: options.MaxBytes = None,
    adapter_path: options.AdapterPath = None,
    trust_remote_code: options.TrustRemoteCode = False,
    answers: options.Answers = "reference",
    layer: options_layer.Layer = "final",
    max_tokens: options.AnswerTokens = options.MAX_TOKENS_ANSWER,
    split: options.Split = "train",
    skip_bad_rows: options.SkipBadRows = False,
    limit: options.Limit = None,
    seed: options.RunSeed = 0,
    chat_template_config: options.ChatTemplateConfig = None,
    as_json: options.Json = False,
) -> None:
    """Make a graph of collected states. Either of a finished extraction (--workdir), or of a teacher and data."""
    if (model is None) != (data is None) or (model is None and workdir is None):
        raise typer.BadParameter("give --workdir of a finished extraction, or --model and --data", ctx=ctx)
    if model is None:
        options.refuse_unused(
            ctx, EXTRACTION, "says how to extract: give it to extract, or give --model and --data too"
        )
    if update is not None:
        if model is None:
            raise typer.BadParameter("--update needs the text and who reads it: give --model and --data", ctx=ctx)
        options.refuse_unused(ctx, ("nodes", "layer"), "is the graph's own with --update: leave it out")
    elif graph_path is None:
        raise typer.BadParameter("Missing option '--graph-path'.", ctx=ctx)
    from daari_mlx.compile.compiler import compile_graph
    from daari_mlx.compile.extract import ExtractOptions
    from daari_mlx.compile.workdir import Workdir
    from daari_mlx.graph.artifact import check_target, read_stats, save_graph
    from daari_mlx.ground.files import remove
    from daari_mlx.share.find import load_graph

    known = None if update is None else load_graph(update)
    graph_path = graph_path or str(update)
    check_target(graph_path)
    target = Path(os.path.abspath(graph_path))
    folder = workdir or str(target.with_name(target.name + (".work" if known is None else ".update.work")))
    if model is not None and data is not None:
        how = ExtractOptions(answers=answers, max_tokens=max_tokens, layer=layer, seed=seed)
        if known is not None:
            how = replace(how, layer=known.layer, dimensions=known.nodes.centroids.shape[1])
        _extract(
            folder,
            how,
            model,
            adapter_path,
            trust_remote_code,
            data,
            split,
            skip_bad_rows,
            limit,
            chat_template_config,
            known=known,
        )
    if known is None:
        count = None if nodes == "auto" else nodes
        compiled = compile_graph(Workdir(folder), nodes=count, seed=seed, max_bytes=max_bytes)
    else:
        from daari_mlx.compile.update import update_graph

        compiled = update_graph(known, Workdir(folder), seed=seed, max_bytes=max_bytes)
    save_graph(compiled.graph, graph_path, {**compiled.stats, "command": report.command_line()})
    if workdir is None:
        remove(Path(folder))
    stats = read_stats(graph_path)
    if as_json:
        print(report.as_json({"graph": graph_path, **stats}))
        return
    print(report.compile_text(stats, graph_path))
