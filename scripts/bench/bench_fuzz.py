"""Load thousands of hostile graphs: each has to end in a clear error, or in a sound graph that then drafts.

Usage: ``python scripts/bench/bench_fuzz.py [N] [--seed 0] [--out results/fuzz.jsonl]``; prints the record, and appends
it to the file. Exit status 1 where a case ended otherwise: another exception, a crash, a hang, or more memory than ten
times the size of the files. The cases run in child processes with a limit on memory and time; ``--case K`` runs one
here.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import resource
import sys
import tempfile
import tracemalloc
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from mutate_graph import Files, mutate
from recording import origin, tell

from daari_mlx.draft.drafter import Context, GraphDrafter
from daari_mlx.graph.artifact import ARRAYS, CONFIG, STATS, read_stats, save_graph
from daari_mlx.graph.graph import Graph
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.progress import bar
from daari_mlx.share.find import load_graph
from daari_mlx.teacher.fingerprint import describe, differences

TEACHER = {"model_type": "llama", "source": "folder", "weights": "w" * 32, "tokenizer": "t" * 32, "vocab_size": 30}
STATISTICS = {"states": 100, "sequences": 5, "nodes": 12, "edges": 20, "steps": 30, "settings": {"answers": "teacher"}}
TIMES_SIZE = 10  # a case may allocate so many times the bytes of its files,
BESIDES = 2 << 20  # and so many besides, which Python takes for its own
MEMORY, SECONDS = 2 << 30, 60.0  # what a child gets beyond what it starts with, and how long a case may take
REFUSED, DRAFTED = "refused", "drafted"


class Outcome(NamedTuple):
    """How one case ended.

    Attributes:
        damage: what was done to the files.
        end: ``"refused"`` or ``"drafted"``; anything else is a failure and says what happened.
        size: bytes of the files.
        peak: the most bytes that were allocated at once.
        seconds: from the start of loading to the end of the last draft.
    """

    damage: str
    end: str
    size: int
    peak: int
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether it ended as it should."""
        return self.end in (REFUSED, DRAFTED) and self.peak <= TIMES_SIZE * self.size + BESIDES


def sound_files(folder: Path) -> list[Files]:
    """The files of three sound graphs: an ordinary small one, a larger one, and one of many nodes and little else.

    Args:
        folder: where they lie, or are written.
    """
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
    from graphs import graph_of, random_graph

    if not folder.exists():
        many = graph_of(20_000, 30, {}, {(20_000, 3): 5}, teacher=TEACHER)
        small = random_graph(3, teacher=TEACHER)
        large = random_graph(4, count=600, vocabulary=900, teacher={**TEACHER, "vocab_size": 900})
        for name, graph in (("small", small), ("large", large), ("many", many)):
            save_graph(graph, folder / name, STATISTICS)
    return [{name: (path / name).read_bytes() for name in (CONFIG, ARRAYS, STATS)} for path in sorted(folder.iterdir())]


def write(files: Files, folder: Path) -> int:
    """Lay ``files`` out as a graph's folder; returns their size in bytes."""
    folder.mkdir(exist_ok=True)
    for name in (CONFIG, ARRAYS, STATS):
        (folder / name).unlink(missing_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return sum(map(len, files.values()))


def load_and_draft(folder: Path) -> Graph | None:
    """The graph, after it drafted from many places, or None where it was refused; other exceptions are failures."""
    try:
        read_stats(folder)
    except DaariError as error:
        assert str(error)
    try:
        graph = load_graph(folder)
    except DaariError as error:
        assert str(error)
        return None
    describe(graph.teacher)
    differences(graph.teacher, TEACHER)
    states = np.random.default_rng(0).normal(size=(12, graph.hidden_size)).astype(np.float32)
    for length in (1, 16):
        drafter = GraphDrafter(graph, num_draft_tokens=length)
        for row, state in enumerate(states):
            tokens = [(row * 7 + k * k) % graph.vocab_size for k in range(4 * length)]
            draft = drafter.draft(Context(tokens, state, states[: row + 1]), length, 0)
            assert len(draft.tokens) <= length and all(0 <= token < graph.vocab_size for token in draft.tokens)
    return graph


def run_case(number: int, seed: int, sound: list[Files], folder: Path) -> Outcome:
    """Case ``number`` of a run: what it does depends on both numbers alone."""
    chance = random.Random(seed * 1_000_003 + number)
    damage, files = mutate(chance.choice(sound), chance)
    size = write(files, folder)
    before, held = tracemalloc.get_traced_memory()[0], mx.get_active_memory()
    tracemalloc.reset_peak()
    mx.reset_peak_memory()
    start = perf_counter()
    try:
        end = REFUSED if load_and_draft(folder) is None else DRAFTED
    except (Exception, RecursionError) as error:
        end = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    seconds = perf_counter() - start
    peak = tracemalloc.get_traced_memory()[1] - before
    peak += max(mx.get_peak_memory() - held, 0)  # a peak that was reset is 0 until something is allocated
    return Outcome(damage, end, size, peak, seconds)


def work(seed: int, first: int, last: int, folder: str, pipe: Connection) -> None:
    """A child: cases ``first`` to ``last``, each announced before it is run and sent when it has ended."""
    sound = sound_files(Path(folder) / "sound")
    tracemalloc.start()
    held = (
        int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() if sys.platform == "linux" else 0
    )
    if held:
        resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY, held + MEMORY))
    for number in range(first, last):
        pipe.send(number)
        pipe.send(run_case(number, seed, sound, Path(folder) / "case"))
    pipe.close()


def run_all(count: int, seed: int, folder: Path) -> list[Outcome]:
    """All cases; a child that dies or hangs fails its case, and another one goes on behind it."""
    sound_files(folder / "sound")
    spawn, found = multiprocessing.get_context("spawn"), []
    with bar(total=count, desc="fuzz", unit="case") as progress:
        while len(found) < count:
            ours, theirs = spawn.Pipe()
            child = spawn.Process(target=work, args=(seed, len(found), count, str(folder), theirs))
            child.start()
            theirs.close()
            said: Any = None
            try:
                while len(found) < count:
                    if not ours.poll(SECONDS if isinstance(said, int) else 10 * SECONDS):
                        found.append(Outcome("?", "hung", 0, 0, SECONDS))
                        break
                    said = ours.recv()
                    if isinstance(said, Outcome):
                        found.append(said)
                        progress.update(1)
            except EOFError:
                child.join()
                found.append(Outcome("?", f"crashed with exit status {child.exitcode}", 0, 0, 0.0))
            finally:
                child.kill()
                child.join()
    return found


def record_of(found: list[Outcome], seed: int) -> dict[str, Any]:
    """What is written down of a run."""

    sized = [o for o in found if o.size]
    worst = max(sized, key=lambda o: max(o.peak - BESIDES, 0) / o.size)
    slowest = max(found, key=lambda o: o.seconds)
    kinds = Counter(o.damage.removesuffix(", resealed") for o in found)
    return {
        "what": "hostile graphs",
        **origin(),
        "seed": seed,
        "cases": len(found),
        "outcomes": dict(Counter(o.end if o.end in (REFUSED, DRAFTED) else "failed" for o in found)),
        "failures": [{"case": number, **outcome._asdict()} for number, outcome in enumerate(found) if not outcome.ok][
            :50
        ],
        "damages": dict(sorted(kinds.items())),
        "allowed_memory": f"{TIMES_SIZE} times the size of the files and {BESIDES >> 20} MiB besides",
        "most_memory": {
            "times_the_files_beyond_that": round(max(worst.peak - BESIDES, 0) / worst.size, 2),
            "peak_bytes": worst.peak,
            "file_bytes": worst.size,
            "damage": worst.damage,
        },
        "largest_peak_bytes": max(o.peak for o in found),
        "slowest": {"seconds": round(slowest.seconds, 3), "damage": slowest.damage},
        "ok": all(o.ok for o in found),
    }


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit status, 1 where a case did not end as it should."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("count", nargs="?", type=int, default=10_000, metavar="N", help="cases (default: 10000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", metavar="FILE", help="append the record to this file")
    parser.add_argument("--case", type=int, help="run this one case here, without limits")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        if args.case is not None:
            tracemalloc.start()
            print(run_case(args.case, args.seed, sound_files(Path(folder) / "sound"), Path(folder) / "case"))
            return 0
        record = record_of(run_all(args.count, args.seed, Path(folder)), args.seed)
    tell(record, args.out)
    return int(not record["ok"])


if __name__ == "__main__":
    sys.exit(main())
