"""The commands that measure: bench and probe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from daari_mlx.cli.options import common as options
from daari_mlx.cli.options import draft as options_draft
from daari_mlx.cli.options import replay as options_replay
from daari_mlx.ground.regular import check_new_file
from daari_mlx.show import report

OF_A_RUN = ("adapter_path", "trust_remote_code", "num_draft_tokens", "json_schema", "seed")
OF_ROWS = ("number", "max_tokens", "split", "skip_bad_rows", "chat_template_config")
OF_FIGURES = ("graph", "draft_model", "drafter", "num_draft_tokens", "json_schema", "allow_overlap", "seed", "out")


def bench(
    ctx: typer.Context,
    model: options.MaybeModel = None,
    data: options.MaybeData = None,
    graph: options.MaybeGraph = None,
    draft_model: options_draft.DraftModel = None,
    drafter: options_replay.BenchDrafter = None,
    number: options.Number = 30,
    adapter_path: options.AdapterPath = None,
    trust_remote_code: options.TrustRemoteCode = False,
    max_tokens: options.MaxTokens = options.MAX_TOKENS_CHAT,
    num_draft_tokens: options.NumDraftTokens = "auto",
    split: options.Split = "test",
    skip_bad_rows: options.SkipBadRows = False,
    chat_template_config: options.ChatTemplateConfig = None,
    json_schema: options.JsonSchema = None,
    allow_overlap: options.AllowOverlap = False,
    seed: options_replay.BenchSeed = 0,
    replay: options_replay.Replay = None,
    device: options_replay.Device = "all",
    save_streams: options_replay.SaveStreams = None,
    stream_layer: options_replay.StreamLayers = None,
    out: options.Out = None,
    as_json: options.Json = False,
) -> None:
    """Measure drafting against plain mlx-lm. On held-out prompts; exit status 1 where an answer is not plain's."""
    if out is not None:
        check_new_file(out, "--out")
    if replay is not None:
        if graph is None or model or data or draft_model or save_streams:
            raise typer.BadParameter("--replay takes --graph, and neither a model nor data", ctx=ctx)
        options.refuse_unused(ctx, (*OF_A_RUN, *OF_ROWS, "stream_layer"), "has no meaning in a --replay: leave it out")
        _replay(replay, graph, drafter or "all", device, allow_overlap, out, as_json)
        return
    if model is None or data is None:
        raise typer.BadParameter("give --model and --data, or --replay STREAMS", ctx=ctx)
    if drafter not in (None, "graph", "model", "pair", "lookup", "none"):
        raise typer.BadParameter(f"--drafter {drafter} drafts in a --replay only", ctx=ctx)
    options.refuse_unused(ctx, ("device",), "goes with --replay: leave it out")
    if save_streams is None:
        options.refuse_unused(ctx, ("stream_layer",), "goes with --save-streams: leave it out")
    else:
        options.refuse_unused(ctx, (*OF_FIGURES, "as_json"), "has no meaning with --save-streams: leave it out")
        check_new_file(save_streams, "--save-streams")
    from daari_mlx.cli import prompts
    from daari_mlx.decode.named import GRAPHS, choose_kind, make_drafter
    from daari_mlx.measure.bench import run_bench
    from daari_mlx.share.find import load_graph
    from daari_mlx.teacher.load import load_teacher
    from daari_mlx.text.data import read_prompts

    options.check_exists(data)
    kind = choose_kind(drafter, graph, draft_model)
    if kind == "none" and save_streams is None:
        raise typer.BadParameter(
            "give --graph, --draft-model or --drafter lookup: there is nothing to measure", ctx=ctx
        )
    known = load_graph(graph) if graph and kind in GRAPHS else None
    teacher = load_teacher(model, adapter_path=adapter_path, trust_remote_code=trust_remote_code)
    processors = prompts.make_processors(teacher.tokenizer, json_schema)
    rows = prompts.read_rows(
        read_prompts,
        data,
        teacher,
        split=split,
        skip_bad_rows=skip_bad_rows,
        limit=number,
        chat_template_config=chat_template_config,
    )
    if save_streams is not None:
        from daari_mlx.measure.streams import record as record_streams
        from daari_mlx.measure.streams import save_streams as save

        save(record_streams(teacher, rows, stream_layer or ["final"], max_tokens), Path(save_streams))
        return
    record = run_bench(
        teacher,
        known,
        rows,
        drafter=make_drafter(
            kind, draft_model, teacher, num_draft_tokens, graph=known, trust_remote_code=trust_remote_code
        ),
        max_tokens=max_tokens,
        num_draft_tokens=num_draft_tokens,
        logits_processors=processors,
        allow_overlap=allow_overlap,
        seed=seed,
        command=report.command_line(),
    )
    values = record.as_dict()
    _append(out, values)
    print(report.as_json(values) if as_json else report.bench_text(values))
    if not record.ok:
        raise typer.Exit(1)


def _replay(
    path: str, graph: str, drafter: str, device: str, allow_overlap: bool, out: str | None, as_json: bool
) -> None:
    from daari_mlx.cost.curves import choose_curves
    from daari_mlx.measure.comparison import choose_drafters, compare_drafters, comparison_text
    from daari_mlx.measure.streams import load_streams
    from daari_mlx.share.find import load_graph

    values = compare_drafters(
        load_streams(Path(path)),
        load_graph(graph),
        choose_drafters(drafter),
        choose_curves(device),
        allow_overlap=allow_overlap,
        command=report.command_line(),
    )
    _append(out, values)
    print(report.as_json(values) if as_json else comparison_text(values))


def _append(out: str | None, values: dict[str, Any]) -> None:
    """The whole record as one line of JSON."""
    if out is not None:
        Path(out).parent.mkdir(parents=True, exist_ok=True)
        with Path(out).open("a", encoding="utf-8") as file:
            file.write(json.dumps(values, ensure_ascii=False) + "\n")


def probe(
    model: options.Model,
    adapter_path: options.AdapterPath = None,
    trust_remote_code: options.TrustRemoteCode = False,
    repeats: options.Repeats = 7,
    as_json: options.Json = False,
) -> None:
    """Time forwards on this machine. T(m), of m rows at once, decides how far to draft; it is kept."""
    from dataclasses import asdict

    from daari_mlx.cost.probe import LONGER, measure, save
    from daari_mlx.ground import blas
    from daari_mlx.teacher.load import load_teacher

    teacher = load_teacher(model, adapter_path=adapter_path, trust_remote_code=trust_remote_code)
    record = measure(teacher.model, repeats=repeats, longer=LONGER)
    path = save(record)
    kept = None if path is None else str(path)
    library = blas.status()
    if as_json:
        print(report.as_json({**asdict(record), "noisy": record.noisy, "kept": kept, "blas": library._asdict()}))
        return
    words = library.name if library.loaded else f"{library.name} ({library.reason})"
    print(report.probe_text(record, kept, words))
