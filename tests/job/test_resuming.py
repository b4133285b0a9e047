"""A job that was stopped anywhere goes on to the bytes of one that nobody stopped, and answers no row twice."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jobs import RUN, journal_lines, map_here, read_jsonl, run_map, sms_rows, write_jsonl

from daari_mlx.ground.errors import DaariError
from daari_mlx.job.journal import Journal
from daari_mlx.job.work import Answer

ROWS = 14


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_jsonl(tmp_path_factory.mktemp("data") / "in.jsonl", sms_rows(ROWS))


@pytest.fixture(scope="module")
def options(data: Path, tiny_teacher_path: Path) -> list[Any]:
    return ["--model", tiny_teacher_path, "--data", data, "--max-tokens", 16, "--concurrency", 3]


@pytest.fixture(scope="module")
def reference(options: list[Any], tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What a run that nobody stopped writes."""
    out = tmp_path_factory.mktemp("reference") / "out.jsonl"
    map_here(*options, "--out", out)
    return out.read_bytes()


@pytest.mark.slow
def test_killed_at_any_moment_it_goes_on_to_the_same_bytes(
    options: list[Any], reference: bytes, tmp_path: Path
) -> None:
    out, known = tmp_path / "out.jsonl", 0
    for moment, torn in ((0, "1"), (6, "1"), (3, "")):
        done = run_map(*options, "--out", out, KILL_AFTER=moment, TORN=torn)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert not out.exists(), "a part never looks whole"
        known += moment
        assert journal_lines(out) == known
        partial = out.with_name("out.jsonl.partial").read_bytes()
        assert reference.startswith(partial), "what is written is in order while the job runs"
    assert f"{ROWS - known} to answer; {known} answered before" in map_here(*options, "--out", out)
    assert out.read_bytes() == reference and journal_lines(out) == ROWS
    assert "all were answered before" in map_here(*options, "--out", out)
    assert out.read_bytes() == reference and journal_lines(out) == ROWS


@pytest.mark.slow
def test_ctrl_c_stops_it_and_says_how_to_go_on(options: list[Any], reference: bytes, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        count, add = 0, Journal.add

        def stopping(*given: Any) -> Any:
            nonlocal count
            count += 1
            if count == 5:
                raise KeyboardInterrupt
            return add(*given)

        patch.setattr(Journal, "add", stopping)
        assert "the same command resumes" in map_here(*options, "--out", out, code=130)
    assert journal_lines(out) == 4 and not out.exists()
    assert "4 answered before" in map_here(*options, "--out", out)
    assert out.read_bytes() == reference


@pytest.mark.slow
def test_a_termination_is_told_as_ctrl_c_is_and_cleans_up(options: list[Any], data: Path, tmp_path: Path) -> None:
    out, passing = tmp_path / "out.jsonl", tmp_path / "passing"
    passing.mkdir()
    words = ["-" if word == data else word for word in options]
    code = RUN.replace("os.kill(os.getpid(), signal.SIGKILL)", "os.kill(os.getpid(), signal.SIGTERM)")
    with data.open("rb") as rows:
        done = subprocess.run(
            [sys.executable, "-c", code, "map", *map(str, words), "--out", str(out)],
            env={**os.environ, "KILL_AFTER": "4", "TMPDIR": str(passing)},
            stdin=rows,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 143 and "the same command resumes" in done.stderr and "Traceback" not in done.stderr
    assert journal_lines(out) == 4 and not out.exists()
    assert not list(passing.rglob("*.jsonl"))


@pytest.mark.slow
def test_a_full_disk_is_told_and_the_job_goes_on(options: list[Any], reference: bytes, tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk."""
    out = tmp_path / "out.jsonl"
    done = run_map(*options, "--out", out, FILE_LIMIT=2000)
    assert done.returncode == 1 and "the disk is full" in done.stderr and "run the same command again" in done.stderr
    assert "Traceback" not in done.stderr and "ignored" not in done.stderr and not out.exists()
    known = journal_lines(out)
    assert 0 < known < ROWS
    assert f"{known} answered before" in map_here(*options, "--out", out)
    assert out.read_bytes() == reference


def test_a_journal_without_room_keeps_what_it_has(tmp_path: Path) -> None:
    journal, key = Journal(tmp_path), bytes(16)
    journal.begin("a")
    journal.add(key, Answer("x" * 300, "stop"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
    try:
        with pytest.raises(DaariError, match="the disk is full"):
            journal.add(bytes(range(16)), Answer("y" * 300, "stop"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    journal.close()
    again = Journal(tmp_path)
    again.look()
    assert [found for found, *_ in again.entries()] == [key]


def test_other_settings_and_files_that_grew(
    options: list[Any], data: Path, tmp_path: Path, tiny_teacher_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    map_here(*options, "--limit", 5, "--out", out)
    first = read_jsonl(out)
    other = map_here(*options, "--out", out, "--system-prompt", "Be brief.", code=1)
    assert "system_prompt: there None, now Be brief." in other
    assert read_jsonl(out) == first, "what is there stays"
    drawn = map_here(*options, "--out", out, "--temp", "0.5", code=1)
    assert "other settings (temp: there 0.0, now 0.5)" in drawn, "nothing that nobody gave"
    # other rows around them, in another order, with other fields of the user's own
    rows = [{**row, "id": f"n{row['id']}"} for row in reversed(sms_rows(ROWS)[:7])]
    options = [write_jsonl(tmp_path / "grown.jsonl", rows) if value == data else value for value in options]
    assert "7 rows: 2 to answer; 5 answered before" in map_here(*options, "--out", out)
    found = read_jsonl(out)
    assert [row["id"] for row in found] == [f"n{k}" for k in range(6, -1, -1)]
    assert [row["answer"] for row in found[:1:-1]] == [row["answer"] for row in first]


def test_lines_that_are_damaged_count_for_nothing(tmp_path: Path) -> None:
    key, other = bytes(range(16)), bytes(16)
    journal = Journal(tmp_path)
    journal.begin("a")
    place = journal.add(key, Answer("said", "stop", 3, [1, 2]))
    journal.add(other, Answer(error="no"))
    journal.close()
    file = tmp_path / "a.jsonl"
    whole = file.read_bytes()
    second = whole.index(b"\n") + 1
    for damaged in (
        whole[:-1],
        whole[: second + 9],
        whole[:second] + b"\x00\xff\n",
        whole[:second] + b'{"key": "00"}\n',
    ):
        file.write_bytes(damaged)
        journal = Journal(tmp_path)
        journal.look()
        assert [entry[:2] for entry in journal.entries()] == [(key, place)]
        assert journal.read(place)["answer"] == "said"
        journal.close()
    assert json.loads(whole[second:])["error"] == "no"
