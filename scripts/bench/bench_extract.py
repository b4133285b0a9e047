"""What extraction costs: one JSON line for each measurement.

    python scripts/bench/bench_extract.py rate --model M --data train.jsonl
    python scripts/bench/bench_extract.py ranks --model M --data train.jsonl

``rate`` takes each sequence twice, in turn: prefilled as mlx-lm does before it generates, and extracted, in parts, as
``daari-mlx extract`` does. ``ranks`` runs that command alone, on some and on all cores, and under ``mlx.launch``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from recording import origin, tell

from daari_mlx.compile.batches import Reader, choose
from daari_mlx.compile.compiler import peak_mb
from daari_mlx.compile.extract import PART
from daari_mlx.compile.shards import cut, read, reduce
from daari_mlx.graph.nodes import fit_projection
from daari_mlx.ground.blas import THREADS
from daari_mlx.ground.files import save_arrays
from daari_mlx.teacher.load import Teacher, load_teacher
from daari_mlx.text.data import read_sequences


def prefill(teacher: Teacher, tokens: list[int]) -> float:
    """Seconds of mlx-lm's own prefill of all tokens."""
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    cache = make_prompt_cache(teacher.model)
    start = time.perf_counter()
    teacher.model(mx.array([tokens]), cache=cache)
    mx.eval([c.state for c in cache])
    return time.perf_counter() - start


def rate(args: argparse.Namespace) -> dict[str, Any]:
    """Tokens a second of both, and the median of their ratio part by part, in seconds and in processor seconds."""
    teacher = load_teacher(args.model)
    sequences = read_sequences(args.data, teacher.tokenizer, limit=args.n, max_length=teacher.context_length).items
    parts = cut(sequences, args.part, seed=0)
    layout = choose(teacher, args.layer, [piece for part in parts for piece in part.pieces])
    reader = Reader(teacher, args.layer, layout)
    arrays = read(reader, parts[0])  # warms up
    projection = fit_projection(arrays["states"], 64)
    prefill(teacher, parts[0].pieces[0].tokens)
    own, ours = [], []
    with tempfile.TemporaryDirectory() as folder:
        for number, part in enumerate(parts):
            wall, cpu = time.perf_counter(), time.process_time()
            for piece in part.pieces:
                prefill(teacher, piece.tokens)
            own.append((time.perf_counter() - wall, time.process_time() - cpu))
            wall, cpu = time.perf_counter(), time.process_time()
            save_arrays(Path(folder) / str(number), reduce(read(reader, part), projection))
            ours.append((time.perf_counter() - wall, time.process_time() - cpu))
    shares = [a[0] / b[0] for a, b in zip(own, ours, strict=True)]
    tokens = sum(part.tokens for part in parts)
    return {
        "measurement": "extraction rate",
        "sequences": len(sequences),
        "part": args.part,
        "tokens": tokens,
        "states": sum(part.states for part in parts),
        "prefixes": sorted({n for part in parts for n in part.prefixes}),
        "layout": layout.as_json(),
        "prefill_tokens_per_second": tokens / sum(wall for wall, _ in own),
        "extract_tokens_per_second": tokens / sum(wall for wall, _ in ours),
        "prefill_tokens_per_cpu_second": tokens / sum(cpu for _, cpu in own),
        "extract_tokens_per_cpu_second": tokens / sum(cpu for _, cpu in ours),
        "share_median": median(shares),
        "share_quartiles": quantiles(shares, n=4) if len(shares) > 1 else shares,
        "cpu_share_median": median(a[1] / b[1] for a, b in zip(own, ours, strict=True)),
        "layer": args.layer,
        "peak_mb": peak_mb(),
    }


def ranks(args: argparse.Namespace) -> dict[str, Any]:
    """Tokens a second of ``daari-mlx extract`` by ranks, each with its part of the cores, and by one process.

    One process is measured with a single rank's part of the cores (what more ranks are worth) and with all of them
    (what they are worth on this machine). Loading and reading the data are left out, choosing a layout is not.
    """
    given = {name: value for name, value in os.environ.items() if name not in THREADS}
    options = ["--model", args.model, "--data", args.data, "--limit", str(args.n), "--json"]
    launcher = ["mlx.launch", "-n", str(args.ranks), "--backend", "ring", "--"]
    part = {THREADS[0]: str(max(1, (os.cpu_count() or 1) // args.ranks))}
    arms = {"one_part": ([], given | part), "alone": ([], given), "ranks": (launcher, given)}
    stats, shards = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (before, environment) in arms.items():
            work = Path(folder) / name
            command = [*before, "daari-mlx", "extract", *options, "--workdir", str(work)]
            # a pipe that stays open: the launcher would read from a closed one all the time
            with subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment
            ) as running:
                if running.wait() != 0:
                    raise SystemExit(f"{command} failed")
            stats[name] = json.loads((work / "extract_stats.json").read_text())
            shards[name] = {p.name: p.read_bytes() for p in (work / "shards").iterdir()}
    seconds = {name: s["seconds"]["choices"] + s["seconds"]["states"] for name, s in stats.items()}
    return {
        "measurement": "extraction by ranks",
        "ranks": args.ranks,
        "sequences": stats["ranks"]["sequences"],
        "shards": stats["ranks"]["shards"],
        "tokens_per_second_one_part": stats["one_part"]["tokens"] / seconds["one_part"],
        "tokens_per_second_alone": stats["alone"]["tokens"] / seconds["alone"],
        "tokens_per_second": stats["ranks"]["tokens"] / seconds["ranks"],
        "speedup_of_one_part": seconds["one_part"] / seconds["ranks"],
        "speedup": seconds["alone"] / seconds["ranks"],
        "seconds": {name: s["seconds"] for name, s in stats.items()},
        "same_bytes": all(held == shards["ranks"] for held in shards.values()),
        "cores": os.cpu_count(),
        "load_before": args.load,
    }


def main() -> None:
    """Run the measurement that was asked for and print its JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("rate")
    one.add_argument("--model", required=True)
    one.add_argument("--data", required=True)
    one.add_argument("--layer", default="final")
    one.add_argument("-n", type=int, default=128)
    one.add_argument("--part", type=int, default=PART)
    one.set_defaults(run=rate)
    three = commands.add_parser("ranks")
    three.add_argument("--model", required=True)
    three.add_argument("--data", required=True)
    three.add_argument("-n", type=int, default=512)
    three.add_argument("--ranks", type=int, default=2)
    three.set_defaults(run=ranks, load=os.getloadavg()[0])
    args = parser.parse_args()
    tell({**args.run(args), **origin()})


if __name__ == "__main__":
    main()
