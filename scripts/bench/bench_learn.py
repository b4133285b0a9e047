"""Learning from nothing, answer by answer, on recorded streams: each is first drafted for, then learnt.

    python scripts/bench/bench_learn.py STREAMS... [--curves linear,m3-max-4bit] [--out results/learn.jsonl]

STREAMS are files that ``daari-mlx bench --save-streams`` wrote, named after their set. Against learning stand plain
decoding (1.0 by definition), suffix decoding that hears the same answers, at the best of its settings, and a graph
compiled from exactly the answers so far. With ``--on`` learning begins with a graph that is compiled of other streams,
e.g. of another set's: what a text that drifts does. Appends a line of JSON for each (set, T(m)).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from time import process_time
from typing import Any

from bench_drafters import SETTINGS, Arctic
from recording import SHORT, append, origin
from stream_graphs import Made
from suffix_decoding import SuffixDecoding

from daari_mlx.cost.curves import CURVES, Curve
from daari_mlx.draft.drafter import GraphDrafter
from daari_mlx.graph.graph import Graph
from daari_mlx.learn.drafter import LearningDrafter
from daari_mlx.learn.learner import Learner, Snapshot
from daari_mlx.measure.replay import DrafterOf, Replayed, replay
from daari_mlx.measure.streams import Stream, Streams, load_streams

WINDOWS = ((0, 5), (5, 10), (10, 20), (20, 30), (30, 50), (50, 100), (100, 150), (150, 200), (200, 300))
COMPILED = {5: (5, 10), 10: (10, 20), 20: (20, 30), 30: (30, 50), 100: (100, 150), 300: (300, 330)}
PLAIN_MS, DRAFTED = 30.0, 3.0  # of a plain token, and how much faster drafted ones come: learning has a share of that


class Teller:
    """Stands for a learner whose snapshots were taken before: that of each stream, as it was when it began."""

    def __init__(self, snapshots: Sequence[Snapshot], layer: int | str) -> None:
        self._snapshots, self.layer, self.number = snapshots, layer, -1

    @property
    def snapshot(self) -> Snapshot:
        """That of the stream at hand."""
        return self._snapshots[max(self.number, 0)]


def learn(streams: Streams, base: Graph | None = None) -> tuple[list[Snapshot], float]:
    """What a learner knows before each stream, and the seconds that learning took in all."""
    first = streams.items[0]
    width = first.states["final"].shape[1]
    passed = 0.0  # seconds, as if each answer came at the speed that drafting gives
    options: dict[str, Any] = {"beside": False, "clock": lambda: passed}
    vocabulary = int(streams.teacher["vocab_size"])
    if base is None:
        learner = Learner.of_nothing(streams.teacher, width, vocabulary, **options)
    else:
        learner = Learner(base, **options)
    snapshots, seconds = [], 0.0
    for stream in streams.items:
        snapshots.append(learner.snapshot)
        passed += len(stream.answer) * PLAIN_MS / 1e3 / DRAFTED
        start = process_time()
        learner.hear(stream.prompt, stream.answer, [stream.states["final"][: len(stream.answer) + 1]])
        seconds += process_time() - start
    return snapshots, seconds


def learnt(streams: Streams, snapshots: Sequence[Snapshot], curve: Curve) -> Replayed:
    """Every stream, drafted by what was known before it."""
    teller = Teller(snapshots, "final")
    drafter = LearningDrafter(teller, cost=curve.cost, ends=streams.ends)  # type: ignore[arg-type]

    def of(stream: Stream) -> LearningDrafter:
        teller.number += 1
        return drafter

    return replay(streams, of, most=curve.most)


def part(run: Replayed, begin: int, end: int) -> Replayed:
    """Some of the answers."""
    return Replayed(run.answers[begin:end])


def suffix(streams: Streams, curve: Curve) -> tuple[Replayed, dict[str, Any]]:
    """Suffix decoding that hears the same answers, at the best of its settings."""
    make = Arctic if find_spec("arctic_inference") else SuffixDecoding
    found = []
    for factor, least in SETTINGS:
        drafter = make([], factor, least)
        found.append((replay(streams, lambda stream, d=drafter: d, most=curve.most), factor, least))
    run, factor, least = max(found, key=lambda f: f[0].speedup(curve.cost))
    return run, {"of": make.__name__, "max_spec_factor": factor, "min_token_prob": least}


def fixed_drafter(graph: Graph, curve: Curve, streams: Streams) -> DrafterOf:
    """A graph that stays as it is."""
    return lambda stream: GraphDrafter(graph, cost=curve.cost, ends=streams.ends)


def rates(run: Replayed) -> list[float]:
    """Tokens a forward of every answer."""
    return [round(answer.tokens / len(answer.rounds), 2) for answer in run.answers]


def base_graph(path: Path) -> Graph:
    """The graph of some streams, for their teacher."""
    streams = load_streams(path)
    return replace(Made(streams.items).built.graph, teacher=streams.teacher)


def figures(run: Replayed, cost: Any) -> dict[str, float]:
    """Tokens a forward, projected speed, and the slowest answer."""
    return {
        "tokens_per_forward": round(run.tokens_per_forward, 3),
        "speedup": round(run.speedup(cost), 3),
        "least": round(min(answer.speedup(cost) for answer in run.answers), 3),
    }


def main() -> None:
    """Replay every set under every curve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("streams", nargs="+", type=Path)
    parser.add_argument("--curves", default=",".join(CURVES))
    parser.add_argument("--first", type=int)
    parser.add_argument("--on", type=Path, help="streams of which a graph is compiled that learning begins with")
    parser.add_argument("--no-suffix", action="store_true")
    parser.add_argument("--no-compiled", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    base = None if args.on is None else base_graph(args.on)
    for path in args.streams:
        streams = load_streams(path)
        streams = replace(streams, items=streams.items[: args.first])
        count = len(streams.items)
        snapshots, seconds = learn(streams, base)
        windows = [(a, min(b, count)) for a, b in WINDOWS if a < count] + [(0, count)]
        compiled = (
            {}
            if args.no_compiled
            else {k: Made(streams.items[:k]).built.graph for k, (a, _) in COMPILED.items() if a < count}
        )
        for name in args.curves.split(","):
            curve = CURVES[name]
            run = learnt(streams, snapshots, curve)
            record: dict[str, Any] = {"set": path.name.split(".")[0], "curve": name, "answers": count}
            if base is not None:
                alone = replay(streams, fixed_drafter(base, curve, streams), most=curve.most)
                record |= {"on": args.on.name.split(".")[0], "on_alone": figures(alone, curve.cost)}
            record["learning"] = {f"{a}-{b}": figures(part(run, a, b), curve.cost) for a, b in windows}
            if not args.no_suffix:
                other, settings = suffix(streams, curve)
                record["suffix"] = {f"{a}-{b}": figures(part(other, a, b), curve.cost) for a, b in windows}
                record["suffix_settings"] = settings
            record["compiled"] = {}
            for k, graph in compiled.items():
                a, b = COMPILED[k][0], min(COMPILED[k][1], count)
                fixed = replay(
                    replace(streams, items=streams.items[a:b]), fixed_drafter(graph, curve, streams), most=curve.most
                )
                record["compiled"][str(k)] = {
                    **figures(fixed, curve.cost),
                    "learning": figures(part(run, a, b), curve.cost),
                }
            record["learning_seconds"] = round(seconds, 3)
            record["each"] = {"learning": rates(run)}
            if not args.no_suffix:
                record["each"]["suffix cache"] = rates(other)
            if base is not None:
                record["each"][f"graph of {record['on']} alone"] = rates(alone)
            record |= origin(*SHORT)
            if args.out:
                append(record, args.out)
            show(record)


def show(record: dict[str, Any]) -> None:
    """A table for a person."""
    print(f"\n{record['set']} {record['curve']}  ({record['learning_seconds']} s of learning)")
    for window, found in record["learning"].items():
        other = record.get("suffix", {}).get(window)
        print(f"  {window:9} learning {_short(found)}   suffix {_short(other)}")
    for k, found in record["compiled"].items():
        print(f"  of {k:>4}   compiled {_short(found)}   learning {_short(found['learning'])}")


def _short(found: dict[str, float] | None) -> str:
    if found is None:
        return "-"
    return f"{found['tokens_per_forward']:6.2f} t/f {found['speedup']:5.2f}x (least {found['least']:.2f})"


if __name__ == "__main__":
    main()
