"""Kill extractions at random moments and resume them: one JSON line, survived of tried.

    python scripts/bench/bench_resume.py [N=30] [--rows 160] [--seed 0]

Each trial starts an extraction with the tiny teacher of the tests in a process of its own, ends it by SIGKILL at a
moment drawn between its first file and its last, and resumes it. It survived when all shards and the compiled graph are
those of a run that nobody stopped, byte for byte, and no more than one shard was read twice.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from recording import origin, tell

from daari_mlx.compile.compiler import compile_graph
from daari_mlx.compile.workdir import Workdir
from daari_mlx.graph.artifact import save_graph

ROOT = Path(__file__).resolve().parents[2]
TEACHER = ROOT / "tests" / "tiny_teacher"
PART, SAMPLE = 4, 200  # small shards, so that a kill has many places to hit


def child(work: Path, data: Path, log: Path) -> None:
    """Extract, and log each shard that is read off the teacher and the end of the run."""
    from daari_mlx.compile import extract
    from daari_mlx.teacher.load import load_teacher
    from daari_mlx.text.data import read_sequences

    read = extract.read

    def logged(reader: Any, part: Any, *told: Any) -> Any:
        arrays = read(reader, part, *told)
        with log.open("a") as handle:
            handle.write(f"{part.sequences[0].row}\n")
        return arrays

    extract.read, extract.PART, extract.SAMPLE_STATES = logged, PART, SAMPLE
    teacher = load_teacher(str(TEACHER))
    rows = read_sequences(data, teacher.tokenizer).items
    extract.extract(teacher, rows, Workdir(work), extract.ExtractOptions(dimensions=16))


def start(work: Path, data: Path, log: Path) -> subprocess.Popen[bytes]:
    """A run in a process of its own."""
    command = [sys.executable, __file__, "--child", str(work), str(data), str(log)]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


def wait_for(process: subprocess.Popen[bytes], work: Path) -> float:
    """Until the run has begun to write; the moment."""
    while process.poll() is None and not (work / "extract.json").exists():
        time.sleep(0.002)
    return time.perf_counter()


def left_by(work: Path) -> dict[str, bytes]:
    """All files of a finished extraction but the record of its seconds, and the graph compiled from it."""
    graph = work.with_name(work.name + ".graph")
    found = {str(p.relative_to(work)): p.read_bytes() for p in work.rglob("*") if p.is_file()}
    found.pop("extract_stats.json", None)
    compiled = compile_graph(Workdir(work), nodes=64)
    save_graph(compiled.graph, graph, compiled.stats)
    return {**found, "graph": (graph / "graph.safetensors").read_bytes(), "config": _config(graph)}


def _config(graph: Path) -> bytes:
    """A graph's config without the seconds and the memory of its compilation."""
    config = json.loads((graph / "config.json").read_text())
    for name in ("seconds", "peak_mb"):
        config.pop(name, None)
    return json.dumps(config, sort_keys=True).encode()


def trials(count: int, rows: int, seed: int) -> dict[str, Any]:
    """Kill and resume ``count`` times.

    Returns:
        ``tried``, ``survived``, ``finished_before`` (the kill came too late), ``repeated_at_most`` (shards read twice
        in a trial), ``failures``.
    """
    sys.path.insert(0, str(ROOT / "tests"))
    from graphs import write_rows

    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = folder / "train.jsonl"
        write_rows(data, rows, seed=9)
        process = start(folder / "reference", data, folder / "reference.log")
        begun = wait_for(process, folder / "reference")
        if process.wait() != 0:
            raise SystemExit("The run that nobody stops failed.")
        lasts, reference = time.perf_counter() - begun, left_by(folder / "reference")
        failures, late, repeated = [], 0, 0
        for trial in range(count):
            work, log = folder / f"work{trial}", folder / f"log{trial}"
            process = start(work, data, log)
            wait_for(process, work)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=chance.uniform(0, lasts))
            process.kill()
            late += process.wait() == 0
            ended = start(work, data, log).wait()
            twice = sum(n - 1 for n in Counter(log.read_text().split()).values()) if log.exists() else 0
            repeated = max(repeated, twice)
            if ended != 0 or left_by(work) != reference or twice > 1:
                failures.append({"trial": trial, "status": ended, "repeated": twice})
    return {
        "measurement": "kill and resume",
        "tried": count,
        "survived": count - len(failures),
        "finished_before": late,
        "repeated_at_most": repeated,
        "shards": -(-rows // PART),
        "seconds_of_a_run": lasts,
        "failures": failures,
    }


def main() -> None:
    """Run the trials and print their JSON line."""
    if sys.argv[1:2] == ["--child"]:
        child(*(Path(name) for name in sys.argv[2:]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trials", nargs="?", type=int, default=30)
    parser.add_argument("--rows", type=int, default=160)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    found = trials(args.trials, args.rows, args.seed)
    tell({**found, **origin("commit", "device", "versions")})
    sys.exit(found["survived"] != found["tried"])


if __name__ == "__main__":
    main()
