"""The teacher reads each sequence once; its answer states, reduced, go to shards as they come.

Every step writes whole files and skips those that are there: a run that was stopped anywhere goes on where it was, to
the same bytes. Memory holds one shard at a time. Several ranks take turns at the shards (see
:mod:`daari_mlx.teacher.ranks`).
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

import numpy as np

from daari_mlx.compile.answers import Answerer, answer_prompts
from daari_mlx.compile.batches import Layout, Reader, choose
from daari_mlx.compile.estimate import Estimate, held_bytes
from daari_mlx.compile.options import ExtractOptions
from daari_mlx.compile.rendered import rendered_hash, rendered_rows
from daari_mlx.compile.shards import LEAD, Part, cut, kept, read, reduce
from daari_mlx.compile.workdir import Plan, Workdir
from daari_mlx.graph.nodes import Projection, fit_projection
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.files import DiskFull, load_arrays, read_json, remove, save_arrays, write_json
from daari_mlx.ground.lock import Lock
from daari_mlx.ground.progress import Bar, bar
from daari_mlx.teacher.load import Teacher
from daari_mlx.teacher.ranks import Alone
from daari_mlx.teacher.tap import tap_model
from daari_mlx.text.data import Prompt, Sequence
from daari_mlx.text.identity import corpus_hash

PART = 64  # sequences a shard holds
SAMPLE_STATES = 8192  # states that the projection is fitted on
TRIED = 16  # shards whose sequences show how forwards can be laid out


def extract(
    teacher: Teacher,
    rows: list[Sequence] | list[Prompt],
    workdir: Workdir,
    options: ExtractOptions,
    crew: Alone | None = None,
    projection: Projection | None = None,
    answerer: Answerer | None = None,
) -> None:
    """Fill ``workdir`` with the reduced states of all answers.

    Args:
        rows: sequences, or prompts where ``options.answers`` is ``"teacher"``.
        crew: this process's place among several; None where it is the only one.
        projection: of a graph that the states shall join; None fits one on the first states.
        answerer: see :func:`daari_mlx.compile.answers.answer_prompts`; answers that are there already stay.

    Raises:
        DaariError: the folder belongs to another run or is being filled; the disk is full; another rank is gone.
            Whole files stay, and the run can be resumed.
    """
    crew = crew or Alone()
    plan = Plan(
        teacher=teacher.fingerprint(),
        corpus=corpus_hash(row.said for row in rows),
        rows=len(rows),
        answers=options.answers,
        max_tokens=options.max_tokens,
        layer=options.layer,
        dimensions=options.dimensions,
        seed=options.seed,
        chat_template_config=options.chat_template_config,
    )
    # what cannot be a teacher is told before any work
    _, width = tap_model(teacher.model, options.layer)
    with _begun(workdir, plan, rendered_hash(rows), crew):
        if crew.told("finished" if workdir.is_finished() else ""):
            return
        rows = rendered_rows(rows, workdir.rows_path, crew)
        if projection is not None and crew.rank == 0 and not workdir.projection_path.exists():
            save_arrays(workdir.projection_path, {"mean": projection.mean, "basis": projection.basis})
        estimate = _estimate(rows, width, options)
        if crew.rank == 0:
            print(estimate.text(workdir.path, held_bytes(workdir.path)), file=sys.stderr)
        try:
            _fill(teacher, rows, workdir, options, crew, answerer)
        except DiskFull as error:
            left = max(0, estimate.kept + estimate.passing - held_bytes(workdir.path))
            raise DiskFull(f"{error} The whole run needs about {left / 1e6:.1f} MB more.") from error


def extraction_record(workdir: Workdir) -> dict[str, object]:
    """What the finished extraction counted: sequences, tokens, states, shards, and the seconds of its
    last run: for the teacher's answers, for choosing a layout, for reading states.

    Raises:
        DaariError: it is not finished.
    """
    return read_json(
        workdir.done_path,
        "finished extraction (run daari-mlx extract again with the same options: it goes on)",
    )


@contextmanager
def _begun(workdir: Workdir, plan: Plan, rendered: str, crew: Alone) -> Iterator[None]:
    """The folder is this run's, and stays so until the end: rank 0 takes it first, then the others."""
    ours = {k: v for k, v in plan.teacher.items() if k not in ("source", "adapter_path")}
    digest = hashlib.sha256(json.dumps([ours, asdict(plan) | {"teacher": None}]).encode()).hexdigest()
    if crew.told(digest) != digest:
        error: Exception | None = DaariError(
            f"Rank {crew.rank} was given another teacher, other data or other options than rank 0: start all ranks "
            "with the same files and options."
        )
    else:
        error = None
    crew.agree(error)
    run = crew.told(os.urandom(8).hex())
    lock: Lock | None = None

    def begin() -> None:
        nonlocal lock
        workdir.check_own()
        workdir.path.mkdir(parents=True, exist_ok=True)
        lock = Lock(workdir.lock_path, run)
        workdir.begin(plan, rendered)
        if crew.size > 1 and not lock.joined:
            lock.share()

    try:
        crew.in_turn(begin)
        yield
        crew.agree()
    finally:
        if lock is not None:
            lock.release()


def _fill(
    teacher: Teacher,
    rows: list[Sequence] | list[Prompt],
    workdir: Workdir,
    options: ExtractOptions,
    crew: Alone,
    answerer: Answerer | None,
) -> None:
    start = time.perf_counter()
    sequences = _answered(teacher, rows, workdir, options, crew, answerer)
    answered = time.perf_counter()
    parts = cut(sequences, PART, options.seed)
    reader = Reader(teacher, options.layer, _layout(teacher, parts, workdir, options.layer, crew))
    chosen = time.perf_counter()
    shards = [workdir.shard_path(k) for k in range(len(parts))]
    label = "states" if crew.size == 1 else f"states, rank 0 of {crew.size}"
    with bar(total=_tokens(parts, crew.mine(shards)), desc=label, unit="tok", shown=crew.rank == 0) as shown:
        sampled = _sample(reader, parts, workdir, options, crew, shown)
        projection = workdir.read_projection()
        if crew.rank == 0:
            for number in range(sampled):
                raw = workdir.raw_path(number)
                if raw.exists() and not shards[number].exists():
                    save_arrays(shards[number], reduce(load_arrays(raw), projection))
        crew.agree()
        crew.in_turn(lambda: remove(workdir.raw_path(0).parent))  # of ranks with folders of their own
        left = crew.mine(shards)
        shown.expect(_tokens(parts, left))
        for number in left:
            arrays = reduce(read(reader, parts[number], shown.unit(parts[number].tokens)), projection)
            crew.still_together()
            save_arrays(shards[number], arrays)
    crew.gather(shards)
    if crew.rank == 0:
        write_json(
            workdir.done_path,
            {
                "sequences": len(sequences),
                "tokens": sum(part.tokens for part in parts),
                "states": sum(part.states for part in parts),
                "shards": len(parts),
                "ranks": crew.size,
                "answers_cut": _cut_short(sequences, teacher, options),
                "seconds": {
                    "answers": answered - start,
                    "choices": chosen - answered,
                    "states": time.perf_counter() - chosen,
                },
            },
        )


def _cut_short(sequences: list[Sequence], teacher: Teacher, options: ExtractOptions) -> int:
    """How many of the teacher's answers ended at --max-tokens, not at an end token of the teacher's own."""
    if options.answers != "teacher":
        return 0
    ends = set(teacher.tokenizer.eos_token_ids)
    longest = options.max_tokens
    return sum(s.tokens[-1] not in ends and len(s.tokens) - s.answer_start >= longest for s in sequences)


def _answered(
    teacher: Teacher,
    rows: list[Sequence] | list[Prompt],
    workdir: Workdir,
    options: ExtractOptions,
    crew: Alone,
    answerer: Answerer | None,
) -> list[Sequence]:
    prompts = [row for row in rows if isinstance(row, Prompt)]
    if prompts:
        return answer_prompts(teacher, prompts, workdir, options.max_tokens, crew, answerer)
    # no state comes before a text's first token
    sequences = [row for row in rows if isinstance(row, Sequence) and len(row.tokens) > 1]
    if not sequences:
        raise DaariError("Every text is a single token: there is no state to learn from. Give longer texts.")
    return sequences


def _estimate(rows: list[Sequence] | list[Prompt], width: int, options: ExtractOptions) -> Estimate:
    given = [row for row in rows if isinstance(row, Sequence)]
    asked = [row for row in rows if isinstance(row, Prompt)]
    states = sum(len(kept(s)) for s in given) + len(asked) * (options.max_tokens + LEAD)
    return Estimate.of(
        len(rows),
        states,
        sum(kept(s).start + 1 for s in given) + sum(len(p.tokens) for p in asked),
        sum(len(row.tokens) for row in rows),
        width=width,
        dimensions=options.dimensions,
        sample=SAMPLE_STATES + PART * states // max(1, len(rows)),  # whole shards are taken
        at_most=bool(asked),
    )


def _layout(teacher: Teacher, parts: list[Part], workdir: Workdir, layer: int | str, crew: Alone) -> Layout:
    """How forwards are laid out: found once, then the same for every run on this folder."""
    path = workdir.layout_path
    crew.gather([path], everyone=True)
    for _ in crew.mine([path]):
        pieces = [piece for part in parts[:TRIED] for piece in part.pieces]
        chosen = choose(teacher, layer, pieces).as_json()
        crew.still_together()
        write_json(path, chosen)
    crew.gather([path], everyone=True)
    record = read_json(path, "record of how forwards are laid out (remove the workdir and extract again)")
    return Layout(record.get("prefixes") is True, record.get("batches") is True)


def _sample(
    reader: Reader,
    parts: list[Part],
    workdir: Workdir,
    options: ExtractOptions,
    crew: Alone,
    shown: Bar,
) -> int:
    """Take unreduced states of the first parts and fit the projection on them; return how many parts."""
    count, taken = 0, 0
    while count < len(parts) and taken < SAMPLE_STATES:
        taken += parts[count].states
        count += 1
    path, raw = workdir.projection_path, [workdir.raw_path(k) for k in range(count)]
    if not crew.told("fitted" if path.exists() else ""):
        for number in crew.mine(raw):
            arrays = read(reader, parts[number], shown.unit(parts[number].tokens))
            crew.still_together()
            save_arrays(raw[number], arrays)
        crew.gather(raw)
        if crew.rank == 0:
            fitted = fit_projection(np.concatenate([load_arrays(p)["states"] for p in raw]), options.dimensions)
            save_arrays(path, {"mean": fitted.mean, "basis": fitted.basis})
    crew.gather([path], everyone=True)
    return count


def _tokens(parts: list[Part], some: list[int]) -> int:
    """The tokens of some parts."""
    return sum(parts[k].tokens for k in some)
