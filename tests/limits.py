"""A pytest plugin: every test ends within its time limit, and nothing that it started outlives it.

pytest-timeout raises in the test when its time is over (``timeout`` in pyproject.toml, longer for slow tests). Where
that is not heard, since the test waits in native code, the process is ended a minute later. Processes that a test
starts are ended with it, and those of a process that died by a small one that watches it.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import Any

import pytest

SLOW_LIMIT = 600.0  # seconds for a test that is marked slow
UNHEARD = 60.0  # seconds from a test's time limit until its process is ended
# Reads "+12" and "-12" for groups that are started and ended; when its stdin ends, so do those that are left.
WATCH = """
import os, signal, sys
left = set()
for line in sys.stdin:
    (left.add if line[0] == "+" else left.discard)(int(line[1:]))
for group in left:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
"""
_Popen = subprocess.Popen
_running: list[Started] = []
_stderr = sys.__stderr__


class Started(subprocess.Popen):  # type: ignore[type-arg]
    """A process in a group of its own, so that what it starts can be ended with it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        if not options.get("start_new_session") and options.get("process_group") is None:
            options["process_group"] = 0
        self._told = False
        super().__init__(*args, **options)
        _running.append(self)
        _tell_watch(f"+{self.pid}")

    def poll(self) -> int | None:
        return self._ended(super().poll())

    def wait(self, timeout: float | None = None) -> int:
        self._ended(status := super().wait(timeout))
        return status

    def _ended(self, status: int | None) -> int | None:
        """The number of a process that has been asked after is free for other processes."""
        if status is not None and not self._told:
            self._told = True
            _tell_watch(f"-{self.pid}")
        return status

    def end(self) -> None:
        """End the whole group."""
        with suppress(ProcessLookupError, PermissionError):  # a Mac permits no signal to a group of zombies
            if self.poll() is None or not _is_process(self.pid):  # else the number is another's by now
                os.killpg(self.pid, signal.SIGKILL)
        self.wait()


def pytest_configure(config: pytest.Config) -> None:
    """Keep a way to the real stderr, which tests cannot capture, and start the watch."""
    global _stderr, _watch
    _stderr = os.fdopen(os.dup(2), "w")
    _watch = _Popen([sys.executable, "-SEc", WATCH], stdin=subprocess.PIPE, text=True, start_new_session=True)
    subprocess.Popen = Started  # type: ignore[misc]


def pytest_unconfigure() -> None:
    """End what modules and the session left running."""
    subprocess.Popen = _Popen  # type: ignore[misc]
    _end_since(0)
    _watch.communicate()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests have more time."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_LIMIT))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """End the process where a test does not hear that its time is over."""
    seconds = _limit(item)
    if seconds:
        faulthandler.dump_traceback_later(seconds + UNHEARD, file=_stderr, exit=True)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def ends_what_it_started() -> Iterator[None]:
    """End the processes that a test left running; those of fixtures for many tests are older and stay."""
    before = len(_running)
    yield
    _end_since(before)


def _is_process(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    return True


def _limit(item: pytest.Item) -> float:
    """A test's time limit in seconds; 0 for none."""
    marker, option = item.get_closest_marker("timeout"), item.config.getoption("timeout", None)
    if marker is not None:
        return float(marker.args[0])
    return float(item.config.getini("timeout") or 0) if option is None else float(option)


def _end_since(count: int) -> None:
    while len(_running) > count:
        _running.pop().end()


def _tell_watch(line: str) -> None:
    with suppress(OSError):  # it is gone: the tests go on without it
        _watch.stdin.write(line + "\n")
        _watch.stdin.flush()
