"""Graph and model together against each alone: on recorded streams, under published T(m), for several drafting costs.

    python scripts/bench/bench_pair.py STREAMS --model M [--adapter-path A] [--sets sms_spam] [-n 40] >>
    results/pair.jsonl

STREAMS is as for ``bench_drafters.py``. What the teacher in few bits says along each stream is recorded once, in
``SET.TEACHER.Nbit.npz`` there (with ``--adapter-path`` for streams of the tuned teacher); from then on no model runs.
Times are projected: a teacher's forward over m rows takes T(m); one of the model takes ``draft_cost`` times that, for
whatever it reads, prompts included. One drafter serves all answers of a set, as in a chat.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from bench_drafters import Set
from recorded_model import Bill, RecordedFollower, Said, load_drafts, record_drafts, save_drafts
from recording import origin, tell

from daari_mlx.cost.curves import CURVES, Curve
from daari_mlx.draft.drafter import Drafter, GraphDrafter
from daari_mlx.draft.model import ModelDrafter
from daari_mlx.draft.pair import PairDrafter
from daari_mlx.measure.replay import replay
from daari_mlx.measure.streams import Stream

COSTS = (0.1, 0.3, 0.56)  # of a drafted token: a much smaller model; between; 4 bits under 8 bits


@dataclass(frozen=True)
class Arm:
    """One drafter on one set."""

    speedup: float
    answers: tuple[float, ...]
    tokens_per_forward: float
    acceptance_rate: float
    draft_time: float
    draft_seconds: float
    sources: dict[str, int]

    def as_dict(self) -> dict[str, Any]:
        """All but the single answers."""
        return {k: v for k, v in self.__dict__.items() if k != "answers"}


class Case:
    """One set, one curve, one cost of a drafted token."""

    def __init__(self, one: Set, said: list[Said], curve: Curve, draft_cost: float) -> None:
        self.one, self.said, self.curve, self.draft_cost = one, said, curve, draft_cost
        self.streams = one.test

    def graph(self) -> GraphDrafter:
        """The graph alone."""
        return GraphDrafter(self.one.made.graph, cost=self.curve.cost, ends=self.streams.ends)

    def model(self, follower: RecordedFollower) -> ModelDrafter:
        """The model alone."""
        return ModelDrafter(
            no_model(),
            cost=self.curve.cost,
            draft_cost=self.draft_cost,
            ends=self.streams.ends,
            follower=follower,
        )

    def run(self, make: Callable[[RecordedFollower], Drafter]) -> Arm:
        """Replay one drafter over all answers."""
        bill = Bill()
        cost, known = self.curve.cost, self.curve.cost.rows[-1]
        least = min(t / m for m, t in zip(cost.rows, cost.relative, strict=True))
        follower = RecordedFollower(lambda m: self.draft_cost * (cost(m) if m <= known else m * least), bill)
        drafter = make(follower)
        place, bills = iter(range(len(self.streams.items))), []

        def drafter_of(stream: Stream) -> Drafter:
            bills.append(bill.time)
            follower.follow(stream, self.said[next(place)])
            return drafter

        found = replay(self.streams, drafter_of, most=self.curve.most)
        bills.append(bill.time)
        spent = [after - before for before, after in pairwise(bills)]
        times = [answer.time(cost) + extra for answer, extra in zip(found.answers, spent, strict=True)]
        figures = found.as_dict(cost)
        return Arm(
            found.tokens / sum(times),
            tuple(a.tokens / t for a, t in zip(found.answers, times, strict=True)),
            found.tokens_per_forward,
            figures["acceptance_rate"],
            bill.time,
            figures["draft_seconds"],
            figures["sources"],
        )

    def record(self) -> dict[str, Any]:
        """The line of this case."""
        graph = self.run(lambda _: self.graph())
        model = self.run(self.model)
        pair = self.run(
            lambda follower: PairDrafter(
                self.one.made.graph, self.model(follower), cost=self.curve.cost, ends=self.streams.ends
            )
        )
        better = max(graph.speedup, model.speedup)
        return {
            "measurement": "pair",
            **self.one.about(),
            "answers": len(self.streams.items),
            "curve": self.curve.name,
            "draft_cost": self.draft_cost,
            "agreement": agreement(self.said, self.streams.items),
            "graph": graph.as_dict(),
            "model": model.as_dict(),
            "pair": pair.as_dict(),
            "pair_over_better": pair.speedup / better,
            "pair_over_better_by_answer": geometric_mean(
                p / max(g, m) for p, g, m in zip(pair.answers, graph.answers, model.answers, strict=True)
            ),
        }


def no_model() -> Any:
    """An empty module, in place of one whose words are recorded."""
    import mlx.nn as nn

    return nn.Module()


def agreement(said: list[Said], streams: tuple[Stream, ...]) -> float:
    """The share of tokens that model and teacher have in common."""
    pairs = [zip(own, stream.answer, strict=True) for (own, _), stream in zip(said, streams, strict=True)]
    same = [a == b for answer in pairs for a, b in answer]
    return sum(same) / len(same)


def recorded(args: argparse.Namespace, one: Set, bits: int) -> list[Said]:
    """What the teacher in so many bits says along the streams; recorded now where it is not yet."""
    path = args.streams / f"{one.name}.{one.teacher}.{bits}bit.npz"
    if not path.exists():
        import mlx.core as mx

        from daari_mlx.teacher.load import load_teacher
        from daari_mlx.tier.make import dequantised, fuse, quantised, read_config

        tuned = one.teacher == "tuned"
        teacher = load_teacher(args.model, adapter_path=args.adapter_path if tuned else None)
        fuse(teacher.model)
        small = quantised(teacher.model, read_config(args.model), bits, 64)
        save_drafts(record_drafts(dequantised(*small, mx.float32)[0], one.test.items[: args.n]), path)
    return load_drafts(path)


def main() -> None:
    """Measure, and print a JSON line for each set, model, curve and cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("streams", type=Path)
    parser.add_argument("--model", required=True, help="the teacher that the streams are of")
    parser.add_argument("--adapter-path", help="its adapter, for tuned streams")
    parser.add_argument("--sets", default="sms_spam.tuned,snips.tuned,spec_bench.base")
    parser.add_argument("--bits", type=int, nargs="+", default=[4], help="of the drafting models (default: 4)")
    parser.add_argument("--curves", default="linear,m3-max-4bit,m4-pro-4bit,linux-openblas")
    parser.add_argument("-n", type=int, default=40, help="answers of a set (default: 40)")
    args = parser.parse_args()
    about = origin()
    for name in args.sets.split(","):
        one = Set(args.streams, *name.split("."))
        for bits in args.bits:
            said = recorded(args, one, bits)
            one.test = replace(one.test, items=one.test.items[: len(said)])
            for curve in (CURVES[c] for c in args.curves.split(",")):
                for draft_cost in COSTS:
                    line = Case(one, said, curve, draft_cost).record()
                    tell({**line, "bits": bits, **about})


if __name__ == "__main__":
    main()
