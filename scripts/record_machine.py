"""Time this machine: T(m), a graph compiled and measured here, one answer at a time and many; one JSON file.

About ten minutes. A small model and an invented corpus are used, so that records of machines can be compared. What is
written holds timings, counts, versions and the name of the chip: no paths, no names, no texts.
Usage: ``scripts/record``, or ``python scripts/record_machine.py [--model MODEL] [--out build/machine]``.
"""

from __future__ import annotations

import argparse
import platform
import re
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import run_demo

import daari_mlx  # noqa: F401  on Linux it loads a fast BLAS, which must happen before MLX is imported

if TYPE_CHECKING:
    from daari_mlx.cost.length import Cost
    from daari_mlx.graph.graph import Graph
    from daari_mlx.teacher.load import Teacher
    from daari_mlx.text.data import Prompt

FORMAT = 1
HERE = "this machine"
MAC_MODEL = "mlx-community/Llama-3.2-1B-Instruct-4bit"  # 0.7 GB; small, so that anybody can load it
ROWS, SINGLE, BATCHED = 96, 24, 32  # prompts that are compiled, timed one at a time, and timed in batches
SIZES = [1, 4, 8, 16]
WHERE = "https://github.com/daari-mlx/daari-mlx/issues/new?template=record.yml"
FIGURES = (  # of a benchmark, what says nothing of who ran it
    *("ok", "n", "speedup", "decode_ratio", "wall_ratio", "tokens_per_second", "tokens_per_forward"),
    *("acceptance_rate", "draft_time_share", "mean_tokens", "sources", "max_tokens"),
)
OF_BATCHES = ("ok", "n", "prompt_tokens", "max_tokens", "sizes")


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit status, 1 after an error that the user can mend."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    default = MAC_MODEL if sys.platform == "darwin" else "the demo teacher"
    parser.add_argument("--model", help=f"a model that mlx-lm loads (default: {default})")
    parser.add_argument(
        "--out", type=Path, default=Path("build/machine"), help="folder for the record and what it needs"
    )
    args = parser.parse_args(argv)
    start = time.perf_counter()

    def work() -> int:
        record = run(args.model, args.out)
        path = write(record, args.out, time.perf_counter() - start)
        print(f"\n{summary(record)}\n\n{path} has all figures, and nothing personal. Please send it: {WHERE}")
        return 0

    return run_demo.status_of(work)


def run(model: str | None, out: Path) -> dict[str, Any]:
    """All steps; the record.

    Raises:
        DaariError: what the user can mend.
    """
    from daari_mlx.cost import probe
    from daari_mlx.graph.artifact import read_stats
    from daari_mlx.teacher.load import load_teacher
    from daari_mlx.text.data import read_prompts

    name = name_of(model)
    if model is None:
        model = MAC_MODEL if sys.platform == "darwin" else str(run_demo.get_teacher())
    teacher = load_teacher(model)
    corpus, graph_path = out / "corpus", out / "graph"
    run_demo.write_corpus(corpus, run_demo.make_texts(ROWS, BATCHED))
    run_demo.step("T(m): forwards over 1 to 33 tokens", "daari-mlx", "probe", "--model", model)
    timed = probe.measure(teacher.model)
    probe.save(timed)
    graph = run_demo.compile_corpus(teacher, corpus, out / "work", graph_path)
    stats = read_stats(graph_path)
    prompts = read_prompts(corpus, teacher.tokenizer, split="test", max_length=teacher.context_length).items
    return {
        "format": FORMAT,
        "date": time.strftime("%Y-%m-%d"),
        **machine(),
        "model": {**described(teacher), "name": name},
        "probe": {name: value for name, value in asdict(timed).items() if name != "key"},
        "compile_seconds": sum(stats["seconds"].values()),  # its own, where it was made by an earlier run too
        "predicted": predicted(stats, timed.cost),
        "single": single(teacher, graph, prompts[:SINGLE]),
        "batched": batched(teacher, graph, prompts),
    }


def name_of(model: str | None) -> str:
    """What the record calls the model: its name on the Hub. A folder is not named, since its path may say whose it is.

    Args:
        model: as it was given; None for the one that records are made with.
    """
    from daari_mlx.share.repo import parse_repo

    if model is None:
        return MAC_MODEL if sys.platform == "darwin" else "demo teacher"
    return model if parse_repo(model) is not None and not Path(model).exists() else "a folder's model"


def machine() -> dict[str, Any]:
    """The chip, its memory, and versions."""
    import mlx.core as mx

    from daari_mlx.measure.about import environment

    about = environment()
    info = mx.device_info() if mx.metal.is_available() else {}
    return {
        **{name: about[name] for name in ("commit", "versions", "python", "device", "blas", "load_average")},
        "system": f"{platform.system()} {platform.release().split('-')[0]} {platform.machine()}",
        "memory_bytes": info.get("memory_size"),
    }


def described(teacher: Teacher) -> dict[str, Any]:
    """Fingerprints of the teacher, no paths."""
    from daari_mlx.share.scrub import scrub

    return scrub(teacher.fingerprint())[0]


def predicted(stats: dict[str, Any], cost: Cost) -> dict[str, Any]:
    """What ``inspect`` predicts for this machine, whose T(m) is ``cost``, and for every published T(m)."""
    from daari_mlx.cost.curves import CURVES, Curve
    from daari_mlx.measure.forecast import forecast
    from daari_mlx.measure.prospect import kept_outlook

    outlook, _ = kept_outlook(stats)
    if outlook is None:
        return {}
    here = Curve(HERE, cost, "measured for this record")
    found = {curve.name: forecast(outlook, curve) for curve in (here, *CURVES.values())}
    return {name: {"speedup": f.speedup, "tokens_per_forward": f.tokens_per_forward} for name, f in found.items()}


def single(teacher: Teacher, graph: Graph, prompts: list[Prompt]) -> dict[str, Any]:
    """One answer at a time against ``mlx_lm.stream_generate``, in turns."""
    from daari_mlx.measure.bench import run_bench

    run_demo.step(
        "One answer at a time: plain mlx-lm and the graph, in turns", "daari-mlx", "bench", "-n", len(prompts)
    )
    record = run_bench(teacher, graph, prompts, max_tokens=run_demo.MAX_TOKENS)
    found = record.as_dict()
    identity = {name: count for name, count in found["identity"].items() if name != "failed_rows"}
    return {**{name: found[name] for name in FIGURES}, "identity": identity, "losing": found["losing"]["count"]}


def batched(teacher: Teacher, graph: Graph, prompts: list[Prompt]) -> dict[str, Any]:
    """Many at once against ``mlx_lm.batch_generate``, in turns."""
    from daari_mlx.measure.batch_bench import run_batch_bench

    sizes = ",".join(map(str, SIZES))
    run_demo.step(
        "Many at once: mlx_lm.batch_generate and ours, in turns", "daari-mlx", "bench", "--concurrency", sizes
    )
    record = run_batch_bench(teacher, graph, prompts, SIZES, max_tokens=run_demo.MAX_TOKENS)
    return {name: record[name] for name in OF_BATCHES}


def write(record: dict[str, Any], out: Path, seconds: float) -> Path:
    """The record as a file that is named after the chip and the model."""
    from daari_mlx.ground.files import write_json

    words = f"{record['device']} {record['model']['name'].rsplit('/', 1)[-1]}"
    path = out / f"{re.sub(r'[^a-z0-9]+', '-', words.lower()).strip('-')}.json"
    write_json(path, {**record, "seconds": seconds})
    return path


def summary(record: dict[str, Any]) -> str:
    """A few lines for whoever waited."""
    one, here = record["single"], record["predicted"].get(HERE)
    identity = one["identity"]
    lines = [
        f"{record['device']}, {record['model']['name']}",
        f"one at a time: {one['decode_ratio']['median']:.2f}x mlx-lm, "
        f"{one['tokens_per_forward']:.2f} tokens a forward; "
        f"{identity['identical']} of {one['n']} identical, {identity['ties']} ties, {identity['failed']} different"
        + (f"; predicted {here['speedup']:.2f}x" if here else ""),
    ]
    for size in record["batched"]["sizes"]:
        lines.append(f"{size['rows']:2} at once: {size['decode_ratio']:.2f}x mlx_lm.batch_generate")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
