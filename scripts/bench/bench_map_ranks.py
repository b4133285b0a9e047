"""A job on two ranks against one, each with one core: one JSON line.

    python scripts/bench/bench_map_ranks.py --model FOLDER --graph FOLDER --data FILE [-n 200] [--out results/map.jsonl]

Seconds are those of answering, as the command tells them: of two ranks the slower one's. One rank runs twice.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench_ranks_killed import free_ports
from recording import origin, tell

RUN = "from daari_mlx.cli.start import main; main()"
LAUNCH = "from mlx._distributed_utils.launch import main; main()"


def run(args: argparse.Namespace, out: Path, ranks: int) -> dict[str, Any]:
    """The job once."""
    words = ["map", "--model", args.model, "--graph", args.graph, "--data", args.data, "--limit", str(args.n)]
    words += ["--out", str(out), "--max-tokens", "128", "--concurrency", str(args.concurrency), "--json"]
    words += [] if args.adapter_path is None else ["--adapter-path", args.adapter_path]
    command = [sys.executable, "-c", RUN, *words]
    if ranks > 1:
        launcher = [sys.executable, "-c", LAUNCH, "-n", str(ranks), "--backend", "ring"]
        command = [*launcher, "--starting-port", str(free_ports(ranks)), "--", *command]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    running = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True)
    assert running.stdin is not None and running.stdout is not None
    with running.stdin, running.stdout:
        told = running.stdout.read()
    running.wait()
    found = next(line for line in told.splitlines() if line.startswith('{"out"'))
    return {name: value for name, value in json.loads(found).items() if name != "out"}


def main() -> int:
    """Measure and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--adapter-path")
    parser.add_argument("--graph", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--concurrency", default="auto")
    parser.add_argument("-n", type=int, default=200)
    parser.add_argument("--out")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        outs = [Path(folder) / f"{name}.jsonl" for name in ("one", "two", "again")]
        one, two, again = (run(args, out, ranks) for out, ranks in zip(outs, (1, 2, 1), strict=True))
        same = outs[0].read_bytes() == outs[1].read_bytes() == outs[2].read_bytes()
    alone = (one["seconds"] + again["seconds"]) / 2
    record = {
        "what": "a job on two ranks",
        **origin(),
        "n": args.n,
        "ratio": alone / two["seconds"],
        "same_bytes": same,
        "one": [one, again],
        "two": two,
    }
    tell(record, args.out)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
