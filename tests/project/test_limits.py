"""Every test ends, with what it started, however it goes; and property tests are the same every time."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# A shell whose own child lives on where only the shell is ended. Both hold the pipe's writing end.
CODE = """
import ctypes, os, signal, subprocess, time
def child():
    command = ["sh", "-c", "exec 3>{pipe}; sleep 300 & echo started; wait"]
    subprocess.Popen(command, stdout=subprocess.PIPE).stdout.readline()
def native():  # keeps Python's lock and is not woken by signals
    c, lock = ctypes.PyDLL(None), ctypes.create_string_buffer(128)
    c.pthread_mutex_lock(lock)
    c.pthread_mutex_lock(lock)
def test_it():
    child()
    {then}
"""
ENDS = {
    "pass": "1 passed",
    "raise ValueError": "1 failed",
    "time.sleep(300)": "Timeout (>2.0s) from pytest-timeout",
    "native()": "Timeout (0:00:0",
    "os.kill(os.getpid(), signal.SIGKILL)": "",
}


@pytest.mark.parametrize("then", ENDS)
def test_a_test_ends_with_what_it_started(then: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    held = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    (tmp_path / "test_it.py").write_text(CODE.format(pipe=tmp_path / "pipe", then=then))
    (tmp_path / "hasty.py").write_text("import limits\nlimits.UNHEARD = 1.0\n")
    options = ["-p", "limits", "-p", "hasty", "-p", "no:cacheprovider", "--timeout", "2", "-c", os.devnull]
    paths = os.pathsep.join([str(Path(__file__).parents[1]), str(tmp_path)])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "test_it.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert ENDS[then] in done.stdout + done.stderr, done.stdout + done.stderr
    ready, _, _ = select.select([held], [], [], 30)
    assert ready and os.read(held, 1) == b"", "the child's child still runs"
    os.close(held)


def test_every_test_has_a_limit(request: pytest.FixtureRequest) -> None:
    from limits import _limit

    assert all(_limit(item) > 0 for item in request.session.items)


def test_property_tests_try_the_same_examples_every_time(request: pytest.FixtureRequest) -> None:
    """All but scripts/fresh_examples, which asks for others."""
    fresh = request.config.getoption("--hypothesis-profile") == "fresh"
    assert settings().derandomize is not fresh and (settings().database is None) is not fresh
