"""Every drafter on recorded streams, under every published T(m), and what each part of the graph is worth.

    python scripts/bench/bench_drafters.py STREAMS [--sets sms_spam,snips] [--out results/replay.jsonl]

STREAMS holds ``SET.TEACHER.train.safetensors`` and ``SET.TEACHER.test.safetensors`` of each data set, as ``daari-mlx
bench --save-streams`` writes them. Where a set has no training streams, every other one of its test streams is compiled
instead, and the record says so. With ``arctic_inference`` installed, its suffix decoding runs too. Appends one line of
JSON for each (set, teacher, drafter, curve), each (set, teacher), with the reliability of what the graph promises, each
(set, teacher, ablation, curve) and each (set, teacher, tree, curve).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from hindsight import Hindsight
from recording import SHORT, append, origin
from stream_graphs import Made, bytes_for, graph_bytes, loudest
from suffix_decoding import DEPTH, SuffixDecoding
from tree_replay import fresh_table, replay_branching, replay_static

from daari_mlx.cost.curves import CURVES, Curve
from daari_mlx.draft.drafter import Draft, GraphDrafter
from daari_mlx.draft.lookup import LookupDrafter
from daari_mlx.graph.graph import Graph
from daari_mlx.graph.outlook import Outlook
from daari_mlx.graph.source import NAMES
from daari_mlx.measure.baselines import OracleDrafter, RecyclingDrafter, StepChances
from daari_mlx.measure.own_text import promised_on
from daari_mlx.measure.replay import Replayed, replay
from daari_mlx.measure.streams import Streams, load_streams
from daari_mlx.measure.suffix import SuffixDrafter

SETTINGS = list(product((1.0, 2.0, 4.0), (0.1, 0.3, 0.5, 0.7)))  # max_spec_factor, min_token_prob
DRAWS = 2000  # of answers, for an interval
RELIABLE = 200  # draft tokens of a tenth, from which on its share means something
ABLATED = ("linear", "m3-max-4bit")
BRANCHES = (0, 1, 3)
STATES = ["edge", "near"]  # what looks at hidden states


class Arctic:
    """The suffix decoding of ``arctic-inference``, behind our interface."""

    layer = None

    def __init__(self, answers: list[list[int]], factor: float, least: float) -> None:
        from arctic_inference.suffix_decoding import SuffixDecodingCache

        self.cache, self.factor, self.least = SuffixDecodingCache(DEPTH), factor, least
        self.request, self.tokens, self.read = 0, [], 0
        for answer in answers:
            self.cache.start_request(self.request, [])
            self.cache.add_active_response(self.request, answer)
            self.cache.stop_request(self.request)
            self.request += 1

    def draft(self, context: Any, limit: int, pending: int = 0) -> Draft:
        """See :meth:`daari_mlx.draft.drafter.Drafter.draft`."""
        new = self.tokens[self.read :]
        if new:
            self.cache.add_active_response(self.request, new)
        if context.tokens is not self.tokens:
            if self.tokens:
                self.cache.stop_request(self.request)
                self.request += 1
            self.tokens = context.tokens
            self.cache.start_request(self.request, self.tokens)
        self.read = len(self.tokens)
        found = self.cache.speculate(
            self.request,
            self.tokens[-DEPTH:],
            max_spec_tokens=limit,
            max_spec_factor=self.factor,
            min_token_prob=self.least,
        )
        return Draft(list(found.token_ids))


def sets_parser(about: str, out: str) -> argparse.ArgumentParser:
    """A command line that reads sets of streams and appends records to a file."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("streams", type=Path)
    parser.add_argument("--sets", help="only these, e.g. sms_spam,snips")
    parser.add_argument("--out", type=Path, default=Path(out))
    return parser


def sets(streams: Path, wanted: str | None) -> Iterator[Set]:
    """The sets of a folder, or those named."""
    for path in sorted(streams.glob("*.test.safetensors")):
        name, teacher = path.name.split(".")[:2]
        if not wanted or name in wanted.split(","):
            yield Set(streams, name, teacher)


class Set:
    """One data set with one teacher."""

    def __init__(self, folder: Path, name: str, teacher: str) -> None:
        self.name, self.teacher = name, teacher
        test = load_streams(folder / f"{name}.{teacher}.test.safetensors")
        train = folder / f"{name}.{teacher}.train.safetensors"
        self.halved = not train.exists()
        self.train = test.items[::2] if self.halved else load_streams(train).items
        self.test = replace(test, items=test.items[1::2]) if self.halved else test
        known = {tuple(s.prompt) for s in self.train}
        fresh = tuple(s for s in self.test.items if tuple(s.prompt) not in known)
        self.overlap = len(self.test.items) - len(fresh)
        self.test: Streams = replace(self.test, items=fresh)
        self.made = Made(self.train)
        self.answers = [s.answer for s in self.train]
        self.suffix_decoding: dict[int, list[tuple[Replayed, float, float]]] = {}

    def about(self) -> dict[str, Any]:
        """What every record of it says."""
        return {
            "set": self.name,
            "teacher": self.teacher,
            "train": len(self.train),
            "train_is": "every other test stream" if self.halved else "train",
            "left_out_as_known": self.overlap,
            "nodes": self.made.graph.size,
            "graph_bytes": graph_bytes(self.made.graph),
        }

    def run(self, graph: Graph, curve: Curve, *, shared: bool = False) -> Replayed:
        """The graph's drafter; ``shared``: one for all answers, which then knows what became of the earlier ones."""

        def make() -> GraphDrafter:
            return GraphDrafter(graph, cost=curve.cost, ends=self.test.ends)

        drafter = make()
        return replay(self.test, lambda stream: drafter if shared else make(), most=curve.most)

    def drafters(self, curve: Curve) -> Iterator[tuple[str, Replayed, dict[str, Any]]]:
        """Every drafter with its settings."""
        cost, most, ends = curve.cost, curve.most, self.test.ends
        yield "graph", self.run(self.made.graph, curve), {}
        yield "graph, one drafter for all answers", self.run(self.made.graph, curve, shared=True), {}
        yield "hidden states alone", self.run(self.made.hearing(STATES), curve), {"sources": STATES}
        yield "plain graph", self.run(self.made.hearing(["edge"]), curve), {"sources": ["edge"]}
        lookup = LookupDrafter(cost=cost)
        yield "prompt lookup", replay(self.test, lambda stream: lookup, most=most), {}
        behind = [s.tokens[s.start - 1 :] for s in self.train]
        suffix = SuffixDrafter(behind, cost, ends, [s.tokens[: s.start - 1] for s in self.train])
        yield "longest suffix, calibrated", replay(self.test, lambda stream: suffix, most=most), {}
        public = find_spec("arctic_inference") is not None
        name = "arctic-inference" if public else "ours"  # both draft the same tokens; the public one is faster
        yield f"suffix decoding, {name}", *self.best(Arctic if public else SuffixDecoding, curve)
        table, steps = fresh_table(self.train), StepChances()
        recycled = replay(self.test, lambda stream: RecyclingDrafter(stream, table, steps, cost, ends), most=most)
        yield "token recycling, path", recycled, {}
        for name, any_source in (("graph, length in hindsight", False), ("sources, all in hindsight", True)):
            made = partial(Hindsight, self.made.graph, cost, any_source=any_source)
            yield name, replay(self.test, made, most=most), {}
        yield "oracle", replay(self.test, lambda stream: OracleDrafter(stream, cost), most=most), {}

    def best(self, make: Callable[..., Any], curve: Curve) -> tuple[Replayed, dict[str, Any]]:
        """Of all settings the one that is fastest under this curve."""
        if curve.most not in self.suffix_decoding:  # what it drafts does not depend on the curve
            found = self.suffix_decoding[curve.most] = []
            for factor, least in SETTINGS:
                drafter = make(self.answers, factor, least)
                found.append((replay(self.test, lambda stream, d=drafter: d, most=curve.most), factor, least))
        run, factor, least = max(self.suffix_decoding[curve.most], key=lambda f: f[0].speedup(curve.cost))
        return run, {"max_spec_factor": factor, "min_token_prob": least, "best_of": len(SETTINGS)}

    def ablations(self) -> Iterator[tuple[str, Graph]]:
        """The graph in many variants."""
        yield "all sources", self.made.graph
        for name in NAMES:
            yield f"without {name}", self.made.hearing([n for n in NAMES if n != name])
        for name in NAMES:
            yield f"{name} alone", self.made.hearing([name])
        yield "maximum over sources", loudest(self.made.graph)
        for scale in (0.5, 2.0):
            yield f"nodes x {scale:g}", replace(self.made, scale=scale).graph
        for layer in self.test.layers:
            if layer != "final":
                yield f"layer {layer}", replace(self.made, layer=layer).graph
        for dimensions in (32, 128):
            yield f"{dimensions} dimensions", replace(self.made, dimensions=dimensions).graph
        for share in (0.5, 0.25, 0.1):
            limit = bytes_for(self.made.graph, share)
            yield f"{share:.0%} of the bytes that grow", replace(self.made, max_bytes=limit).graph
        for seed in (1, 2):
            yield f"seed {seed}", replace(self.made, seed=seed).graph


def drafters(one: Set) -> Iterator[dict[str, Any]]:
    """A line for each drafter and curve."""
    for curve in CURVES.values():
        for name, run, settings in one.drafters(curve):
            line = {"measurement": "drafters", **one.about(), "drafter": name, "curve": curve.name, **settings}
            yield line | run.as_dict(curve.cost)


def reliability(one: Set) -> Iterator[dict[str, Any]]:
    """One line: what was promised at every place of every test answer, and what share of it came true, by tenths."""
    outlook = promised_on(one.made.graph, one.test)
    each = [Outlook((answer,)).reliability() for answer in outlook.answers]
    tokens = np.array([[bin.tokens for bin in answer] for answer in each])
    excess = np.array([[bin.promised * bin.tokens - bin.right for bin in answer] for answer in each])
    drawn = np.random.default_rng(0).integers(
        len(each), size=(DRAWS, len(each))
    )  # answers, since their tokens hang together
    gaps = excess[drawn].sum(axis=1) / np.maximum(tokens[drawn].sum(axis=1), 1)
    low, high = np.quantile(gaps, (0.025, 0.975), axis=0)
    bins = [
        {
            "tokens": bin.tokens,
            "promised": bin.promised,
            "right": bin.right / bin.tokens,
            "gap_low": float(low[k]),
            "gap_high": float(high[k]),
        }
        for k, bin in enumerate(outlook.reliability())
        if bin.tokens
    ]
    sure = [abs(b["promised"] - b["right"]) for b in bins if b["tokens"] >= RELIABLE]
    yield {"measurement": "reliability", **one.about(), "bins": bins, "greatest_gap": max(sure, default=None)}


def trees(one: Set) -> Iterator[dict[str, Any]]:
    """A line for each number of branches and curve."""
    beyond = "81 rows lie beyond the curve: taken at its last row, so this speed-up is too high"
    for curve in CURVES.values():
        line = {"measurement": "tree", **one.about(), "curve": curve.name}
        for branches in BRANCHES:
            found = replay_branching(one.test, one.made.graph, curve, branches)
            yield line | {"branches": branches, **found.as_dict()}
        found = replay_static(one.test, fresh_table(one.train), curve)
        yield line | {"branches": "Token Recycling's static tree", "note": beyond, **found.as_dict()}


def ablations(one: Set) -> Iterator[dict[str, Any]]:
    """A line for each variant of the graph and curve."""
    for what, graph in one.ablations():
        for name in ABLATED:
            curve = CURVES[name]
            line = {"measurement": "ablation", **one.about(), "what": what, "curve": name}
            size = {"nodes": graph.size, "graph_bytes": graph_bytes(graph)}
            yield line | size | one.run(graph, curve).as_dict(curve.cost)


MEASURES = {f.__name__: f for f in (drafters, reliability, trees, ablations)}


def main() -> None:
    """Measure, and append lines."""
    parser = sets_parser(__doc__, "results/replay.jsonl")
    parser.add_argument("--only", choices=MEASURES, help="only this measurement")
    args = parser.parse_args()
    about = origin(*SHORT)
    chosen = [MEASURES[args.only]] if args.only else MEASURES.values()
    for measure, one in product(chosen, list(sets(args.streams, args.sets))):  # the dearest last
        start = perf_counter()
        for line in measure(one):
            append({**line, **about}, args.out)
        print(f"{measure.__name__}, {one.name}: {perf_counter() - start:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
