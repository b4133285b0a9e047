"""What tests of jobs share: rows, the command as a process, and what a run that nobody stopped leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench_ranks_killed import free_ports
from make_sms_corpus import make_rows
from typer.testing import CliRunner

from daari_mlx.cli.main import app

RUN = """
import os, signal, sys
import daari_mlx
from daari_mlx.cli import main as cli
from daari_mlx.job import journal
kill_after = int(os.environ.get("KILL_AFTER", "-1"))
if os.environ.get("DYING", os.environ.get("MLX_RANK")) == os.environ.get("MLX_RANK"):
    count, add, torn = 0, journal.Journal.add, os.environ.get("TORN")
    def dying(self, key, answer):  # after so many answers, within the line of the next if it is to be torn
        global count
        if count == kill_after:
            if torn:
                self._own.write(b'{"key": "00')
                self._own.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        count += 1
        return add(self, key, answer)
    journal.Journal.add = dying
limit = int(os.environ.get("FILE_LIMIT", "0"))
if limit:
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
sys.argv[1:] = [word.replace("{rank}", os.environ.get("MLX_RANK", "0")) for word in sys.argv[1:]]
cli.main()
"""


def sms_rows(count: int, seed: int = 3) -> list[dict[str, Any]]:
    """Chats of the invented corpus without their long system prompt, with fields of a user's own."""
    return [{"id": k, "messages": row["messages"][1:]} for k, row in enumerate(make_rows(count, seed=seed))]


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def command(*options: Any) -> list[str]:
    return [sys.executable, "-c", RUN, "map", *map(str, options)]


def run_map(*options: Any, **environment: Any) -> subprocess.CompletedProcess[str]:
    """Run ``daari-mlx map`` as a process of its own."""
    return subprocess.run(
        command(*options),
        env={**os.environ, **{name: str(value) for name, value in environment.items()}},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def run_ranks(*options: Any, **environment: Any) -> str:
    """The same on two ranks, with ``{rank}`` in an option for the rank's number; what they say."""
    launcher = [sys.executable, "-c", "from mlx._distributed_utils.launch import main; main()"]
    launcher += ["-n", "2", "--backend", "ring", "--starting-port", str(free_ports(2))]
    running = subprocess.Popen(
        [*launcher, "--", *command(*options)],
        env={**os.environ, **{name: str(value) for name, value in environment.items()}},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert running.stdout is not None and running.stdin is not None
    with running.stdin, running.stdout:  # stdin open until the end: the launcher would else read it all the time
        told = running.stdout.read()
    running.wait()
    return told


def map_here(*options: Any, code: int = 0) -> str:
    """The same within this process, which has all that it needs loaded; what it says."""
    done = CliRunner().invoke(app, ["map", *map(str, options)])
    assert done.exit_code == code, done.output
    return done.output


def journal_lines(out: Path) -> int:
    """Answers in the journal, torn lines left out."""
    files = (out.with_name(out.name + ".work") / "answers").glob("*.jsonl")
    return sum(line.endswith(b"}\n") for file in files for line in file.read_bytes().splitlines(keepends=True))
