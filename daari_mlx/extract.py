"""Stage 3, extract: one forward a sequence; its answer states, reduced, go to shards as they come.

Every step writes whole files and skips those that are there: a run that was stopped anywhere goes on where it was.
Memory holds one shard at a time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from daari_mlx.answers import answer_prompts
from daari_mlx.data import Prompt, Sequence, corpus_hash, prompt_hash
from daari_mlx.errors import DaariError
from daari_mlx.files import load_arrays, once, read_json, remove, save_arrays, write_json
from daari_mlx.nodes import FloatArray, Projection, fit_projection
from daari_mlx.progress import bar
from daari_mlx.tap import FINAL, tap_model
from daari_mlx.teacher import Teacher
from daari_mlx.workdir import Plan, Workdir

PART = 64  # sequences a shard holds
SAMPLE_STATES = 8192  # states that the projection is fitted on
LEAD = 1  # rows before the answer: the state that leads to the prompt's last token lets the first forward carry a draft


@dataclass(frozen=True, slots=True)
class ExtractOptions:
    """How states are taken.

    Attributes:
        answers: ``"reference"``: learn from the text as given; ``"teacher"``: let the teacher answer the prompts first.
        max_tokens: the longest answer of the teacher.
        layer: ``"final"`` or the index of a layer.
        dimensions: of the reduced states.
        seed: the order in which sequences are taken.
    """

    answers: str = "reference"
    max_tokens: int = 256
    layer: int | str = FINAL
    dimensions: int = 64
    seed: int = 0


def extract(teacher: Teacher, rows: list[Sequence] | list[Prompt], workdir: Workdir, options: ExtractOptions) -> None:
    """Fill ``workdir`` with the reduced states of all answers.

    Args:
        rows: sequences, or prompts where ``options.answers`` is ``"teacher"``.

    Raises:
        DaariError: the folder belongs to another run; the disk is full. Whole files stay, and the run can be resumed.
    """
    plan = Plan(
        teacher=teacher.fingerprint(),
        corpus=_hash(rows),
        rows=len(rows),
        answers=options.answers,
        max_tokens=options.max_tokens,
        layer=options.layer,
        dimensions=options.dimensions,
        seed=options.seed,
    )
    tap_model(teacher.model, options.layer)  # what cannot be a teacher is told now, not after hours of answers
    workdir.begin(plan)
    if workdir.is_finished():
        return
    start = time.perf_counter()
    sequences = _answered(teacher, rows, workdir, options)
    answered = time.perf_counter()
    order = np.random.default_rng(options.seed).permutation(len(sequences))
    parts = [[sequences[i] for i in order[k : k + PART]] for k in range(0, len(order), PART)]
    tokens = sum(len(s.tokens) for s in sequences)
    with bar(total=tokens, desc="states", unit="tok") as progress:
        sampled = _sample(teacher, parts, workdir, options, progress)
        projection = workdir.read_projection()
        for number, part in enumerate(parts[sampled:], start=sampled):
            path = workdir.shard_path(number)
            once(path, lambda: save_arrays(path, _reduce(_states(teacher, part, options.layer), projection)))  # noqa: B023
            progress.update(sum(len(s.tokens) for s in part))
    seconds = {"answers": answered - start, "states": time.perf_counter() - answered}
    write_json(
        workdir.done_path,
        {"sequences": len(sequences), "tokens": tokens, "shards": len(parts), "seconds": seconds},
    )


def extraction_record(workdir: Workdir) -> dict[str, object]:
    """What the finished extraction counted: sequences, tokens, shards, seconds of its last run.

    Raises:
        DaariError: it is not finished.
    """
    return read_json(
        workdir.done_path,
        "finished extraction (run daari-mlx extract again with the same options: it goes on)",
    )


def _answered(
    teacher: Teacher, rows: list[Sequence] | list[Prompt], workdir: Workdir, options: ExtractOptions
) -> list[Sequence]:
    prompts = [row for row in rows if isinstance(row, Prompt)]
    if prompts:
        return answer_prompts(teacher, prompts, workdir, options.max_tokens)
    # no state comes before a text's first token
    sequences = [row for row in rows if isinstance(row, Sequence) and len(row.tokens) > 1]
    if not sequences:
        raise DaariError("Every text is a single token: there is no state to learn from. Give longer texts.")
    return sequences


def _hash(rows: list[Sequence] | list[Prompt]) -> str:
    return corpus_hash(
        [
            row if isinstance(row, Sequence) else Sequence(row.tokens, len(row.tokens), row.row, row.source)
            for row in rows
        ]
    )


def _sample(
    teacher: Teacher, parts: list[list[Sequence]], workdir: Workdir, options: ExtractOptions, progress: object
) -> int:
    """Take unreduced states of the first parts, fit the projection on them, reduce them; return how many parts."""
    count, taken = 0, 0
    while count < len(parts) and taken < SAMPLE_STATES:
        taken += sum(len(_kept(s)) for s in parts[count])
        count += 1
    for number, part in enumerate(parts[:count]):
        path = workdir.raw_path(number)
        if not workdir.projection_path.exists():
            once(path, lambda: save_arrays(path, _states(teacher, part, options.layer)))  # noqa: B023
        progress.update(sum(len(s.tokens) for s in part))  # type: ignore[attr-defined]
    if not workdir.projection_path.exists():
        states = np.concatenate([load_arrays(workdir.raw_path(k))["states"] for k in range(count)])
        fitted = fit_projection(states, options.dimensions)
        save_arrays(workdir.projection_path, {"mean": fitted.mean, "basis": fitted.basis})
    projection = workdir.read_projection()
    for number, part in enumerate(parts[:count]):
        raw, path = workdir.raw_path(number), workdir.shard_path(number)
        if not path.exists():
            arrays = load_arrays(raw) if raw.exists() else _states(teacher, part, options.layer)
            save_arrays(path, _reduce(arrays, projection))
    remove(workdir.raw_path(0).parent)
    return count


def _kept(sequence: Sequence) -> range:
    """The positions whose states are kept: those that an answer token was chosen from, and ``LEAD`` before them."""
    return range(max(0, sequence.answer_start - 1 - LEAD), len(sequence.tokens) - 1)


def _states(teacher: Teacher, part: list[Sequence], layer: int | str) -> dict[str, np.ndarray]:
    """The arrays of one shard, with unreduced ``states`` in place of ``reduced``."""
    states, tokens, rows, lead = [], [], [], []
    for sequence in part:
        kept = _kept(sequence)
        tokens.append(np.array(sequence.tokens[kept.start + 1 :], np.int32))
        states.append(teacher.states(sequence.tokens[:-1], layer, kept.start))
        rows.append(len(kept))
        lead.append(max(0, sequence.answer_start - 1 - kept.start))
    return {
        "states": np.concatenate(states),
        "tokens": np.concatenate(tokens),
        "rows": np.array(rows, np.int32),
        "lead": np.array(lead, np.int32),
        "prompts": np.array([prompt_hash(s.tokens[: s.answer_start]) for s in part], np.uint64),
    }


def _reduce(arrays: dict[str, np.ndarray], projection: Projection) -> dict[str, np.ndarray]:
    states: FloatArray = arrays.pop("states")
    # float16 moves a reduced state by 0.05 % at the most, far less than nodes lie apart, and halves the folder
    return {**arrays, "reduced": projection(states).astype(np.float16)}
