"""The commands that measure: bench and probe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from daari_mlx.cli.options import words
from daari_mlx.cli.options.command import refuse_unused, takes
from daari_mlx.cli.options.names import FEATURES, DrafterName, RowsName, SchemaName, TeacherName
from daari_mlx.decode.options import Length
from daari_mlx.ground.option import Option, number, whole
from daari_mlx.ground.regular import check_new_file
from daari_mlx.show import report

NOT_OF_A_REPLAY = (
    "adapter_path trust_remote_code num_draft_tokens json_schema json_whitespace seed number max_tokens split "
    f"skip_bad_rows chat_template_config {FEATURES} stream_layer"
)
OF_FIGURES = "graph draft_model drafter num_draft_tokens json_schema json_whitespace allow_overlap seed out as_json"

BenchDrafter = Annotated[
    Literal["graph", "model", "pair", "lookup", "none", "edge", "suffix", "recycling", "oracle", "all"] | None,
    Option(
        "Who drafts: the graph, the draft model, both as a pair, look-ups in the text itself, or nobody; with --replay "
        "the graph (default: all), edge, lookup, suffix, recycling or oracle.",
        shown="what is given",
    ),
]
Replay = Annotated[
    str | None,
    Option(
        "Project drafters on answers that --save-streams recorded, with published times; no model is loaded.", "STREAMS"
    ),
]
Concurrency = Annotated[
    str | None,
    Option("Measure this many answers at once, against mlx_lm.batch_generate, e.g. 1,4,8,16.", "N,N,..."),
]
StreamLayers = Annotated[
    list[int | str] | None,
    Option(
        "A layer whose states are recorded; repeat it for several.",
        "final|INDEX",
        read=whole(None, "give final, or the index of a layer", "final"),
        shown="final",
    ),
]


@takes(
    "model data graph draft_model drafter number adapter_path trust_remote_code max_tokens num_draft_tokens split "
    f"skip_bad_rows chat_template_config {FEATURES} json_schema json_whitespace allow_overlap seed concurrency passes "
    "replay device save_streams stream_layer out as_json",
    model=None,
    data=None,
    split="test",
)
def bench(
    ctx: typer.Context,
    teacher_name: TeacherName,
    rows_name: RowsName,
    drafter_name: DrafterName,
    length: Length,
    schema_name: SchemaName,
    drafter: BenchDrafter = None,
    number: words.Number = 30,
    allow_overlap: Annotated[
        bool, Option("Measure on prompts that the graph was compiled from, too; the record says so.")
    ] = False,
    seed: Annotated[int, number("Seed of MLX's random numbers, set anew before each answer.", 0, 2**32 - 1)] = 0,
    concurrency: Concurrency = None,
    passes: Annotated[int, number("With --concurrency, passes over the prompts; the median one counts.", 1)] = 1,
    replay: Replay = None,
    device: Annotated[
        str, Option("The machine that a --replay is projected for; inspect lists them.", "CURVE|all")
    ] = "all",
    save_streams: Annotated[
        str | None, Option("Record the teacher's answers and states; measure nothing.", "FILE")
    ] = None,
    stream_layer: StreamLayers = None,
    out: Annotated[str | None, Option("Append the whole record as one line of JSON.", "FILE")] = None,
    as_json: words.Json = False,
) -> None:
    """Measure drafting against plain mlx-lm. On prompts that the graph was not compiled from.

    The exit status is 1 where an answer differs from plain mlx-lm's.
    """
    if out is not None:
        check_new_file(out, "--out")
    if replay is not None:
        others = (teacher_name.model, rows_name.data, drafter_name.draft_model, save_streams)
        if drafter_name.graph is None or any(others):
            raise typer.BadParameter("--replay takes --graph, and neither a model nor data", ctx=ctx)
        refuse_unused(ctx, NOT_OF_A_REPLAY, "has no meaning in a --replay: leave it out")
        _replay(replay, drafter_name.graph, drafter or "all", device, allow_overlap, out, as_json)
        return
    if teacher_name.model is None or rows_name.data is None:
        raise typer.BadParameter("give --model and --data, or --replay STREAMS", ctx=ctx)
    _check_live(ctx, drafter, save_streams)
    sizes = _numbers(concurrency) if concurrency is not None else []
    if not sizes:
        refuse_unused(ctx, "passes", "goes with --concurrency: leave it out")
    from daari_mlx.cost import machine
    from daari_mlx.graph.artifact import attach
    from daari_mlx.measure.bench import check_prompts, run_bench
    from daari_mlx.show.bench_text import bench_text
    from daari_mlx.text.data import read_prompts

    rows_name.check()
    nobody = drafter_name.kind() == "none" and (drafter == "none" or schema_name.json_schema is None)
    if nobody and save_streams is None:
        raise typer.BadParameter(
            "give --graph, --draft-model, --drafter lookup or --json-schema: there is nothing to measure", ctx=ctx
        )
    graph = drafter_name.load_graph()
    teacher = teacher_name.load()
    processors = schema_name.load(teacher.tokenizer)
    rows = rows_name.read(read_prompts, teacher, limit=number)
    if save_streams is not None:
        from daari_mlx.measure.streams import record as record_streams
        from daari_mlx.measure.streams import save_streams as save

        save(record_streams(teacher, rows, stream_layer or ["final"], length.max_tokens), Path(save_streams))
        return
    if graph is not None:
        graph = attach(graph, teacher.model, teacher.tokenizer)
    check_prompts(teacher, graph, rows, length.max_tokens, allow_overlap)  # before anything is timed
    if sizes:
        if graph is None or drafter_name.kind() != "graph" or processors is not None:
            raise typer.BadParameter("--concurrency measures a --graph alone", ctx=ctx)
        from daari_mlx.measure.batch_bench import run_batch_bench
        from daari_mlx.show.batch_text import batch_bench_text

        values = run_batch_bench(
            teacher,
            graph,
            rows,
            sizes,
            max_tokens=length.max_tokens,
            num_draft_tokens=drafter_name.num_draft_tokens,
            allow_overlap=allow_overlap,
            repeats=passes,
            command=report.command_line(),
        )
        _tell(values, batch_bench_text, out, as_json)
        if not values["ok"]:
            raise typer.Exit(1)
        return
    if drafter_name.num_draft_tokens == "auto":
        machine.measured_cost(teacher.model)  # what is recorded rests on a measurement, not on a provisional curve
    drafting = drafter_name.load(graph, teacher, trust_remote_code=teacher_name.trust_remote_code)
    record = run_bench(
        teacher,
        drafting.graph,
        rows,
        drafter=drafting.drafter,
        max_tokens=length.max_tokens,
        num_draft_tokens=drafting.num_draft_tokens,
        logits_processors=processors,
        allow_overlap=allow_overlap,
        seed=seed,
        command=report.command_line(),
    )
    _tell(record.as_dict(), bench_text, out, as_json)
    if not record.ok:
        raise typer.Exit(1)


def _check_live(ctx: typer.Context, drafter: str | None, save_streams: str | None) -> None:
    """See that the options fit what is done with a teacher: measuring, or recording its streams."""
    if drafter not in (None, "graph", "model", "pair", "lookup", "none"):
        raise typer.BadParameter(f"--drafter {drafter} drafts in a --replay only", ctx=ctx)
    refuse_unused(ctx, "device", "goes with --replay: leave it out")
    if save_streams is None:
        refuse_unused(ctx, "stream_layer", "goes with --save-streams: leave it out")
    else:
        refuse_unused(ctx, OF_FIGURES, "has no meaning with --save-streams: leave it out")
        check_new_file(save_streams, "--save-streams", replace=False)


def _numbers(text: str) -> list[int]:
    """The numbers of ``1,4,8``."""
    words = text.split(",")
    if not all(word.strip().isdecimal() and int(word) > 0 for word in words):
        raise typer.BadParameter(f"--concurrency is {text!r}: give numbers of rows, such as 1,4,8,16")
    return [int(word) for word in words]


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
    _tell(values, comparison_text, out, as_json)


def _tell(values: dict[str, Any], text: Callable[[dict[str, Any]], str], out: str | None, as_json: bool) -> None:
    """Print a record, and append the whole of it to a file."""
    from daari_mlx.measure.records import append_record

    if out is not None:
        append_record(Path(out), values)
    print(report.as_json(values) if as_json else text(values))


@takes()
def probe(
    teacher_name: TeacherName,
    repeats: Annotated[int, number("How often each is timed.", 1)] = 7,
    as_json: words.Json = False,
) -> None:
    """Time a model's forwards on this machine. How far to draft depends on them; they are kept.

    A forward is one pass through the model. T(m) is the time of one over m tokens of one answer, T(B, m) of one over m
    tokens of each of B answers, which is timed at a few points.
    """
    from dataclasses import asdict

    from daari_mlx.cost.probe import LONGER, measure, save
    from daari_mlx.ground import blas

    teacher = teacher_name.load()
    record = measure(teacher.model, repeats=repeats, longer=LONGER, batches=True)
    path = save(record)
    kept = None if path is None else str(path)
    library = blas.status()
    if as_json:
        print(report.as_json({**asdict(record), "noisy": record.noisy, "kept": kept, "blas": library._asdict()}))
        return
    words = library.name if library.loaded else f"{library.name} ({library.reason})"
    print(report.probe_text(record, kept, words))
