"""Extraction: the right states, a run that goes on wherever it was stopped, and a folder that belongs to one run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from graphs import write_rows

from daari_mlx.compile import answers, extract
from daari_mlx.compile.batches import Piece, Reader
from daari_mlx.compile.extract import ExtractOptions, extraction_record
from daari_mlx.compile.workdir import Workdir
from daari_mlx.ground.errors import DaariError
from daari_mlx.teacher.load import Teacher
from daari_mlx.text.data import Prompt, Sequence, read_prompts, read_sequences
from daari_mlx.text.identity import prompt_key

OPTIONS = ExtractOptions(dimensions=16)
ROWS = 14


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few sequences make several shards: two of unreduced states, then five."""
    monkeypatch.setattr(extract, "PART", 2)
    monkeypatch.setattr(extract, "SAMPLE_STATES", 80)
    monkeypatch.setattr(answers, "PART", 3)


@pytest.fixture(scope="module")
def teacher(tiny_teacher: tuple[Any, Any], tiny_teacher_path: Path) -> Teacher:
    return Teacher(*tiny_teacher, str(tiny_teacher_path))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "train.jsonl"
    write_rows(path, ROWS, seed=9)
    return path


@pytest.fixture(scope="module")
def sequences(data: Path, teacher: Teacher) -> list[Sequence]:
    return read_sequences(data, teacher.tokenizer).items


@pytest.fixture(scope="module")
def prompts(data: Path, teacher: Teacher) -> list[Prompt]:
    return read_prompts(data, teacher.tokenizer).items


@pytest.fixture(scope="module")
def plain_answers(prompts: list[Prompt], teacher: Teacher) -> list[list[int]]:
    """What mlx-lm answers, greedily, in at most 40 tokens."""
    import mlx_lm

    streams = (mlx_lm.stream_generate(teacher.model, teacher.tokenizer, p.tokens, max_tokens=40) for p in prompts)
    return [[response.token for response in stream] for stream in streams]


# --- states that are no numbers


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 11])
def test_states_that_are_no_numbers_are_told_with_their_row(
    value: float, place: int, teacher: Teacher, sequences: list[Sequence], tmp_path: Path, monkeypatch: Any
) -> None:
    """Among those that the projection is fitted on and among the others; what was read before is kept."""
    read, damaged = Reader.states, sequences[place].tokens[:-1]

    def states(self: Reader, pieces: list[Piece], *told: Any) -> list[np.ndarray]:
        found = read(self, pieces, *told)
        for piece, some in zip(pieces, found, strict=True):
            if piece.tokens == damaged:
                some[-1, 5] = value
        return found

    workdir = Workdir(tmp_path / "work")
    with monkeypatch.context() as patch:
        patch.setattr(Reader, "states", states)
        with pytest.raises(DaariError, match=rf"states of \S+:{place + 1} are not all finite"):
            extract.extract(teacher, sequences, workdir, OPTIONS)
    assert not workdir.is_finished()
    extract.extract(teacher, sequences, workdir, OPTIONS)
    assert workdir.is_finished()


# --- what is kept


@pytest.mark.parametrize("layer", ["final", 0, 1, -1])
def test_shards_hold_the_states_and_what_followed_them(
    teacher: Teacher, sequences: list[Sequence], tmp_path: Path, layer: int | str
) -> None:
    workdir = Workdir(tmp_path / "work")
    extract.extract(teacher, sequences, workdir, ExtractOptions(dimensions=16, layer=layer))
    projection = workdir.read_projection()
    order = np.random.default_rng(0).permutation(len(sequences))
    shards = list(workdir.read_shards())
    assert len(shards) == ROWS // 2 and projection.basis.shape == (64, 16)
    seen = 0
    for shard in shards:
        start = 0
        assert shard.reduced.dtype == np.float16 and shard.reduced.shape == (len(shard.tokens), 16)
        for count, lead, prompt in zip(shard.rows, shard.lead, shard.prompts, strict=True):
            sequence = sequences[order[seen]]
            first = sequence.answer_start - 2
            assert (count, lead) == (len(sequence.tokens) - 1 - first, 1)
            assert shard.tokens[start : start + count].tolist() == sequence.tokens[first + 1 :]
            assert prompt == prompt_key(sequence.prompt, sequence.identity)
            states = teacher.states(sequence.tokens[:-1], layer, first)
            assert states.shape == (count, 64) and states.dtype == np.float32
            expected = projection(states)
            np.testing.assert_allclose(
                shard.reduced[start : start + count], expected, atol=2e-3 * np.abs(expected).max()
            )
            start, seen = start + count, seen + 1
    assert seen == ROWS
    record = extraction_record(workdir)
    assert record["sequences"] == ROWS and record["shards"] == len(shards)
    assert record["tokens"] == sum(len(s.tokens) for s in sequences)
    assert not (workdir.path / "raw").exists()


def test_final_states_are_what_the_head_reads(teacher: Teacher, sequences: list[Sequence]) -> None:
    tokens = sequences[0].tokens
    states = mx.array(teacher.states(tokens, "final", 0))
    logits = teacher.model(mx.array([tokens]))[0]
    np.testing.assert_allclose(teacher.model.model.embed_tokens.as_linear(states), logits, rtol=1e-3, atol=1e-3)


def test_the_last_layers_states_become_the_final_ones_by_the_norm(teacher: Teacher, sequences: list[Sequence]) -> None:
    tokens = sequences[0].tokens
    last = teacher.states(tokens, -1, 0)
    np.testing.assert_array_equal(last, teacher.states(tokens, 2, 0))
    normed = teacher.model.model.norm(mx.array(last))
    np.testing.assert_allclose(normed, teacher.states(tokens, "final", 0), rtol=1e-4, atol=1e-5)


def test_long_sequences_are_read_in_steps(teacher: Teacher, monkeypatch: pytest.MonkeyPatch) -> None:
    from daari_mlx.teacher import load as module

    tokens = np.random.default_rng(0).integers(3, 600, 50).tolist()
    for first in (0, 10, 45, 49):
        whole = teacher.states(tokens, "final", first)
        with monkeypatch.context() as patched:
            patched.setattr(module, "PREFILL_STEP_SIZE", 7)
            np.testing.assert_allclose(teacher.states(tokens, "final", first), whole, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("lengths", [[1], [1, 30, 1], [2, 2], [3]])
def test_text_of_any_length(teacher: Teacher, tmp_path: Path, lengths: list[int]) -> None:
    """A single token has no state before it: nothing can be learnt from it, and nothing breaks."""
    rows = [Sequence(list(range(5, 5 + n)), 0, i, f"x:{i}") for i, n in enumerate(lengths)]
    workdir = Workdir(tmp_path / "work")
    if max(lengths) == 1:
        with pytest.raises(DaariError, match="single token"):
            extract.extract(teacher, rows, workdir, OPTIONS)
        return
    extract.extract(teacher, rows, workdir, OPTIONS)
    assert sum(len(s.tokens) for s in workdir.read_shards()) == sum(n - 1 for n in lengths)


# --- the teacher's own answers


def test_the_teachers_answers_are_its_plain_greedy_ones(
    teacher: Teacher, prompts: list[Prompt], plain_answers: list[list[int]], tmp_path: Path
) -> None:
    made = answers.answer_prompts(teacher, prompts, Workdir(tmp_path / "work"), 40)
    assert [s.tokens[s.answer_start :] for s in made] == plain_answers
    assert [s.tokens[: s.answer_start] for s in made] == [p.tokens for p in prompts]
    assert [s.source for s in made] == [p.source for p in prompts]
    ended = [answer[-1] in teacher.tokenizer.eos_token_ids for answer in plain_answers]
    assert sum(ended) > ROWS // 2, "the end of an answer is learnt too"


def test_models_that_cannot_be_batched_answer_one_by_one(
    teacher: Teacher,
    prompts: list[Prompt],
    plain_answers: list[list[int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from mlx_lm.models.cache import KVCache

    monkeypatch.delattr(KVCache, "merge")
    made = answers.answer_prompts(teacher, prompts[:4], Workdir(tmp_path / "work"), 40)
    assert [s.tokens[s.answer_start :] for s in made] == plain_answers[:4]


def test_reference_and_teacher_answers_are_different_runs(
    teacher: Teacher, prompts: list[Prompt], plain_answers: list[list[int]], tmp_path: Path
) -> None:
    workdir = Workdir(tmp_path / "work")
    extract.extract(teacher, prompts, workdir, ExtractOptions(answers="teacher", max_tokens=40, dimensions=16))
    assert sum(len(s.tokens) for s in workdir.read_shards()) == sum(len(a) + 1 for a in plain_answers)


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b'{"answers": 3}', b'{"answers": [1, 2, 3]}', b'{"answers": [[1], [2], ["x"]]}']
)
def test_damaged_answers_are_told(teacher: Teacher, prompts: list[Prompt], tmp_path: Path, content: bytes) -> None:
    workdir = Workdir(tmp_path / "work")
    workdir.answers_path(0).parent.mkdir(parents=True)
    workdir.answers_path(0).write_bytes(content)
    with pytest.raises(DaariError, match=r"(?s)remove it and run again"):
        answers.answer_prompts(teacher, prompts, workdir, 40)
