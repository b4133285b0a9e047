"""The whole job: look at every row, answer those that are not answered yet, write all of them in order.

Several ranks take turns at the rows that are left. Each keeps its answers in files of its own; rank 0 collects them
and writes the output, so that it has the bytes that one process writes.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from daari_mlx.batch.request import Request
from daari_mlx.cost import probe
from daari_mlx.decode.options import DraftLength
from daari_mlx.graph.graph import Graph
from daari_mlx.graph.outlook import Outlook
from daari_mlx.ground.counted import counted
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.files import whole
from daari_mlx.ground.progress import bar, note
from daari_mlx.job.done import Done, summary
from daari_mlx.job.engine import engine_for, foretold
from daari_mlx.job.files import Kind, Line, Writer, opened_for_writing, read_lines
from daari_mlx.job.folder import JobFolder, teacher_settings
from daari_mlx.job.foretold import how_long, what_is_left
from daari_mlx.job.journal import Journal
from daari_mlx.job.output import Output
from daari_mlx.job.plan import Plan, look_at, refuse_bad
from daari_mlx.job.requests import Manner, Requests, row_seed
from daari_mlx.job.shape import Shape
from daari_mlx.job.work import answer_all
from daari_mlx.learn.learner import Learner
from daari_mlx.teacher.load import Teacher
from daari_mlx.teacher.ranks import Alone
from daari_mlx.text.lines import data_file


@dataclass(frozen=True)
class Job:
    """What is to be done with which file.

    Attributes:
        data, split: rows to answer; ``"-"`` is stdin.
        out: the file to write; None for stdout, which cannot be gone on with.
        shape: given the first row that can be read, from rows to questions and back.
        asking: the settings of ``shape``, as JSON values: answers of others are not mixed with these.
        manner: how rows are answered.
        limit: take so many rows; None for all.
        num_draft_tokens: as for :func:`daari_mlx.batch_generate`.
        concurrency: rows at once, or ``"auto"``.
        unordered: write rows as they are answered.
        keep_bad_rows: write bad rows with what is wrong with them, in place of stopping before the work.
        retry_errors: answer rows again that had an error.
        max_errors: how many rows may fail before the job stops; None for all.
        learning: makes who learns from the answers and drafts them, for a ``with``; None where nobody does.
        outlook: held-out answers that the graph's compilation kept, to foretell how long it takes; or None.
    """

    data: str
    out: Path | None
    shape: Callable[[Line], Shape]
    asking: dict[str, Any]
    manner: Manner
    split: str = "train"
    limit: int | None = None
    num_draft_tokens: DraftLength = "auto"
    concurrency: int | str = "auto"
    unordered: bool = False
    keep_bad_rows: bool = False
    retry_errors: bool = False
    max_errors: int | None = None
    learning: Callable[[Teacher], AbstractContextManager[Learner | None]] = lambda teacher: nullcontext()
    outlook: Outlook | None = None


def run_job(teacher: Teacher, graph: Graph | None, job: Job, crew: Alone | None = None) -> dict[str, Any] | None:
    """Do a job, or what is left of it.

    Args:
        teacher: may be loaded lazily: the weights are not read before every row was looked at.
        crew: this process's place among several.

    Returns:
        What was done, as JSON values; None on ranks other than 0.

    Raises:
        DaariError: bad rows, other settings than before, too many errors, a full disk; another rank is gone. What was
            answered is kept, and the same job goes on.
    """
    crew = crew or Alone()
    requests = Requests(teacher.tokenizer, job.manner, teacher.context_length)
    with _on_disk(job, crew) as (data, out):
        stamp = _stamp(Path(data), job.split)
        readable = (line for line in read_lines(data, job.split) if line.fields is not None)
        shape = job.shape(next(readable, Line(data, None)))
        plan = look_at(
            read_lines(data, job.split),
            shape.ask,
            draws=requests.draws,
            prompt=requests.checked,
            name="stdin" if job.data == "-" else str(data_file(data, job.split)),
            limit=job.limit,
            shown=crew.rank == 0,
        )
        if not job.keep_bad_rows:
            refuse_bad(plan)
        folder = JobFolder(out)
        with folder.held(_settings(teacher, job), plan.keys.tobytes(), crew) as name:
            journal = folder.journal()
            run = _Run(teacher, graph, job, shape, crew, data, stamp, out, requests, plan, journal)
            try:
                return run(name)
            finally:
                journal.close()


@dataclass
class _Run:
    """One run of a job on one rank."""

    teacher: Teacher
    graph: Graph | None
    job: Job
    shape: Shape
    crew: Alone
    data: str
    stamp: tuple[int, int]
    out: Path
    requests: Requests
    plan: Plan
    journal: Journal

    def __call__(self, name: str) -> dict[str, Any] | None:
        """Answer this rank's share; rank 0 writes the output.

        Args:
            name: of the run, the same on every rank.
        """
        plan, crew, done = self.plan, self.crew, Done()
        _gather(self.journal, crew, everyone=True)
        plan.take_in(self.journal, retry_errors=self.job.retry_errors)
        pending = plan.pending()
        if len(pending) and crew.rank == 0:
            note(what_is_left(plan, self.job.manner.length.max_tokens))
        with self._output() if crew.rank == 0 else nullcontext() as output:
            if len(mine := pending[crew.rank :: crew.size]):
                self.journal.begin(f"{name}-{crew.rank:03d}")
                with self.job.learning(self.teacher) as learner:
                    self._answer(mine.tolist(), done, output if crew.size == 1 else None, learner)
            crew.agree()
            _gather(self.journal, crew)
            done = done.together(crew)
            if output is None:
                return None
            plan.take_in(self.journal, retry_errors=False)
            output.advance()
            if _stamp(Path(self.data), self.job.split) != self.stamp:
                raise _changed(self.data)
        return summary(plan, len(pending), done, output.counted)

    def _answer(self, mine: list[int], done: Done, output: Output | None, learner: Learner | None) -> None:
        """Answer some rows; each is in the journal before anything else becomes of it."""
        job, crew, teacher, start = self.job, self.crew, self.teacher, time.perf_counter()
        found = None
        if self.graph is not None or job.concurrency == "auto":
            drafts = self.graph is not None or learner is not None
            found = foretold(teacher.model, drafts, job.num_draft_tokens, job.outlook)
        engine, most_rows = engine_for(
            teacher.model, teacher.tokenizer, self.graph, job.num_draft_tokens, job.concurrency, found, learner
        )
        if crew.rank == 0:
            timed = None if found is None else probe.load(teacher.model)
            note(
                f"{counted(most_rows, 'row')} at once"
                + (how_long(found, timed, self.plan, most_rows) if found and timed else "")
            )
        label = "answers" if crew.size == 1 else f"answers, rank 0 of {crew.size}"
        with bar(total=len(mine), desc=label, unit="row", shown=crew.rank == 0) as shown:
            for (row, line), answer in answer_all(engine, self._requests(set(mine)), most_rows):
                self.plan.answered(row, self.journal.add(self.plan.key(row), answer))
                if output is not None:
                    output.write_early(row, line) if job.unordered else output.advance()
                done.take(answer)
                done.seconds = time.perf_counter() - start
                shown.note(done.figures())
                shown.update(1)
                if job.max_errors is not None and done.failed > job.max_errors:
                    raise DaariError(
                        f"{counted(done.failed, 'row')} failed, more than --max-errors {job.max_errors}; the last one: "
                        f"{answer.error} What is answered is kept; --retry-errors answers those that failed again."
                    )

    def _requests(self, mine: set[int]) -> Iterator[tuple[tuple[int, Line], Request | Exception]]:
        """Those rows with their requests."""
        seed = self.job.manner.sampling.seed or 0
        for row, line in enumerate(islice(read_lines(self.data, self.job.split), len(self.plan))):
            if row in mine:
                made: Request | Exception
                key = self.plan.key(row)
                try:
                    ask = self.shape.ask(line)
                    changed = ask.key != key and not self.requests.draws(ask)
                    made = self.requests.request(ask, row_seed(seed, key))
                except Exception as error:  # a template may render otherwise by now
                    changed, made = False, error
                if changed:
                    raise _changed(self.data)
                yield (row, line), made

    @contextmanager
    def _output(self) -> Iterator[Output]:
        """The output, which takes its place when all is written."""
        job, to_stdout = self.job, self.job.out is None
        with nullcontext() if to_stdout else whole(self.out) as beside, opened_for_writing(beside) as handle:
            kind = Kind() if to_stdout else Kind.of(self.out)
            writer = Writer(handle, kind, self.shape.columns(self.plan.columns))
            try:
                yield Output(writer, read_lines(self.data, job.split), self.plan, self.journal, self.shape)
            except BaseException:
                with suppress(Exception):  # what went wrong first is told
                    writer.close()
                raise
            writer.close()


@contextmanager
def _on_disk(job: Job, crew: Alone) -> Iterator[tuple[str, Path]]:
    """Where the rows lie and where the output goes: stdin is read to a file first, stdout has a passing folder."""
    with tempfile.TemporaryDirectory() as passing:
        data = job.data
        if data == "-":
            if crew.size > 1:
                raise DaariError("Several ranks cannot share stdin: give --data a file.")
            data = str(Path(passing) / "stdin.jsonl")
            with open(data, "wb") as copy:
                shutil.copyfileobj(sys.stdin.buffer, copy)
        yield data, Path(passing) / "stdout" if job.out is None else job.out


def _stamp(data: Path, split: str) -> tuple[int, int]:
    """What changes with a file."""
    found = data_file(data, split).stat()
    return found.st_size, found.st_mtime_ns


def _changed(data: str) -> DaariError:
    return DaariError(
        f"{data} has changed while its rows were answered, so nothing was written. What is answered is kept: run the "
        "same command again."
    )


def _gather(journal: Journal, crew: Alone, *, everyone: bool = False) -> None:
    """Bring every rank's journal files to rank 0, or to all."""
    journal.look()
    said = crew.each(json.dumps([path.name for path in journal.paths]))
    names = sorted({name for names in said for name in json.loads(names)})
    crew.gather([journal.folder / name for name in names], everyone=everyone)
    journal.look()


def _settings(teacher: Teacher, job: Job) -> dict[str, Any]:
    """What the answers depend on: those of other settings are not mixed with these."""
    manner = job.manner
    return {
        "teacher": teacher_settings(teacher.fingerprint()),
        **job.asking,
        "chat_template_config": manner.chat_template_config,
        "max_tokens": manner.length.max_tokens,
        "stop": manner.length.stop,
        "json_schema": manner.schema,
        "json_whitespace": None if manner.schema is None else manner.whitespace,
        **{name: value for name, value in vars(manner.sampling).items() if manner.sampling.temp or name == "temp"},
    }
