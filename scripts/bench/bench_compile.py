"""What compilation costs at scale: one JSON line for each measurement.

    python scripts/bench/bench_compile.py made --states 100000 1000000 3560000
    python scripts/bench/bench_compile.py real WORKDIR
    python scripts/bench/bench_compile.py sizes WORKDIR

``made`` compiles made-up extractions (``made_workdir.py``), ``real`` a finished extraction of a teacher, ``sizes`` ever
more of one, for the size of the artifact as the corpus grows.

Each compilation runs in a process of its own, as ``daari-mlx compile --workdir`` would; seconds count from the call of
``compile_graph`` to the saved graph, the best of ``--repeats`` is told with all of them beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from made_workdir import make_workdir
from recording import origin, tell

from daari_mlx.compile.compiler import compile_graph, peak_mb
from daari_mlx.compile.workdir import Workdir
from daari_mlx.graph.artifact import save_graph
from daari_mlx.ground.files import read_json, write_json

SIZES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # shares of a corpus


def made(args: argparse.Namespace) -> None:
    """Compile made-up extractions of some sizes."""
    for states in args.states:
        with tempfile.TemporaryDirectory() as folder:
            work = Path(folder) / "work"
            make_workdir(work, states)
            tell({"corpus": "made up", **best_of(work, args)}, args.out)


def real(args: argparse.Namespace) -> None:
    """Compile a finished extraction."""
    tell({"corpus": "extracted from a teacher", **best_of(args.workdir, args)}, args.out)


def sizes(args: argparse.Namespace) -> None:
    """Compile growing parts of an extraction."""
    whole = read_json(args.workdir / "extract_stats.json", "finished extraction")
    for share in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            part = Path(folder) / "work"
            part.mkdir()
            for there in args.workdir.iterdir():
                if there.name != "extract_stats.json":
                    (part / there.name).symlink_to(there.resolve())
            write_json(part / "extract_stats.json", {**whole, "shards": max(1, round(share * whole["shards"]))})
            tell({"corpus": f"{share:.0%} of an extraction", **best_of(part, args)}, args.out)


def best_of(work: Path, args: argparse.Namespace) -> dict[str, Any]:
    """The fastest of some compilations."""
    runs = []
    for _ in range(args.repeats):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, "once", str(work), str(Path(folder) / "graph")]
            command += [] if args.nodes is None else ["--nodes", str(args.nodes)]
            load = os.getloadavg()[0]
            found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            runs.append({**json.loads(found), "load_before": load})
    best = min(runs, key=lambda run: run["compile_seconds"])
    seconds = [run["compile_seconds"] for run in runs]
    return {"measurement": "compile", **best, "all_seconds": seconds, "cores": os.cpu_count(), **origin()}


def once(args: argparse.Namespace) -> None:
    """Compile and save, in this process."""
    before, wall, cpu = peak_mb(), time.perf_counter(), time.process_time()
    compiled = compile_graph(Workdir(args.workdir), nodes=args.nodes)
    save_graph(compiled.graph, args.graph, compiled.stats)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    stats = compiled.stats
    print(
        json.dumps(
            {
                "states": stats["states"],
                "sequences": stats["sequences"],
                "nodes": stats["nodes"],
                "compile_seconds": wall,
                "cpu_seconds": cpu,
                "seconds": {k: v for k, v in stats["seconds"].items() if k not in ("answers", "choices", "states")},
                "peak_mb": peak_mb(),
                "peak_mb_before": before,
                "artifact_bytes": sum(f.stat().st_size for f in args.graph.iterdir()),
                "max_bytes": stats["settings"]["max_bytes"],
            }
        )
    )


def main() -> None:
    """Run the measurement that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, run in (("made", made), ("real", real), ("sizes", sizes), ("once", once)):
        command = commands.add_parser(name)
        if name == "made":
            command.add_argument("--states", type=int, nargs="+", default=[100_000, 1_000_000, 3_560_000])
        else:
            command.add_argument("workdir", type=Path)
        if name == "once":
            command.add_argument("graph", type=Path)
        command.add_argument("--nodes", type=int)
        command.add_argument("--repeats", type=int, default=3)
        command.add_argument("--out", type=Path, help="a file to append the lines to")
        command.set_defaults(run=run)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
