"""A job on two ranks: the bytes of one process; a rank that dies leaves work that is gone on with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jobs import journal_lines, map_here, run_ranks, sms_rows, write_jsonl

ROWS = 11


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory, tiny_teacher_path: Path) -> list[Any]:
    data = write_jsonl(tmp_path_factory.mktemp("data") / "in.jsonl", sms_rows(ROWS))
    return ["--model", tiny_teacher_path, "--data", data, "--max-tokens", 12, "--concurrency", 3]


@pytest.fixture(scope="module")
def reference(options: list[Any], tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What one process writes."""
    out = tmp_path_factory.mktemp("reference") / "out.jsonl"
    map_here(*options, "--out", out)
    return out.read_bytes()


def answers(out: Path) -> list[int]:
    """How many lines each journal file has."""
    files = sorted((out.with_name(out.name + ".work") / "answers").iterdir())
    return [file.read_bytes().count(b"\n") for file in files]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["out.jsonl", "out{rank}.jsonl"], ids=["shared", "apart"])
def test_two_ranks_write_the_bytes_of_one(options: list[Any], reference: bytes, tmp_path: Path, name: str) -> None:
    told = run_ranks(*options, "--out", tmp_path / name)
    out = tmp_path / name.format(rank=0)
    assert out.exists(), told
    assert out.read_bytes() == reference and answers(out) == [6, 5]
    assert told.count("11 rows: 11 to answer") == 1 and f"{ROWS} rows in" in told
    other = tmp_path / name.format(rank=1)
    assert other == out or (not other.exists() and answers(other) == [5]), "rank 1 keeps its own share"


@pytest.mark.slow
def test_a_rank_that_dies_leaves_work_that_is_gone_on_with(
    options: list[Any], reference: bytes, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    told = run_ranks(*options, "--out", out, DYING=1, KILL_AFTER=2)
    assert "Traceback" not in told and not out.exists(), told
    known = journal_lines(out)
    assert 2 <= known < ROWS
    assert f"{known} answered before" in map_here(*options, "--out", out)
    assert out.read_bytes() == reference
