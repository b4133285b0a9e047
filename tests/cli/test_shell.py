"""How commands end where a standard stream is closed or cannot be written: they work, or say one line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from graphs import Compiled

RUN = "from daari_mlx.cli.main import main; main()"
FULL = Path("/dev/full")


@pytest.fixture(params=["", "<&-", ">&-", "2>&-", "<&- >&-", "<&- >&- 2>&-"])
def closed(request: pytest.FixtureRequest) -> Iterator[str]:
    """Streams that a shell closes."""
    yield request.param


def shell(words: list[str], redirected: str) -> subprocess.CompletedProcess[str]:
    command = ["sh", "-c", f'"$@" {redirected}', "sh", sys.executable, "-c", RUN, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_a_closed_stream_changes_no_answer(
    closed: str, compiled: Compiled, tiny_teacher_path: Path, tmp_path: Path
) -> None:
    """A file that takes the number of a closed stdin is none for MLX: the graph would seem to be damaged."""
    done = shell(
        ["generate", "--model", str(tiny_teacher_path), "--graph", str(compiled.path), "-m", "3", "-p", "hi"], closed
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert bool(done.stdout) == (">&-" not in closed.replace("2>&-", ""))


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("command", ["inspect", "generate", "annotate"])
def test_no_room_for_what_is_printed_is_told_in_one_line(
    command: str, compiled: Compiled, tiny_teacher_path: Path
) -> None:
    asked = ["--model", str(tiny_teacher_path), "-m", "3", "-p", "hi"]
    words: dict[str, list[Any]] = {
        "inspect": [str(compiled.path)],
        "generate": asked,
        "annotate": [*asked, "--num-draft-tokens", "0"],
    }
    done = shell([command, *words[command]], f">{FULL}")
    assert done.returncode == 1
    assert "No space left on device" in done.stderr and "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
