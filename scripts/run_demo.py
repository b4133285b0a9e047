"""The whole main job on a small corpus: teacher, graph, benchmark on held-out messages, plot.

Under ten minutes on two cores, and safe to run again: what is there already is used. Each step prints the command
line that does the same. Usage: ``python scripts/run_demo.py [--out build/demo] [--rows 96] [-n 30]``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import daari_mlx  # noqa: F401  on Linux it loads a fast BLAS, which must happen before MLX is imported
from daari_mlx.ground.errors import DaariError

if TYPE_CHECKING:
    from daari_mlx.graph.graph import Graph
    from daari_mlx.measure.records import BenchRecord
    from daari_mlx.teacher.load import Teacher

OUT = Path("build/demo")
ROWS, N_BENCH = 96, 30
MAX_TOKENS = 48  # answers take 20 to 30
SYSTEM = "Sort the text message. Answer in JSON."
SHOWN = ("prize_scam", "family", "appointment")  # one answered example of each is in every prompt
LINE = "-" * 72


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit status, 1 after an error that the user can mend."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT, help=f"folder for all results (default: {OUT})")
    parser.add_argument("--rows", type=int, default=ROWS, help=f"prompts to compile (default: {ROWS})")
    parser.add_argument("-n", type=int, default=N_BENCH, help=f"held-out prompts to time (default: {N_BENCH})")
    parser.add_argument("--teacher", type=Path, help="a teacher's folder (default: fetch the demo teacher)")
    args = parser.parse_args(argv)
    start = time.perf_counter()

    def work() -> int:
        if args.rows < 1 or args.n < 1:
            raise DaariError(f"--rows is {args.rows} and -n is {args.n}: both need at least 1.")
        record = run(args.out, args.rows, args.n, args.teacher)
        print(f"\ndone in {time.perf_counter() - start:.0f} s")
        return 0 if record.ok else 1

    return status_of(work)


def status_of(work: Callable[[], int]) -> int:
    """The exit status of all the work: its own, or that of an error that the user can mend or of Ctrl-C, each told."""
    try:
        return work()
    except DaariError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on from here", file=sys.stderr)
        return 130


def run(out: Path, rows: int, n: int, teacher_path: Path | None) -> BenchRecord:
    """All steps.

    Args:
        out: the folder for corpus, working files, graph, record and plot.
        rows: prompts the graph is compiled from.
        n: held-out prompts that are timed.
        teacher_path: the teacher's folder; None fetches the demo teacher.

    Raises:
        DaariError: what the user can mend.
    """
    from daari_mlx.teacher.load import load_teacher

    teacher_path = get_teacher() if teacher_path is None else teacher_path
    texts = make_texts(rows, n)
    # named after what is put in: the same goes on here, anything else does not meet it
    inputs = json.dumps([texts, str(teacher_path.resolve()), MAX_TOKENS]).encode()
    home = out / hashlib.blake2b(inputs, digest_size=4).hexdigest()
    corpus, graph_path = home / "corpus", home / "graph"
    write_corpus(corpus, texts)
    teacher = load_teacher(str(teacher_path))
    graph = compile_corpus(teacher, corpus, home / "work", graph_path)
    record = benchmark(teacher, graph, corpus, graph_path, out, n)
    show(record, out)
    return record


def step(title: str, *command: object) -> str:
    """Say what comes, and the command line that does it; returns that."""
    line = shlex.join(str(word) for word in command)
    print(f"\n{LINE}\n{title}\n  $ {line}", flush=True)
    return line


def get_teacher() -> Path:
    """The demo teacher's folder in the cache, fetched where it is not there yet."""
    from fetch_demo_teacher import fetch

    from daari_mlx.cost.probe import cache_dir

    folder = cache_dir() / "demo-teacher"
    step("The teacher: SmolLM2-135M-Instruct", "python", "scripts/fetch_demo_teacher.py", folder)
    if (folder / "model.safetensors").is_file():  # a folder of this name was verified when it was made
        print(f"{folder} is there: kept")
    else:
        fetch(folder)
    return folder


def make_texts(rows: int, n: int) -> dict[str, str]:
    """The text of ``train.jsonl`` and ``test.jsonl``: different messages, each behind the same answered examples."""
    from make_sms_corpus import make_rows

    made, spare = make_rows(rows + n), make_rows(16, seed=1)  # of the spare ones, one of each category
    shown = [next(row for row in spare if f'"{name}"' in row["messages"][2]["content"]) for name in SHOWN]
    before = [{"role": "system", "content": SYSTEM}] + [turn for row in shown for turn in row["messages"][1:]]
    lines = [json.dumps({"messages": before + row["messages"][1:2]}, ensure_ascii=False) + "\n" for row in made]
    return {"train": "".join(lines[:rows]), "test": "".join(lines[rows:])}


def write_corpus(folder: Path, texts: dict[str, str]) -> None:
    """Write them to ``folder``."""
    counts = {split: text.count("\n") for split, text in texts.items()}
    print(f"\n{LINE}\nThe corpus: invented text messages, {counts['train']} to compile and {counts['test']} to time")
    print("  (python scripts/make_sms_corpus.py writes more of them; here each follows three answered")
    print("  examples, so that so small a teacher answers in JSON)", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    for split, text in texts.items():
        (folder / f"{split}.jsonl").write_text(text, encoding="utf-8", newline="\n")


def compile_corpus(teacher: Teacher, corpus: Path, work: Path, graph_path: Path) -> Graph:
    """The graph of the training prompts, compiled unless it is there already."""
    from daari_mlx.compile.compiler import compile_graph
    from daari_mlx.compile.extract import ExtractOptions, extract
    from daari_mlx.compile.workdir import Workdir
    from daari_mlx.graph.artifact import attach, read_stats, save_graph
    from daari_mlx.share.find import load_graph
    from daari_mlx.text.data import read_prompts

    step(
        "The graph: the teacher answers the prompts, and what its states led to is counted",
        *("daari-mlx", "compile", "--model", teacher.source, "--data", corpus, "--workdir", work),
        *("--answers", "teacher", "--max-tokens", MAX_TOKENS, "--graph-path", graph_path),
    )
    prompts = read_prompts(corpus, teacher.tokenizer, max_length=teacher.context_length).items
    workdir = Workdir(work)
    extract(teacher, prompts, workdir, ExtractOptions(answers="teacher", max_tokens=MAX_TOKENS))
    if graph_path.exists() and read_stats(graph_path)["settings"]["corpus"] == workdir.read_plan().corpus:
        graph = attach(load_graph(graph_path), teacher.model, teacher.tokenizer)
        print(f"{graph_path} was compiled from the same prompts and teacher: kept")
        return graph
    compiled = compile_graph(workdir)
    save_graph(compiled.graph, graph_path, compiled.stats)
    counts = ", ".join(f"{compiled.stats[name]:,} {name}" for name in ("states", "nodes", "edges"))
    print(f"{graph_path}: {counts}; top-edge mass {compiled.stats['top_edge_mass']:.2f}")
    return load_graph(graph_path)


def benchmark(teacher: Teacher, graph: Graph, corpus: Path, graph_path: Path, out: Path, n: int) -> BenchRecord:
    """Plain mlx-lm and the graph on the held-out prompts; ``OUT/record.json``."""
    from daari_mlx.cost import machine
    from daari_mlx.ground.files import write_json
    from daari_mlx.measure.bench import run_bench
    from daari_mlx.text.data import read_prompts

    command = step(
        "The benchmark: plain mlx-lm and the graph on messages that it has not seen, in turns",
        *("daari-mlx", "bench", "--model", teacher.source, "--graph", graph_path, "--data", corpus),
        *("--split", "test", "-n", n, "--max-tokens", MAX_TOKENS),
    )
    machine.measured_cost(teacher.model)  # T(m) is measured here, once for each model and machine
    prompts = read_prompts(corpus, teacher.tokenizer, split="test", max_length=teacher.context_length).items
    record = run_bench(teacher, graph, prompts, max_tokens=MAX_TOKENS, command=command)
    write_json(out / "record.json", record.as_dict())
    return record


def show(record: BenchRecord, out: Path) -> None:
    """The table and ``OUT/acceptance.png``."""
    from daari_mlx.show.bench_text import bench_text
    from daari_mlx.show.plots import plot_acceptance

    plot_acceptance(record, out / "acceptance.png")
    print(f"\n{LINE}\n{bench_text(record.as_dict())}\n{LINE}")
    print(f"{out / 'record.json'} has every figure, {out / 'acceptance.png'} the picture")


if __name__ == "__main__":
    sys.exit(main())
