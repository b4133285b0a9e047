"""What each part of the drafter gains: the graph with all of them against the graph without each, by replay.

    python scripts/bench/bench_diet.py STREAMS [--checkout FOLDER] [--sets sms_spam,snips] [--seeds 0,1,2] [--out FILE]

Six T(m), every set, every seed (of nodes and of what is held out). Appends one line of JSON for each set, seed and
variant, with the speed-up under each T(m). ``--checkout`` measures the parts of another checkout of this project, e.g.
one made by ``git worktree add FOLDER COMMIT``: parts that are gone by now can still be measured there. Parts that the
checkout does not have are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parents[2]


def module(*names: str) -> Any:
    """The first of these modules that there is: modules have moved between checkouts."""
    for name in names:
        try:
            return import_module(name)
        except ModuleNotFoundError:
            continue
    raise SystemExit(f"None of {names} is there.")


class Parts:
    """One set's graph in this process's checkout, whole or without some part."""

    def __init__(self, streams: Path, name: str, seed: int, others: Sequence[str]) -> None:
        load = module("daari_mlx.measure.streams", "daari_mlx.streams").load_streams
        self.curves = module("daari_mlx.cost.curves", "daari_mlx.curves").CURVES
        self.drafter = module("daari_mlx.draft.drafter", "daari_mlx.draft").GraphDrafter
        self.replay = module("daari_mlx.measure.replay", "daari_mlx.replay").replay
        self.length = module("daari_mlx.cost.length", "daari_mlx.length")
        self.calibrate = module("daari_mlx.compile.calibrate", "daari_mlx.calibrate")
        self.cells = module("daari_mlx.graph.cells", "daari_mlx.cells")
        self.names = list(module("daari_mlx.graph.source", "daari_mlx.source").NAMES)
        (train,) = streams.glob(f"{name}.*.train.safetensors")
        (test,) = streams.glob(f"{name}.*.test.safetensors")
        known = load(train).items
        prompts, found = {tuple(stream.prompt) for stream in known}, load(test)
        self.test = replace(found, items=tuple(s for s in found.items if tuple(s.prompt) not in prompts))
        self.others = {other: load(*streams.glob(f"{other}.*.test.safetensors")) for other in others if other != name}
        self.train = len(known)
        self.counted = module("stream_graphs").Made(known, seed=seed)._counted

    def speed(self, graph: Any, *, shared: bool = False, on: Any = None) -> dict[str, float]:
        """By T(m), with a drafter for each answer, or one for all of them; ``on`` other answers than the set's own."""
        found, test = {}, on or self.test
        for curve in self.curves.values():

            def make(cost: Any = curve.cost) -> Any:
                return self.drafter(graph, cost=cost, ends=test.ends)

            one = make()
            run = self.replay(test, lambda _, one=one, make=make: one if shared else make(), most=curve.most)
            found[curve.name] = run.speedup(curve.cost)
        return found

    def graph(self, names: list[str], change: Callable[[Any, Any, Any], tuple[Any, Any]] | None = None) -> Any:
        """Calibrated for these sources; ``change`` makes other tables and cases of the counted ones."""
        graph, cases, sources = self.counted
        if change is not None:
            graph, cases = change(graph, cases, sources)
        return replace(graph, arbiter=self.calibrate.fit(cases, sources, names))

    def without_habits(self, graph: Any, cases: Any, sources: Any) -> tuple[Any, Any]:
        """Copies do not know how often copying was right on their node."""
        cells, place = cases.cells.copy(), [source.name for source in sources.all].index("copy")
        cells[:, place] %= self.cells.LENGTHS
        return replace(graph, habits=np.zeros_like(graph.habits)), replace(cases, cells=cells)

    def without_steps(self, names: list[str], change: Callable[[Any, Any, Any], tuple[Any, Any]] | None = None) -> Any:
        """A cell means the same however far from the anchor; ``change`` is that of :meth:`graph`."""
        graph, cases, sources = self.counted
        if change is not None:
            graph, cases = change(graph, cases, sources)
        arbiter = self.calibrate.fit(replace(cases, buckets=np.zeros_like(cases.buckets)), sources, names)
        odds = tuple(np.repeat(values[:, :1], values.shape[1], axis=1) for values in arbiter.odds)
        return replace(graph, arbiter=replace(arbiter, odds=odds))

    def without_scenes(self, names: list[str]) -> Any:
        """One regression for all scenes."""
        kept = self.calibrate._depart
        self.calibrate._depart = lambda features, *_: np.zeros(features.shape[1])
        try:
            return self.graph(names)
        finally:
            self.calibrate._depart = kept

    def variants(self) -> Iterator[tuple[str, dict[str, float]]]:
        """Each with its speed."""
        whole = self.graph(self.names)
        yield "all", self.speed(whole)
        yield "all, one drafter for all answers", self.speed(whole, shared=True)
        for name in self.names:
            yield f"without {name}", self.speed(self.graph([n for n in self.names if n != name]))
        sets = [self.names]
        if "path" in self.names:
            fewer = [name for name in self.names if name not in ("path", "session")]
            graph = self.graph(fewer)
            yield "without path and session", self.speed(graph)
            yield "without path and session, one drafter for all answers", self.speed(graph, shared=True)
            sets.append(fewer)
        for names in sets:
            of = "" if names == self.names else ", path and session"
            if hasattr(self.calibrate, "_depart"):
                yield f"without scenes{of}", self.speed(self.without_scenes(names))
            if any(field.name == "buckets" for field in fields(self.calibrate.Cases)):
                yield f"without steps{of}", self.speed(self.without_steps(names))
            if hasattr(self.cells, "HABITS"):
                yield f"without habits{of}", self.speed(self.graph(names, self.without_habits))
                yield f"without steps and habits{of}", self.speed(self.without_steps(names, self.without_habits))
        for other, test in self.others.items():
            yield f"all, on {other}", self.speed(whole, on=test)
        believed, self.length.Trust.believed = self.length.Trust.believed, lambda _, promised: list(promised)
        yield "without trust", self.speed(whole)
        for other, test in self.others.items():
            yield f"without trust, on {other}", self.speed(whole, on=test)
        self.length.Trust.believed = believed


def commit(checkout: Path) -> str:
    """Of a checkout."""
    command = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("streams", type=Path)
    parser.add_argument("--checkout", type=Path, default=HERE, help="whose parts are measured (default: this one)")
    parser.add_argument("--sets", default="sms_spam,wnut17,wikisql,snips,sgd_toolcall")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--out", type=Path, default=Path("results/diet.jsonl"))
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not args.work:  # with this checkout's own folders first
        folders = [args.checkout.resolve() / name for name in ("", "scripts/bench", "scripts")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
        raise SystemExit(subprocess.call([sys.executable, "-P", *sys.argv, "--work"], env=environment))
    where = module("daari_mlx.measure.bench", "daari_mlx.bench").environment()
    about = {key: where[key] for key in ("device", "python", "platform", "versions")} | {
        "commit": commit(args.checkout),
        "command": shlex.join(["python", *(word for word in sys.argv if word != "--work")]),
    }
    for seed in map(int, args.seeds.split(",")):
        for name in args.sets.split(","):
            begun = perf_counter()
            parts = Parts(args.streams, name, seed, args.sets.split(","))
            for what, speed in parts.variants():
                line = {"measurement": "diet", "set": name, "seed": seed, "train": parts.train, "what": what}
                with args.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({**line, "test": len(parts.test.items), "speedup": speed, **about}) + "\n")
            print(f"{name}, seed {seed}: {perf_counter() - begun:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
