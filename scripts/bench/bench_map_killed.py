"""Kill jobs over a file at random moments, and start them again: one JSON line.

    python scripts/bench/bench_map_killed.py [N=30] [--rows 60] [--seed 0] [--out results/map.jsonl]

A job of the tests' tiny teacher, ended by SIGKILL N times at moments drawn over the time that a whole run takes,
each time started again by the same command. Then it is let through. It is right when the output has the bytes of a run
that nobody stopped, and no row was answered twice but those whose line was cut short.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from make_sms_corpus import make_rows
from recording import SHORT, origin, tell

ROOT = Path(__file__).resolve().parents[2]
RUN = "from daari_mlx.cli.start import main; main()"


def command(data: Path, out: Path) -> list[str]:
    """The job."""
    teacher = ROOT / "tests" / "tiny_teacher"
    words = ["map", "--model", teacher, "--data", data, "--out", out, "--max-tokens", 24, "--concurrency", 4]
    return [sys.executable, "-c", RUN, *map(str, words)]


def lines(out: Path) -> list[bytes]:
    """Of the journal, in the order they were written."""
    files = sorted((out.with_name(out.name + ".work") / "answers").glob("*.jsonl"))
    return [line for file in files for line in file.read_bytes().splitlines(keepends=True)]


def measure(kills: int, count: int, seed: int) -> dict[str, Any]:
    """The record."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        data, whole, out = (Path(folder) / name for name in ("in.jsonl", "whole.jsonl", "out.jsonl"))
        rows = [{"messages": row["messages"][1:]} for row in make_rows(count, seed=seed)]
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        start = time.perf_counter()
        subprocess.run(command(data, whole), check=True, capture_output=True)
        takes = time.perf_counter() - start
        killed, moments = 0, []
        for _ in range(kills):
            running = subprocess.Popen(command(data, out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            moment = chance.uniform(0, takes)
            try:
                running.wait(moment)
            except subprocess.TimeoutExpired:
                running.kill()
                killed += 1
            running.wait()
            moments.append([round(moment, 3), len(lines(out))])
        subprocess.run(command(data, out), check=True, capture_output=True)
        found = lines(out)
        good = [json.loads(line)["key"] for line in found if line.endswith(b"}\n")]
        return {
            "what": "a job killed at random moments",
            **origin(*SHORT),
            "rows": count,
            "distinct_rows": len(set(good)),
            "seconds": takes,
            "killed": killed,
            "let_through": kills - killed,
            "moments": moments,
            "torn_lines": len(found) - len(good),
            "answered_twice": len(good) - len(set(good)),
            "same_bytes": out.read_bytes() == whole.read_bytes(),
        }


def main() -> int:
    """Measure and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kills", type=int, nargs="?", default=30)
    parser.add_argument("--rows", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out")
    args = parser.parse_args()
    record = measure(args.kills, args.rows, args.seed)
    tell(record, args.out)
    return 0 if record["same_bytes"] and not record["answered_twice"] else 1


if __name__ == "__main__":
    sys.exit(main())
