"""How commands end where a standard stream is closed or cannot be written: they work, or say one line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx_lm
import pytest
import typer
from graphs import Compiled
from typer.testing import CliRunner

from daari_mlx.cli import shell as shell_module
from daari_mlx.cli.main import app
from daari_mlx.ground.errors import DaariError

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


# --- Ctrl-C, more than once

SLOW_END = "import atexit, time; atexit.register(time.sleep, 60); from daari_mlx.cli.start import main; main()"
SLOW_START = """
import sys, time
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "daari_mlx.cli.main":
            print("starting", file=sys.stderr, flush=True)
            time.sleep(60)
sys.meta_path.insert(0, Slow())
from daari_mlx.cli.start import main
main()
"""


@pytest.mark.parametrize("code", [SLOW_START, SLOW_END], ids=["while it starts", "while it ends"])
def test_ctrl_c_where_no_command_runs_ends_it_without_a_word(code: str, tiny_teacher_path: Path) -> None:
    words = ["probe", "--model", str(tiny_teacher_path), "--repeats", "100000"]
    process: Any = subprocess.Popen(
        [sys.executable, "-c", code, *words], stderr=subprocess.PIPE, stdout=subprocess.PIPE
    )

    def wait_for(words: bytes) -> None:
        told = b""
        while words not in told:
            told += os.read(process.stderr.fileno(), 1000)

    if code == SLOW_START:
        wait_for(b"starting\n")
    else:
        wait_for(b"timing forwards")  # its bar
        process.send_signal(signal.SIGINT)
        wait_for(b"Stopped.\n")
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=50) == (b"", b"")
    assert process.returncode == -signal.SIGINT  # of which a shell makes 130


def test_a_ctrl_c_that_became_another_error_is_one(monkeypatch: pytest.MonkeyPatch, tiny_teacher_path: Path) -> None:
    """An extension module whose initialisation is interrupted raises an ImportError."""

    def load(*args: Any, **kwargs: Any) -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise ImportError("Encountered an error while initializing the extension.") from error

    monkeypatch.setattr(mlx_lm, "load", load)
    result = CliRunner().invoke(app, ["probe", "--model", str(tiny_teacher_path)])
    assert result.exit_code == 130 and result.stderr == "\nStopped.\n"


@pytest.mark.parametrize(
    ("out", "told"), [("-", ""), ("out.jsonl", " What is done is kept: the same command resumes.")]
)
def test_what_is_kept_nowhere_is_not_promised(
    monkeypatch: pytest.MonkeyPatch, tiny_teacher_path: Path, tmp_path: Path, out: str, told: str
) -> None:
    def stopped(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("daari_mlx.job.run.run_job", stopped)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.jsonl").write_text('{"prompt": "one"}\n')
    words = ["map", "--model", str(tiny_teacher_path), "--data", "in.jsonl", "--out", out]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 130 and result.stderr.endswith(f"\nStopped.{told}\n")


def test_a_signal_while_a_command_ends_does_not_hide_why(
    monkeypatch: pytest.MonkeyPatch, tiny_teacher_path: Path
) -> None:
    """A launcher ends its other ranks as soon as one of them has gone, while that one still tidies up."""

    def load(*args: Any, **kwargs: Any) -> None:
        try:
            raise DaariError("Rank 1 stopped.")
        finally:
            shell_module.interrupt(signal.SIGTERM, None)

    monkeypatch.setattr(mlx_lm, "load", load)
    result = CliRunner().invoke(app, ["probe", "--model", str(tiny_teacher_path)])
    assert result.exit_code == 1 and result.stderr == "error: Rank 1 stopped.\n"


def test_what_a_ctrl_c_breaks_off_where_nobody_can_hear_it_is_not_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    shell_module.interrupts_unsaid()
    for error, printed in ((KeyboardInterrupt(), False), (ValueError("x"), True)):
        sys.excepthook(type(error), error, None)
        told = SimpleNamespace(exc_type=type(error), exc_value=error, exc_traceback=None, err_msg=None, object=None)
        assert bool(capsys.readouterr().err) == printed
        if not printed:
            sys.unraisablehook(told)  # type: ignore[arg-type]
            assert capsys.readouterr().err == ""


# --- terminals of other encodings


@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "latin-1"},
        {"LC_ALL": "C"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
    ids=["ascii", "latin-1", "C", "C and no UTF-8"],
)
def test_a_terminal_of_another_encoding_gets_escapes(
    environment: dict[str, str], compiled: Compiled, tmp_path: Path
) -> None:
    """Signs of the screen, and a name that is none of that encoding's; JSON stays JSON."""
    (tmp_path / "ದಾರಿ").symlink_to(compiled.path)
    code = f"""
import sys
sys.argv = ["daari-mlx", "inspect", {str(tmp_path)!r} + "/\\u0ca6\\u0cbe\\u0cb0\\u0cbf", *sys.argv[1:]]
{RUN}
"""
    for words in ([], ["--json"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *words], capture_output=True, env={**os.environ, **environment}, timeout=120
        )
        assert "Traceback" not in done.stderr.decode()
        if environment.get("PYTHONUTF8") == "0":  # that locale cannot name the file either
            assert done.returncode == 1 and done.stderr.startswith(b"error: ")
            continue
        assert done.returncode == 0, done.stderr
        if words:
            assert json.loads(done.stdout)["graph"].endswith("/ದಾರಿ")
        elif environment != {"LC_ALL": "C"}:
            assert rb"/\u0ca6\u0cbe\u0cb0\u0cbf" in done.stdout


@pytest.mark.parametrize("end", [lambda: shell_module._fail("a rank is gone"), lambda: shell_module._stop("extract")])
def test_once_all_is_told_a_signal_ends_the_process_without_a_word(end: Callable[[], Any]) -> None:
    """A launcher sends SIGTERM to ranks that may be ending by themselves: Python would print a traceback of its end."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number in before:
            signal.signal(number, shell_module.interrupt)
        with pytest.raises(typer.Exit):
            end()
        assert [signal.getsignal(number) for number in before] == [signal.SIG_DFL] * 2
        for number in before:
            signal.signal(number, signal.default_int_handler)  # somebody else's
        with pytest.raises(typer.Exit):
            end()
        assert [signal.getsignal(number) for number in before] == [signal.default_int_handler] * 2
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
