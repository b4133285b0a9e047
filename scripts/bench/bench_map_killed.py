"""Kill jobs over a file at random moments, and start them again: one JSON line.

    python scripts/bench/bench_map_killed.py [N=30] [--rows 60] [--seed 0] [--out results/map.jsonl]

N jobs of the tests' tiny teacher, each ended by SIGKILL at a moment drawn between its first answer and its last, then
started again by the same command. It is right when every output has the bytes of a run that nobody stopped, and no row
was answered twice but those whose line was cut short.
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

from recording import SHORT, origin, tell

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
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
        data, whole = Path(folder) / "in.jsonl", Path(folder) / "whole.jsonl"
        from make_sms_corpus import make_rows

        rows = [{"messages": row["messages"][1:]} for row in make_rows(count, seed=seed)]
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        told = subprocess.run([*command(data, whole), "--json"], check=True, capture_output=True, text=True)
        takes = json.loads(told.stdout)["seconds"]
        trials = []
        for number in range(kills):
            out = Path(folder) / f"out{number}.jsonl"
            running = subprocess.Popen(command(data, out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            while running.poll() is None and not lines(out):
                time.sleep(0.002)
            time.sleep(chance.uniform(0, takes))
            killed = running.poll() is None
            running.kill()
            running.wait()
            before = len(lines(out))
            subprocess.run(command(data, out), check=True, capture_output=True)
            good = [json.loads(line)["key"] for line in lines(out) if line.endswith(b"}\n")]
            trials.append(
                {
                    "killed": killed,
                    "answered_before": before,
                    "torn_lines": len(lines(out)) - len(good),
                    "answered_twice": len(good) - len(set(good)),
                    "same_bytes": out.read_bytes() == whole.read_bytes(),
                }
            )
        return {
            "what": "jobs killed at random moments",
            **origin(*SHORT),
            "rows": count,
            "seconds": takes,
            "killed": sum(trial["killed"] for trial in trials),
            "answered_twice": sum(trial["answered_twice"] for trial in trials),
            "same_bytes": all(trial["same_bytes"] for trial in trials),
            "trials": trials,
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
