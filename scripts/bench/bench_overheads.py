"""What the drafter itself costs, without a teacher: a walked token, and a re-anchoring, on made-up graphs.

Usage: ``python scripts/bench/bench_overheads.py [--json] [--graph GRAPH --streams FILE]``. "cold" samples follow a
sweep over memory that drives the graph out of the processor's caches, as a teacher's forward does between two rounds.
With a graph and recorded streams, also what a round of its drafter costs at every place of those answers: to anchor,
to ask all sources for the first token, and for each further token.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
from recording import SHORT, origin

from daari_mlx.cost.length import MAX_DRAFT
from daari_mlx.graph.graph import Graph
from daari_mlx.graph.nodes import Nodes, Projection
from daari_mlx.graph.sources import Sources
from daari_mlx.ground.progress import bar
from daari_mlx.measure.records import Spread
from daari_mlx.measure.streams import Streams, load_streams
from daari_mlx.share.find import load_graph

VOCAB, DIMENSIONS, EDGES = 50_000, 64, 8
SHAPES = ((4096, 576), (4096, 4096), (8192, 576), (8192, 4096))  # nodes, width of the teacher's states
TARGETS = {"walk": 5.0, "re-anchor": 300.0}  # µs a token and µs a round, at 4096 nodes
DRAFTER_TARGETS = {"anchor": 200.0, "start": 200.0, "draft": 3.0}  # µs, of a graph's own drafter
LONG = 6  # tokens of a draft from which on its time is told for each
REPEATS = 400
SWEPT_BYTES = 64 << 20


def made_up_graph(nodes: int, width: int, seed: int = 0) -> Graph:
    """A random graph of the right sizes, all of whose walks go on for ever.

    Args:
        nodes: N, with ``EDGES`` edges each.
        width: H, of the teacher's states.
    """
    rng = np.random.default_rng(seed)
    projection = Projection(
        mean=rng.normal(size=width).astype(np.float32),
        basis=rng.normal(size=(width, DIMENSIONS)).astype(np.float32),
    )
    tokens = np.stack([rng.choice(VOCAB, EDGES, replace=False) for _ in range(nodes)]).astype(np.int32)
    keys = np.arange(nodes, dtype=np.int64)[:, None] * VOCAB + tokens
    order = np.argsort(keys, axis=None)
    graph = Graph(
        nodes=Nodes(projection, rng.normal(size=(nodes, DIMENSIONS)).astype(np.float32)),
        layer="final",
        vocab_size=VOCAB,
        edge_start=np.arange(0, nodes * EDGES + 1, EDGES, dtype=np.int32),
        edge_token=tokens.ravel(),
        edge_probability=np.tile(np.float32(0.5) ** np.arange(1, EDGES + 1, dtype=np.float32), nodes),
        support=np.full(nodes, 100, np.int32),
        step_key=keys.ravel()[order],
        step_node=rng.integers(0, nodes, nodes * EDGES).astype(np.int32),
    )
    graph.check()
    return graph


def measure(nodes: int, width: int, repeats: int = REPEATS) -> Iterator[dict[str, Any]]:
    """One record for each of walk and re-anchor, warm and cold; times in µs."""
    graph, rng = made_up_graph(nodes, width), np.random.default_rng(1)
    states = rng.normal(size=(64, width)).astype(np.float32)
    starts, tokens = rng.integers(0, nodes, repeats).tolist(), graph.edge_token[:: EDGES + 1].tolist()

    def walk(index: int) -> int:
        return len(graph.follow(starts[index], MAX_DRAFT)[0])

    def re_anchor(index: int) -> int:
        graph.step(graph.nodes.anchor(states[index % len(states)])[0], tokens[index % len(tokens)])
        return 1

    timed: dict[str, Callable[[int], int]] = {"walk": walk, "re-anchor": re_anchor}
    for what, call in timed.items():
        for cold in (False, True):
            spread = Spread.of(_times(call, repeats, cold=cold))
            target = TARGETS[what] if nodes == SHAPES[0][0] else None
            yield {
                "what": what,
                "unit": "µs per drafted token" if what == "walk" else "µs per round",
                "nodes": nodes,
                "hidden_size": width,
                "dimensions": DIMENSIONS,
                "cold": cold,
                "n": repeats,
                "median": spread.median,
                "lower": spread.lower,
                "upper": spread.upper,
                "most": spread.most,
                "target": target,
                "met": None if target is None else spread.median <= target,
            }


def measure_drafter(graph: Graph, streams: Streams, repeats: int) -> Iterator[dict[str, Any]]:
    """One record for each part of a drafter's round, warm and cold; times in µs."""
    sources = Sources(graph, graph.arbiter.names)
    places = [
        (stream.tokens[:place], stream.states[graph.layer][place - stream.start])
        for stream in streams.items
        for place in range(stream.start, len(stream.tokens))
    ]
    places = [places[k % len(places)] for k in range(repeats)]
    anchors = [graph.nodes.anchor(state) for _, state in places]

    def anchor(index: int) -> int:
        graph.nodes.anchor(places[index][1])
        return 1

    def start(index: int) -> int:
        sources.start(said, anchors[index][0], state=anchors[index][1])
        return 1

    def draft(index: int) -> int:
        return len(graph.arbiter.propose(sources.all, moments[index], MAX_DRAFT).tokens)

    for cold in (False, True):
        for what, call, unit in (
            ("anchor", anchor, "round"),
            ("start", start, "round"),
            ("draft", draft, "drafted token"),
        ):
            times = []
            swept = np.zeros(SWEPT_BYTES // 8) if cold else None
            for index, (tokens, _) in enumerate(places):
                said = list(tokens)
                sources.open(said)
                moments = {
                    index: sources.start(said, anchors[index][0], state=anchors[index][1])
                }  # what was said is read before time counts
                if swept is not None:
                    swept += 1.0
                begun = perf_counter_ns()
                done = call(index)
                if what != "draft" or done >= LONG:  # what is paid once a draft would count for a few tokens
                    times.append((perf_counter_ns() - begun) / 1000 / done)
            spread = Spread.of(times)
            yield {
                "what": what,
                "unit": f"µs per {unit}",
                "nodes": graph.size,
                "hidden_size": graph.hidden_size,
                "sources": list(graph.arbiter.names),
                "cold": cold,
                "n": len(times),
                "median": spread.median,
                "lower": spread.lower,
                "upper": spread.upper,
                "most": spread.most,
                "target": DRAFTER_TARGETS[what],
                "met": spread.median <= DRAFTER_TARGETS[what],
            }


def _times(call: Callable[[int], int], repeats: int, *, cold: bool) -> list[float]:
    """µs a unit of each call; the first few calls are not counted."""
    swept = np.zeros(SWEPT_BYTES // 8) if cold else None
    for index in range(min(20, repeats)):
        call(index)
    times = []
    for index in range(repeats):
        if swept is not None:
            swept += 1.0
        start = perf_counter_ns()
        done = call(index)
        times.append((perf_counter_ns() - start) / 1000 / max(done, 1))
    return times


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit status, 1 where a warm median misses its target."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--repeats", type=int, default=REPEATS, help=f"calls timed (default: {REPEATS})")
    parser.add_argument("--graph", help="measure its drafter too")
    parser.add_argument("--streams", type=Path, help="recorded streams of the graph's teacher, for --graph")
    args = parser.parse_args(argv)
    if (args.graph is None) != (args.streams is None):
        parser.error("--graph and --streams go together")
    about = origin(*SHORT)
    missed = False
    for nodes, width in bar(SHAPES, desc="overheads", unit="graph"):
        for record in measure(nodes, width, args.repeats):
            missed |= record["met"] is False and not record["cold"]
            print(json.dumps(record | about, ensure_ascii=False) if args.json else _line(record), flush=True)
    if args.graph is not None:
        for record in measure_drafter(load_graph(args.graph), load_streams(args.streams), args.repeats):
            print(json.dumps(record | about, ensure_ascii=False) if args.json else _line(record), flush=True)
    return int(missed)


def _line(record: dict[str, Any]) -> str:
    target = (
        "" if record["target"] is None else f"  target {record['target']:g}: {'met' if record['met'] else 'MISSED'}"
    )
    return (
        f"{record['what']:10} N={record['nodes']} H={record['hidden_size']:<5}{'cold' if record['cold'] else 'warm'}  "
        f"{record['median']:8.2f} {record['unit']} (quartiles {record['lower']:.2f} to {record['upper']:.2f}){target}"
    )


if __name__ == "__main__":
    sys.exit(main())
