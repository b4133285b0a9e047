"""Whether a graph that was updated, merged or clustered in two levels drafts as well as one compiled in one go.

    python scripts/bench/bench_joining.py STREAMS [--sets sms_spam,snips] [--out results/joining.jsonl]

STREAMS is the folder that ``scripts/bench/bench_drafters.py`` reads. Each set's training streams are compiled at once;
by halves, the second added to the first (``compile --update``); each half for itself, then merged; and at once with
nodes in two levels, as very many states have them, however few these are. Appends a line of JSON for each set, way and
curve.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from bench_drafters import Set, sets, sets_parser
from recording import SHORT, append, origin
from stream_graphs import Made, corpus_of, graph_bytes

from daari_mlx.compile import cluster
from daari_mlx.compile.cluster import label_all
from daari_mlx.compile.update import add_corpus, grow, merge_graphs
from daari_mlx.cost.curves import CURVES
from daari_mlx.graph.graph import Graph
from daari_mlx.measure.streams import Stream

FEW = 64  # nodes from which on two levels are forced


def known(made: Made, number: int) -> Graph:
    """The graph of some streams, with made-up hashes of as many prompts: a merge weighs arbiters by them."""
    return replace(made.graph, prompts=np.arange(len(made.streams), dtype=np.uint64) + np.uint64(number << 32))


def updated(graph: Graph, streams: tuple[Stream, ...]) -> Graph:
    """The graph with some streams added, as ``compile --update`` adds an extraction."""
    reduced = graph.nodes.projection(np.concatenate([s.states[graph.layer] for s in streams]))
    nodes = grow(graph.nodes, reduced, len(reduced), seed=0)
    (labels,) = label_all(nodes.centroids, [reduced])
    return add_corpus(graph, nodes, corpus_of(streams, labels, reduced))


def in_two_levels(streams: tuple[Stream, ...], vocab_size: int) -> Graph:
    """The graph whose nodes were found as if they were too many to compare all with all."""
    few, cluster.FEW_NODES = cluster.FEW_NODES, FEW
    try:
        return Made(streams, vocab_size=vocab_size).graph
    finally:
        cluster.FEW_NODES = few


def ways(one: Set) -> Iterator[tuple[str, Graph]]:
    """Each way to the graph of all training streams."""
    streams = one.train
    vocab_size = max(max(s.tokens) for s in streams) + 1
    halves = [known(Made(streams[k::2], vocab_size=vocab_size), k) for k in (0, 1)]
    yield "at once", Made(streams, vocab_size=vocab_size).graph
    yield "half of it", halves[0]
    yield "half of it, updated with the other", updated(halves[0], streams[1::2])
    yield "two halves merged", merge_graphs(*halves).graph
    yield "at once, nodes in two levels", in_two_levels(streams, vocab_size)


def measure(one: Set) -> Iterator[dict[str, Any]]:
    """A line for each way and curve."""
    for way, graph in ways(one):
        for curve in CURVES.values():
            found = one.run(graph, curve)
            yield {
                "measurement": "joining",
                "set": one.name,
                "teacher": one.teacher,
                "train": len(one.train),
                "way": way,
                "nodes": graph.size,
                "graph_bytes": graph_bytes(graph),
                "curve": curve.name,
                **found.as_dict(curve.cost),
            }


def main() -> None:
    """Measure, append lines, and print how each way compares with compiling at once."""
    parser = sets_parser(__doc__, "results/joining.jsonl")
    args = parser.parse_args()
    about = origin(*SHORT)
    for one in sets(args.streams, args.sets):
        once: dict[str, float] = {}
        for line in measure(one):
            once.setdefault(line["curve"], line["speedup"])
            append(line | about, args.out)
            print(one.name, line["curve"], line["way"], f"{line['speedup'] / once[line['curve']]:.3f}", sep="\t")


if __name__ == "__main__":
    main()
