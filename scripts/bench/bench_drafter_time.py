"""The drafter's own time in two checkouts of this project, in turns on one machine: a round, and a drafted token.

    python scripts/bench/bench_drafter_time.py STREAMS OLD [--sets sms_spam,snips] [--repeats 7] [--out FILE]

OLD is another checkout, e.g. made by ``git worktree add OLD COMMIT``. Each checkout compiles its own graph from
``STREAMS/SET.TEACHER.train.safetensors`` and then drafts ahead of every token of the test answers: one token (what a
round costs in any case), as many as it knows up to 24 (what each further token costs), and as many as pay under the
linear T(m). A repeat runs both checkouts, every second one in the other order; of each place the least of all repeats
counts, since other programs of the machine take their time too. Appends one line of JSON for each set.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from statistics import quantiles
from time import perf_counter
from typing import Any

HERE = Path(__file__).resolve().parents[2]
MOST = 24  # tokens of a long draft
LONG = 3  # further tokens that a long draft has at least, to tell what one costs
WHATS = ("round", "token", "draft")  # µs: a draft of one token; each further one; a draft as long as pays


def find(name: str, *modules: str) -> Any:
    """``name`` of the first of these modules that has it: modules have moved between checkouts."""
    for module in modules:
        try:
            return getattr(import_module(module), name)
        except (ModuleNotFoundError, AttributeError):
            continue
    raise SystemExit(f"{name} is in none of {modules}.")


def made(streams: Path, name: str) -> tuple[Any, Any]:
    """A set's train answers, from which graphs are made, and its test answers."""
    load = find("load_streams", "daari_mlx.measure.streams", "daari_mlx.streams")
    (train,) = streams.glob(f"{name}.*.train.safetensors")
    (test,) = streams.glob(f"{name}.*.test.safetensors")
    return find("Made", "stream_graphs")(load(train).items), load(test)


class Timed:
    """A graph's drafter ahead of every token of some answers, in this process's checkout."""

    def __init__(self, graph: Any, test: Any) -> None:
        self.drafter = find("GraphDrafter", "daari_mlx.draft.drafter", "daari_mlx.draft")
        self.context = find("Context", "daari_mlx.draft.drafter", "daari_mlx.draft")
        self.cost = find("CURVES", "daari_mlx.cost.curves", "daari_mlx.curves")["linear"].cost
        self.graph, self.test = graph, test

    def drafts(self, **options: Any) -> tuple[list[float], list[int]]:
        """µs and tokens of a draft ahead of every token but the first of each answer, a drafter an answer."""
        times, tokens = [], []
        for stream in self.test.items:
            drafter = self.drafter(self.graph, ends=self.test.ends, **options)
            context = self.context(list(stream.prompt), None)
            for row, said in enumerate(stream.answer):
                context.state = stream.states[self.graph.layer][row]
                begun = perf_counter()
                draft = drafter.draft(context, MOST, 0)
                if row:  # ahead of the first the prompt is read besides
                    times.append((perf_counter() - begun) * 1e6)
                    tokens.append(len(draft.tokens))
                context.tokens.append(said)
        return times, tokens

    def __call__(self) -> dict[str, list[float]]:
        """At every place, in their order."""
        one, had = self.drafts(num_draft_tokens=1)
        many, have = self.drafts(num_draft_tokens=MOST)
        paying, _ = self.drafts(cost=self.cost)
        self.further = [n - h for h, n in zip(had, have, strict=True)]  # tokens of the long draft beyond the first
        return {"round": one, "long": many, "draft": paying, "further": self.further}


def work(streams: Path, names: list[str]) -> None:
    """Measure each set that is asked for, a line on stdin a measurement."""
    parts = {name: made(streams, name) for name in names}
    sets = {name: Timed(graphs.graph, test) for name, (graphs, test) in parts.items()}
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(sets[line.strip()]()), flush=True)


def begin(checkout: Path, streams: Path, names: str) -> subprocess.Popen[str]:
    """A worker in a checkout."""
    folders = [checkout, checkout / "scripts" / "bench", checkout / "scripts"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
    command = [sys.executable, "-P", __file__, str(streams), "--sets", names, "--work"]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ask(worker: subprocess.Popen[str], name: str) -> dict[str, list[float]]:
    """One measurement."""
    assert worker.stdin and worker.stdout
    worker.stdin.write(f"{name}\n")
    worker.stdin.flush()
    found: dict[str, list[float]] = json.loads(worker.stdout.readline())
    return found


def least(repeats: list[dict[str, list[float]]]) -> dict[str, list[float]]:
    """At every place the least of all repeats: what other programs take is not the drafter's."""
    found = {what: [min(times) for times in zip(*(r[what] for r in repeats), strict=True)] for what in repeats[0]}
    places = zip(found["round"], found["long"], found["further"], strict=True)
    found["token"] = [(long - one) / further for one, long, further in places if further >= LONG]
    return found


def spread(times: list[float]) -> dict[str, float]:
    """Median and quartiles over places."""
    lower, middle, upper = quantiles(times)
    return {"median": middle, "lower": lower, "upper": upper}


def commit(checkout: Path) -> str:
    """Of a checkout."""
    return subprocess.run(
        ["git", "-C", checkout, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("streams", type=Path)
    parser.add_argument("old", type=Path, nargs="?")
    parser.add_argument("--sets", default="sms_spam")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path("results/drafter_time.jsonl"))
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    names = args.sets.split(",")
    if args.work:
        return work(args.streams, names)
    if args.old is None:
        parser.error("name the other checkout")
    environment = find("environment", "daari_mlx.measure.bench")()
    about = {key: environment[key] for key in ("device", "python", "platform", "versions")}
    about |= {"old": commit(args.old), "new": commit(HERE), "command": shlex.join(["python", *sys.argv])}
    workers = {"old": begin(args.old, args.streams, args.sets), "new": begin(HERE, args.streams, args.sets)}
    for worker in workers.values():
        assert worker.stdout
        while worker.stdout.readline() != "ready\n":
            if worker.poll() is not None:
                raise SystemExit("A worker ended.")
    for name in names:
        found: dict[str, list[dict[str, list[float]]]] = {"old": [], "new": []}
        for repeat in range(args.repeats):
            for which in ("old", "new") if repeat % 2 == 0 else ("new", "old"):
                found[which].append(ask(workers[which], name))
        line: dict[str, Any] = {"measurement": "drafter time", "unit": "µs", "set": name, "repeats": args.repeats}
        times = {which: least(repeats) for which, repeats in found.items()}
        for what in WHATS:
            line[what] = {which: spread(times[which][what]) for which in times}
            line[what]["share"] = line[what]["new"]["median"] / line[what]["old"]["median"]
        print({what: line[what] for what in WHATS}, file=sys.stderr)
        with args.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line | about) + "\n")
    for worker in workers.values():
        worker.terminate()


if __name__ == "__main__":
    main()
