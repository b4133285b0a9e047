"""Kill a rank of a launch at random moments: one JSON line for each number of ranks and way to launch them.

    nice python scripts/bench/bench_ranks_killed.py [N=30] [--ranks 2 3] [--seed 0] [--rows 120]

Each trial extracts with the tiny teacher of the tests on several ranks and ends one of them, drawn by chance, by
SIGKILL. Ranks are launched by mlx.launch, which ends the others by SIGTERM (the moment is drawn over the whole life of
a rank), and by hand, where nobody does (from the moment on when the ranks have met). The trial is sound when every rank
ends within a minute, with a message and a status that is not 0, unless its part was done, and when one process then
goes on in the folder to the bytes of a run that nobody disturbed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from daari_mlx.compile.workdir import Workdir
from daari_mlx.cost.probe import chip
from daari_mlx.graph.artifact import versions

ROOT = Path(__file__).resolve().parents[2]
TEACHER = ROOT / "tests" / "tiny_teacher"
LAUNCHER = [sys.executable, "-c", "from mlx._distributed_utils.launch import main; main()", "--backend", "ring"]
HANGS = 60.0  # seconds after which a rank that has not ended hangs
TOLD = ("start the same launch again", "the same command resumes")


def child(folder: Path, options: list[str]) -> None:
    """One rank: ``daari-mlx extract`` with small shards, whose process id and whose having met can be seen."""
    from daari_mlx.cli import main as cli
    from daari_mlx.compile import answers, extract
    from daari_mlx.teacher import peers

    rank = os.environ.get("MLX_RANK", "0")
    (folder / f"pid{rank}").write_text(f"{os.getpid()}\n")
    meet = peers.Watched.meet

    def seen(self: Any, ranks: Any) -> list[int]:
        missing = meet(self, ranks)
        (folder / f"met{rank}").touch()
        return missing

    peers.Watched.meet = seen  # type: ignore[method-assign]
    extract.PART, extract.SAMPLE_STATES, answers.PART = 2, 60, 3
    sys.argv[1:] = ["extract", *options]
    cli.main()


@dataclass
class Launch:
    """Some ranks at work, by hand or by mlx.launch.

    Attributes:
        processes: the ranks by number, or the launcher.
        logs: what they print.
    """

    folder: Path
    ranks: int
    by_hand: bool
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    logs: list[Path] = field(default_factory=list)

    def start(self, work: Path, data: Path) -> None:
        """Begin the extraction."""
        options = ["--model", str(TEACHER), "--data", str(data), "--workdir", str(work)]
        command = [sys.executable, __file__, "--child", str(self.folder), *options]
        first = free_ports(self.ranks)
        if self.ranks == 1:
            self._start(command, {})
            return
        if not self.by_hand:
            self._start([*LAUNCHER, "-n", str(self.ranks), "--starting-port", str(first), "--", *command], {})
            return
        hosts = self.folder / "hosts.json"
        hosts.write_text(json.dumps([[f"127.0.0.1:{first + rank}"] for rank in range(self.ranks)]))
        for rank in range(self.ranks):
            self._start(command, {"MLX_RANK": str(rank), "MLX_HOSTFILE": str(hosts)})

    def _start(self, command: list[str], environment: dict[str, str]) -> None:
        log = self.folder / f"log{len(self.logs)}"
        with log.open("wb") as out:
            self.processes.append(
                subprocess.Popen(
                    command,
                    env=os.environ | environment,
                    stdin=subprocess.PIPE,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    process_group=0,
                )
            )
        self.logs.append(log)

    def await_file(self, name: str) -> None:
        """Until a rank has made a file, or all have ended."""
        while not (self.folder / name).exists() and any(process.poll() is None for process in self.processes):
            time.sleep(0.002)

    def kill(self, rank: int) -> bool:
        """End a rank; False where it has ended."""
        while not (said := (self.folder / f"pid{rank}").read_text()).endswith("\n"):
            time.sleep(0.001)
        if all(process.poll() is not None for process in self.processes):
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(said), signal.SIGKILL)
            return True
        return False

    def end(self, seconds: float) -> bool:
        """Wait for all; False where some had to be ended after so many seconds."""
        deadline = time.monotonic() + seconds
        try:
            for process in self.processes:
                process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return False
        finally:
            self.close()
        return True

    def close(self) -> None:
        """End what is left."""
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            if process.stdin is not None:
                process.stdin.close()
            process.wait()


def free_ports(count: int) -> int:
    """The first of some ports in a row that nobody listens on."""
    while True:
        first = random.SystemRandom().randrange(20_000, 30_000)
        with contextlib.suppress(OSError), contextlib.ExitStack() as held:
            for port in range(first, first + count):
                held.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first


def left_by(work: Path) -> dict[str, bytes]:
    """All files of an extraction but the record of its seconds and ranks."""
    found = {str(p.relative_to(work)): p.read_bytes() for p in work.rglob("*") if p.is_file()}
    found.pop("extract_stats.json", None)
    return found


def trials(
    count: int, ranks: int, *, by_hand: bool, rows: int, seed: int, within: float | None = None
) -> dict[str, Any]:
    """Kill a rank ``count`` times.

    Args:
        within: the seconds from which a moment is drawn; None for those that an undisturbed launch takes.

    Returns:
        ``tried``, ``sound``, ``hung``, ``finished_before`` (the kill came too late), ``seconds_to_the_end`` (from the
        kill to the last rank's end: median and most), ``failures``.
    """
    sys.path.insert(0, str(ROOT / "tests"))
    from graphs import write_rows

    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_rows(folder / "train.jsonl", rows, seed=9)
        whole = next(_launches(folder / "whole", 1, by_hand=False))
        whole.start(folder / "reference", folder / "train.jsonl")
        if not whole.end(600):
            raise SystemExit("The run that nobody stops did not end.")
        reference, late, waited = left_by(folder / "reference"), 0, []
        failures: list[dict[str, Any]] = []
        lasts = _length(folder, ranks, by_hand) if within is None else within
        for trial, launch in zip(range(count), _launches(folder / "trial", ranks, by_hand=by_hand), strict=False):
            work, victim, moment = folder / f"work{trial}", chance.randrange(ranks), chance.uniform(0, lasts)
            launch.start(work, folder / "train.jsonl")
            for rank in range(ranks):
                launch.await_file(f"met{rank}" if by_hand else f"pid{rank}")
            time.sleep(moment)
            killed, begun = launch.kill(victim), time.monotonic()
            ended = launch.end(HANGS)
            late += not killed
            if killed:
                waited.append(time.monotonic() - begun)
            wrong = _wrong(launch, work, victim if killed else -1) if ended else "hung"
            if not wrong and not killed and not Workdir(work).is_finished():
                wrong = "ended by itself"
            wrong = wrong or _resumed(folder, trial, work, reference)
            if wrong:
                logs = [log.read_text(errors="replace")[-1000:] for log in launch.logs]
                failures.append({"trial": trial, "rank": victim, "moment": moment, "wrong": wrong, "logs": logs})
    return {
        "measurement": "ranks killed",
        "ranks": ranks,
        "launched": "by hand" if by_hand else "mlx.launch",
        "tried": count,
        "sound": count - len(failures),
        "hung": sum(f["wrong"] == "hung" for f in failures),
        "finished_before": late,
        "seconds_to_the_end": {"median": statistics.median(waited), "most": max(waited)} if waited else None,
        "moments_within_seconds": lasts,
        "failures": failures,
    }


def _launches(folder: Path, ranks: int, *, by_hand: bool) -> Iterator[Launch]:
    """Launches with folders of their own."""
    number = 0
    while True:
        own = folder / f"{number}"
        own.mkdir(parents=True)
        yield Launch(own, ranks, by_hand)
        number += 1


def _length(folder: Path, ranks: int, by_hand: bool) -> float:
    """The seconds in which an undisturbed launch may be killed."""
    launch = next(_launches(folder / "length", ranks, by_hand=by_hand))
    work = folder / "length_work"
    launch.start(work, folder / "train.jsonl")
    for rank in range(ranks):
        launch.await_file(f"met{rank}" if by_hand else f"pid{rank}")
    begun = time.monotonic()
    if not launch.end(600) or not Workdir(work).is_finished():
        raise SystemExit("The launch that nobody disturbs did not end well.")
    return time.monotonic() - begun


def _wrong(launch: Launch, work: Path, victim: int) -> str:
    """What is wrong with how the ranks ended; empty for nothing."""
    if not launch.by_hand:
        told = launch.logs[0].read_text(errors="replace")
        return "a traceback" if "Traceback" in told else ""
    for rank, (process, log) in enumerate(zip(launch.processes, launch.logs, strict=True)):
        told = log.read_text(errors="replace")
        if "Traceback" in told:
            return f"a traceback of rank {rank}"
        if rank != victim and process.returncode != 0 and not any(words in told for words in TOLD):
            return f"rank {rank} ended by {process.returncode} without a message"
    if launch.processes[0].returncode == 0 and not Workdir(work).is_finished():
        return "rank 0 ended by 0 before the work was done"
    return ""


def _resumed(folder: Path, trial: int, work: Path, reference: dict[str, bytes]) -> str:
    """What is wrong with the folder after one process went on in it."""
    alone = next(_launches(folder / f"resumed{trial}", 1, by_hand=False))
    alone.start(work, folder / "train.jsonl")
    if not alone.end(600):
        return "the resumed run did not end"
    left = left_by(work)
    other = sorted(name for name in left.keys() | reference.keys() if left.get(name) != reference.get(name))
    return f"other bytes: {', '.join(other)}" if other else ""


def main() -> None:
    """Run the trials and print their JSON lines."""
    if sys.argv[1:2] == ["--child"]:
        child(Path(sys.argv[2]), sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trials", nargs="?", type=int, default=30)
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 3])
    parser.add_argument("--rows", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    record = {"command": " ".join(["python", *sys.argv]), "commit": commit, "device": chip(), "versions": versions()}
    sound = True
    for ranks in args.ranks:
        for by_hand in (False, True):
            found = trials(args.trials, ranks, by_hand=by_hand, rows=args.rows, seed=args.seed)
            sound &= found["sound"] == found["tried"]
            print(json.dumps({**found, **record}), flush=True)
    sys.exit(not sound)


if __name__ == "__main__":
    main()
