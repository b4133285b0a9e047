"""Kill a rank of a launch at random moments: one JSON line for each number of ranks.

    nice python scripts/bench/bench_ranks_killed.py [N=30] [--ranks 2 3] [--seed 0] [--rows 120]

Each trial extracts with the tiny teacher of the tests on several ranks and ends one of them by SIGKILL: which one, and
when, is drawn by chance. A moment is a stage of the work and up to half a second more. Every other launch is made by
mlx.launch in one folder, where the others are ended by SIGTERM too, the rest by hand, where nobody ends them, with a
folder for each rank, so that files go over the network in the end. The trial is sound when every rank ends within a
minute, with a message and a status that is not 0, unless its part was done, and when one process then goes on in the
folder of rank 0 to the bytes of a run that nobody disturbed. Of ranks that mlx.launch started one has to say a message,
once they have met.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from daari_mlx.compile.workdir import Workdir
from daari_mlx.cost.probe import chip
from daari_mlx.graph.artifact import versions

ROOT = Path(__file__).resolve().parents[2]
TEACHER = ROOT / "tests" / "tiny_teacher"
LAUNCHER = [sys.executable, "-c", "from mlx._distributed_utils.launch import main; main()", "--backend", "ring"]
HANGS = 60.0  # seconds after which a rank that has not ended hangs
PART, SAMPLE = 2, 60  # small shards, so that a kill has many places to hit
TOLD = ("start the same launch again", "the same command resumes")


def extract(work: str | Path, data: Path, *, standalone: bool = False) -> None:
    """``daari-mlx extract`` with small shards; ``standalone`` ends the process with its status."""
    from daari_mlx.cli.main import app
    from daari_mlx.compile import extract

    options = ["--model", str(TEACHER), "--data", str(data), "--workdir", str(work)]
    with patch.multiple(extract, PART=PART, SAMPLE_STATES=SAMPLE):
        app(["extract", *options], standalone_mode=standalone)


def child(folder: Path, work: str, data: Path) -> None:
    """One rank; files in ``folder`` show its process id and that the ranks have met."""
    from daari_mlx.teacher import peers

    rank = os.environ["MLX_RANK"]
    (folder / f"pid{rank}").write_text(f"{os.getpid()}\n")
    meet = peers.Watched.meet

    def seen(self: Any, ranks: Any) -> list[int]:
        missing = meet(self, ranks)
        (folder / f"met{rank}").touch()
        return missing

    peers.Watched.meet = seen  # type: ignore[method-assign]
    extract(work.replace("RANK", rank), data, standalone=True)


@dataclass
class Launch:
    """Some ranks at work.

    Attributes:
        folder: its own.
        by_hand: without mlx.launch, each rank with a workdir of its own.
        processes: the ranks by number, or the launcher.
        logs: what they print.
    """

    folder: Path
    ranks: int
    by_hand: bool
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    logs: list[Path] = field(default_factory=list)

    @property
    def work(self) -> Path:
        """The workdir of rank 0."""
        return self.folder / "work0"

    @property
    def has_met(self) -> bool:
        """Whether all ranks have found each other."""
        return all((self.folder / f"met{rank}").exists() for rank in range(self.ranks))

    def start(self, data: Path) -> None:
        """Begin the extraction."""
        self.folder.mkdir()
        work = self.work.with_name("workRANK") if self.by_hand else self.work
        command = [sys.executable, __file__, "--child", str(self.folder), str(work), str(data)]
        first = free_ports(self.ranks)
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
            streams: Any = {"stdin": subprocess.PIPE, "stdout": out, "stderr": subprocess.STDOUT}
            self.processes.append(
                subprocess.Popen(command, env=os.environ | environment, process_group=0, **streams)  # type: ignore[call-overload]
            )
        self.logs.append(log)

    def wait_for(self, *patterns: str) -> None:
        """Until there are such files, or all ranks have ended."""
        while not all(any(self.folder.glob(p)) for p in patterns) and any(p.poll() is None for p in self.processes):
            time.sleep(0.005)

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
            if process.poll() is None:
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


def stages(rows: int, ranks: int, *, by_hand: bool) -> list[tuple[str, ...]]:
    """Files that show how far a launch has come. By hand, ranks that have not met may wait for those to come."""
    met = tuple(f"met{rank}" for rank in range(ranks))
    shards = -(-rows // PART)
    begun = [] if by_hand else [tuple(f"pid{rank}" for rank in range(ranks))]
    named = ["extract.json", "layout.json", "projection.safetensors"]
    named += [f"shards/{shards * k // 6 - (k > 0):05}.safetensors" for k in range(7)]
    return [*begun, met, *((*met, f"work*/{name}") for name in named)]


def left_by(work: Path) -> dict[str, bytes]:
    """All files of an extraction but the record of its seconds and ranks."""
    found = {str(p.relative_to(work)): p.read_bytes() for p in work.rglob("*") if p.is_file()}
    found.pop("extract_stats.json", None)
    return found


def trials(count: int, ranks: int, *, rows: int, seed: int) -> dict[str, Any]:
    """Kill a rank ``count`` times.

    Returns:
        ``tried``, ``by_hand`` of them, ``sound``, ``hung``, ``finished_before`` (the kill came too late),
        ``seconds_to_the_end`` (from the kill to the last rank's end: median and most), ``failures``.
    """
    sys.path.insert(0, str(ROOT / "tests"))
    from graphs import write_rows

    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = folder / "train.jsonl"
        write_rows(data, rows, seed=9)
        with quiet():
            extract(folder / "reference", data)
        reference, late, waited = left_by(folder / "reference"), 0, []
        failures: list[dict[str, Any]] = []
        for trial in range(count):
            launch = Launch(folder / f"trial{trial}", ranks, by_hand=trial % 2 == 0)
            victim, moment = chance.randrange(ranks), chance.uniform(0, 0.5)
            stage = chance.choice(stages(rows, ranks, by_hand=launch.by_hand))
            launch.start(data)
            launch.wait_for(f"pid{victim}")
            launch.wait_for(*stage)
            time.sleep(moment)
            killed, begun = launch.kill(victim), time.monotonic()
            ended = launch.end(HANGS)
            late += not killed
            if killed:
                waited.append(time.monotonic() - begun)
            if wrong := (_wrong(launch, victim, killed) if ended else "hung") or _resumed(launch.work, data, reference):
                logs = [log.read_text(errors="replace")[-1000:] for log in launch.logs]
                failures.append({"trial": trial, "rank": victim, "stage": stage, "wrong": wrong, "logs": logs})
    return {
        "measurement": "ranks killed",
        "ranks": ranks,
        "tried": count,
        "by_hand": -(-count // 2),
        "sound": count - len(failures),
        "hung": sum(f["wrong"] == "hung" for f in failures),
        "finished_before": late,
        "seconds_to_the_end": {"median": statistics.median(waited), "most": max(waited)} if waited else None,
        "failures": failures,
    }


def _wrong(launch: Launch, victim: int, killed: bool) -> str:
    """What is wrong with how the ranks ended; empty for nothing."""
    finished = Workdir(launch.work).is_finished()
    if not killed and not finished:
        return "ended by itself"
    for rank, log in enumerate(launch.logs):
        told = log.read_text(errors="replace")
        if "Traceback" in told:
            return f"a traceback, in log {rank}"
        status = launch.processes[rank].returncode
        if rank == victim if launch.by_hand else finished or not launch.has_met:
            continue
        if status != 0 and not any(words in told for words in TOLD):
            return f"rank {rank} ended by {status} without a message"
        if launch.by_hand and status == rank == 0 and not finished:
            return "rank 0 ended by 0 before the work was done"
    return ""


def _resumed(work: Path, data: Path, reference: dict[str, bytes]) -> str:
    """What is wrong with the folder after one process went on in it."""
    with quiet():
        extract(work, data)
    left = left_by(work)
    other = sorted(name for name in left.keys() | reference.keys() if left.get(name) != reference.get(name))
    return f"other bytes: {', '.join(other)}" if other else ""


@contextlib.contextmanager
def quiet() -> Any:
    """Nothing is printed."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        yield


def main() -> None:
    """Run the trials and print their JSON lines."""
    if sys.argv[1:2] == ["--child"]:
        child(Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trials", nargs="?", type=int, default=30)
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 3])
    parser.add_argument("--rows", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # another number of threads rounds otherwise
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    record = {"command": " ".join(["python", *sys.argv]), "commit": commit, "device": chip(), "versions": versions()}
    sound = True
    for ranks in args.ranks:
        found = trials(args.trials, ranks, rows=args.rows, seed=args.seed)
        sound &= found["sound"] == found["tried"]
        print(json.dumps({**found, **record}), flush=True)
    sys.exit(not sound)


if __name__ == "__main__":
    main()
