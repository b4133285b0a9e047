"""One run a folder: the other process is named, a killed one holds nothing, and ranks of one run hold it together."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from daari_mlx.compile import extract
from daari_mlx.compile.extract import ExtractOptions
from daari_mlx.compile.workdir import Workdir
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.lock import Lock
from daari_mlx.teacher.load import Teacher
from daari_mlx.text.data import Sequence

HOLD = """
import sys
from pathlib import Path
from daari_mlx.ground.lock import Lock
lock = Lock(Path(sys.argv[1]), sys.argv[2])
print("held", flush=True)
sys.stdin.read()
"""


def holder(path: Path, run: str) -> subprocess.Popen[bytes]:
    """A process that holds the lock until its stdin is closed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path), run], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None and process.stdout.readline() == b"held\n"
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def test_the_other_process_is_named_and_after_a_kill_nothing_is_held(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    other = holder(path, "theirs")
    with pytest.raises(DaariError, match=rf"{tmp_path} is being filled by process {other.pid} on .*name another"):
        Lock(path, "ours")
    end(other)
    assert path.exists()
    lock = Lock(path, "ours")
    assert not lock.joined
    lock.release()
    assert not path.exists()


def test_an_extraction_waits_for_no_other_and_leaves_its_files(tiny_teacher: tuple[Any, Any], tmp_path: Path) -> None:
    workdir = Workdir(tmp_path / "work")
    workdir.path.mkdir()
    rows = [Sequence([5, 6, 7, 8, 9], 2, 0, "x:1")]
    other = holder(workdir.lock_path, "theirs")
    with pytest.raises(DaariError, match=f"process {other.pid}"):
        extract.extract(Teacher(*tiny_teacher, "tiny"), rows, workdir, ExtractOptions(dimensions=4))
    assert [p.name for p in workdir.path.iterdir()] == [workdir.lock_path.name]
    end(other)
    extract.extract(Teacher(*tiny_teacher, "tiny"), rows, workdir, ExtractOptions(dimensions=4))
    assert workdir.is_finished() and not workdir.lock_path.exists()


def test_ranks_of_one_run_hold_it_together(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first = Lock(path, "run")
    first.share()
    second = holder(path, "run")
    with pytest.raises(DaariError, match=f"process {os.getpid()}"):
        Lock(path, "another")
    first.release()
    assert not path.exists()
    end(second)


def test_a_lock_file_that_says_nothing_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    for content in (b"", b"[]", b"\xff\xfe", b"{}"):
        path.write_bytes(content)
        Lock(path, "ours").release()
        assert not path.exists()
