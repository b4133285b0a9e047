"""The command that answers a file of rows: map."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from daari_mlx.cli.options import words
from daari_mlx.cli.options.command import takes
from daari_mlx.cli.options.names import FEATURES, DrafterName, RowsName, SchemaName, TeacherName
from daari_mlx.decode.options import Length, Sampling
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.option import Option, number, unescaped, whole
from daari_mlx.ground.regular import check_new_file, what_is
from daari_mlx.show import report

SOME_FAILED = 3  # exit status where every row was written, and some with an error


@dataclass(frozen=True)
class MapOptions:
    """How a job is done."""

    template: Annotated[
        str | None,
        Option("What to ask of a row, with its fields in braces: 'Classify: {text}'.", "TEXT", read=unescaped),
    ] = None
    concurrency: Annotated[
        int | Literal["auto"],
        Option(
            "How many rows share a forward; auto decides from this machine's speed and memory.",
            "N|auto",
            read=whole(1, "give a number from 1 on, or auto", "auto"),
        ),
    ] = "auto"
    prefix: Annotated[str, Option("Stands before the names of the fields that are written to rows.", "TEXT")] = ""
    compare: Annotated[bool, Option("Say of each row that brings an answer whether ours is the same.")] = False
    unordered: Annotated[bool, Option("Write rows as they are answered, not in the order of the data.")] = False
    keep_bad_rows: Annotated[
        bool, Option("Write bad rows with what is wrong with them, instead of stopping before the work.")
    ] = False
    retry_errors: Annotated[bool, Option("Answer rows again that had an error in an earlier run.")] = False
    max_errors: Annotated[int | None, number("How many rows may fail before the job stops; all by default.", 0)] = None


@takes(
    "model graph data out adapter_path trust_remote_code extra_eos_token template system_prompt chat_template_config "
    f"{FEATURES} split limit json_schema json_whitespace stop max_tokens sampling num_draft_tokens concurrency how "
    "as_json",
    model=...,
    data=...,
)
def map(
    teacher_name: TeacherName,
    drafter_name: DrafterName,
    rows_name: RowsName,
    length: Length,
    sampling: Sampling,
    schema_name: SchemaName,
    how: MapOptions,
    out: Annotated[str, Option("The file to write, .jsonl or .csv, packed by .gz, .bz2 or .xz; - for stdout.", "FILE")],
    extra_eos_token: words.ExtraEos = None,
    system_prompt: words.SystemPrompt = None,
    as_json: words.Json = False,
) -> None:
    """Answer every row of a file. In order, several rows a forward; stopped anywhere, the same command resumes.

    Exit status 3 where rows were written with an error in place of an answer.
    """
    check_files(str(rows_name.data), rows_name, out)
    from daari_mlx.job.files import Kind
    from daari_mlx.job.shape import check_columns
    from daari_mlx.teacher.ranks import crew

    check_columns(out != "-" and Kind.of(out).delimiter is not None, _is_table(rows_name))
    graph = drafter_name.load_graph()
    with crew() as ranks:
        if ranks.size > 1:  # a launcher that lost one rank ends the others by SIGTERM
            signal.signal(signal.SIGTERM, signal.default_int_handler)
        from daari_mlx.job.run import run_job

        teacher = teacher_name.load(lazy=True)  # a mistake in the data shows before the weights are read
        words.add_eos_tokens(teacher.tokenizer, extra_eos_token or [])
        job = _job(rows_name, length, sampling, schema_name, how, out, system_prompt, teacher.tokenizer, drafter_name)
        done = run_job(teacher, graph, job, ranks)
    if done is None:
        return
    from daari_mlx.show.job_text import job_text

    text = report.as_json({"out": out, **done}) if as_json else job_text(done, out)
    report.note(text) if out == "-" else print(text)
    if done["errors"]:
        raise typer.Exit(SOME_FAILED)


def check_files(data: str, rows_name: RowsName, out: str) -> None:
    """See that there is something to read, and a place to write to that is another.

    Raises:
        DaariError: it is not so.
    """
    rows_name.check()
    if out == "-":
        return
    check_new_file(out, "--out")
    if data != "-" and what_is(out) is not None and what_is(data) is not None and os.path.samefile(data, out):
        raise DaariError(f"--out {out} is the file that is read: name another.")


def _is_table(rows_name: RowsName) -> bool:
    from daari_mlx.job.files import Kind

    return rows_name.data != "-" and Kind.of(str(rows_name.data)).delimiter is not None


def _job(
    rows_name: RowsName,
    length: Length,
    sampling: Sampling,
    schema_name: SchemaName,
    how: MapOptions,
    out: str,
    system_prompt: str | None,
    tokenizer: Any,
    drafter_name: DrafterName,
) -> Any:
    from dataclasses import asdict

    from daari_mlx.job.asks import Asker
    from daari_mlx.job.files import Kind
    from daari_mlx.job.requests import Manner
    from daari_mlx.job.run import Job
    from daari_mlx.job.shape import RowShape
    from daari_mlx.text.rows import Features

    features = Features(
        rows_name.prompt_feature, rows_name.completion_feature, rows_name.chat_feature, rows_name.text_feature
    )
    schema_name.check()
    return Job(
        data=str(rows_name.data),
        split=rows_name.split,
        out=None if out == "-" else Path(out),
        shape=RowShape(
            Asker(how.template, system_prompt, features),
            prefix=how.prefix,
            parsed=schema_name.json_schema is not None,
            compare=how.compare,
            flat=out != "-" and Kind.of(out).delimiter is not None,
            thinks_until=tokenizer.think_end if tokenizer.has_thinking else None,
        ),
        asking={"template": how.template, "system_prompt": system_prompt, "features": asdict(features)},
        manner=Manner(
            length,
            sampling,
            schema_name.json_schema,
            schema_name.json_whitespace or "compact",
            rows_name.chat_template_config,
        ),
        limit=rows_name.limit,
        num_draft_tokens=drafter_name.num_draft_tokens,
        concurrency=how.concurrency,
        unordered=how.unordered,
        keep_bad_rows=how.keep_bad_rows,
        retry_errors=how.retry_errors,
        max_errors=how.max_errors,
    )
