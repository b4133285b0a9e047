"""The command that answers a file of rows: map."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from daari_mlx.cli.options import words
from daari_mlx.cli.options.command import takes
from daari_mlx.cli.options.names import FEATURES, DrafterName, Drafting, LearnName, RowsName, SchemaName, TeacherName
from daari_mlx.cli.shell import hear_terminations, interrupt
from daari_mlx.decode.options import Length, Sampling
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.learning import check_nobody_learns
from daari_mlx.ground.option import Option, number, unescaped, whole
from daari_mlx.ground.regular import check_new_file
from daari_mlx.show import report

if TYPE_CHECKING:
    from daari_mlx.graph.outlook import Outlook
    from daari_mlx.job.files import Line
    from daari_mlx.job.run import Job
    from daari_mlx.job.shape import Shape
    from daari_mlx.learn.learner import Learner
    from daari_mlx.teacher.load import Teacher

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
    prefix: Annotated[str, Option("What to put before the names of the fields that rows get.", "TEXT")] = ""
    compare: Annotated[bool, Option("Say of each row that has an answer already whether ours is the same.")] = False
    unordered: Annotated[bool, Option("Write rows as they are answered, not in the order of the data.")] = False
    keep_bad_rows: Annotated[
        bool, Option("Write bad rows with what is wrong with them, instead of stopping before the work.")
    ] = False
    retry_errors: Annotated[bool, Option("Answer rows again that had an error in an earlier run.")] = False
    max_errors: Annotated[
        int | None, number("How many rows may fail before the job stops; any number by default.", 0)
    ] = None


@takes(
    "model graph learn data out adapter_path trust_remote_code extra_eos_token template system_prompt "
    f"chat_template_config {FEATURES} split limit json_schema json_whitespace stop max_tokens sampling "
    "num_draft_tokens concurrency how as_json",
    model=...,
    data=...,
)
def map(
    teacher_name: TeacherName,
    drafter_name: DrafterName,
    learn_name: LearnName,
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
    """Answer every row of a file. In order, several rows at once; if it is stopped, the same command resumes.

    The exit status is 3 where some rows have an error in place of an answer.
    """
    check_files(str(rows_name.data), rows_name, out)
    hear_terminations()
    from daari_mlx.job.shape import check_columns
    from daari_mlx.teacher.ranks import crew

    check_columns(_is_table(out), _is_table(str(rows_name.data)))
    learn_name.check(drafter_name)
    graph = drafter_name.load_graph()
    with crew() as ranks:
        if ranks.size > 1:  # a launcher that lost one rank ends the others by SIGTERM
            signal.signal(signal.SIGTERM, interrupt)
        from daari_mlx.job.run import run_job
        from daari_mlx.show.learnt import learning

        if ranks.size > 1 and learn_name.learn is not None:
            raise DaariError(
                f"--learn works in one process, and each of these {ranks.size} ranks would learn a part: leave it out."
            )
        teacher = teacher_name.load(lazy=True)  # a mistake in the data shows before the weights are read
        words.add_eos_tokens(teacher.tokenizer, extra_eos_token or [])
        drafting = Drafting(graph, None, drafter_name.num_draft_tokens)
        job = _job(rows_name, length, sampling, schema_name, how, out, system_prompt, teacher.tokenizer, drafter_name)

        @contextmanager
        def learns(loaded: Teacher) -> Iterator[Learner | None]:
            learner = learn_name.load(drafting, loaded)
            with learning(learner, learn_name.path):
                yield learner

        done = run_job(teacher, graph, replace(job, learning=learns), ranks)
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
    check_nobody_learns(out, "--out")
    from daari_mlx.ground.files import check_beside
    from daari_mlx.job.folder import JobFolder
    from daari_mlx.text.lines import data_file

    check_beside(Path(out))
    if data != "-":
        JobFolder(Path(out)).check_apart(data_file(data, str(rows_name.split)))


def _is_table(path: str) -> bool:
    from daari_mlx.job.files import Kind

    return path != "-" and Kind.of(path).delimiter is not None


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
) -> Job:
    from daari_mlx.job.asks import Asker
    from daari_mlx.job.openai import BatchShape, is_batch_line
    from daari_mlx.job.requests import Manner
    from daari_mlx.job.run import Job
    from daari_mlx.job.shape import RowShape
    from daari_mlx.text.rows import Features

    features = Features(
        rows_name.prompt_feature, rows_name.completion_feature, rows_name.chat_feature, rows_name.text_feature
    )
    schema_name.check()
    thinks_until = tokenizer.think_end if tokenizer.has_thinking else None

    def shape(first: Line) -> Shape:
        if first.fields is not None and is_batch_line(first.fields):
            given: dict[str, Any] = {
                "--template": how.template,
                "--system-prompt": system_prompt,
                "--prefix": how.prefix,
            }
            given |= {"--compare": how.compare, "a table as --out": _is_table(out)}
            if unused := [name for name, value in given.items() if value]:
                raise DaariError(
                    f"{first.place} is a line of OpenAI's Batch API, which says itself what to ask: leave {unused[0]} "
                    "out."
                )
            return BatchShape(thinks_until=thinks_until)
        return RowShape(
            Asker(how.template, system_prompt, features, flags=True),
            prefix=how.prefix,
            parsed=schema_name.json_schema is not None,
            compare=how.compare,
            flat=_is_table(out),
            thinks_until=thinks_until,
            flags=True,
        )

    return Job(
        data=str(rows_name.data),
        split=rows_name.split,
        out=None if out == "-" else Path(out),
        shape=shape,
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
        outlook=None if drafter_name.graph is None else _outlook(drafter_name.graph),
    )


def _outlook(graph: str) -> Outlook | None:
    """The held-out answers that a graph's compilation kept; None where it kept none."""
    from daari_mlx.graph.artifact import STATS, read_stats
    from daari_mlx.measure.prospect import kept_outlook
    from daari_mlx.share.find import graph_folder

    folder = graph_folder(graph)
    return kept_outlook(read_stats(folder))[0] if (folder / STATS).exists() else None
