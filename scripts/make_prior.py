"""Make ``daari_mlx/learn/prior.npz``: how far the sources of graphs of few answers can be trusted.

    python scripts/make_prior.py STREAMS... [--out daari_mlx/learn/prior.npz]

STREAMS are files that ``daari-mlx bench --save-streams`` wrote. From every set, several small corpora are drawn; what
their graphs' sources say on other answers of the set is counted, and one arbiter is fitted on all of it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from stream_graphs import corpus_of

from daari_mlx.compile.build import count_graph
from daari_mlx.compile.calibrate import Cases, fit, try_sources
from daari_mlx.compile.cluster import auto_nodes, cluster_states
from daari_mlx.graph.nodes import Nodes, fit_projection
from daari_mlx.graph.source import NAMES
from daari_mlx.graph.sources import Sources
from daari_mlx.ground.progress import bar
from daari_mlx.learn.fold import DIMENSIONS, nothing_known
from daari_mlx.learn.heard import heard
from daari_mlx.learn.memory import newest_text
from daari_mlx.learn.prior import FILE, save
from daari_mlx.measure.streams import Stream, load_streams

SIZES = (4, 6, 9, 14)  # answers that a small graph is made of
TRIED = 12  # others that it is tried on
DRAWS = 3


def small(streams: list[Stream], tried: list[Stream], width: int) -> list[Cases]:
    """What the sources of a graph of some streams, and those of no graph that copies from them, say on others."""
    states = np.concatenate([s.states["final"] for s in streams])
    projection = fit_projection(states, min(DIMENSIONS, len(states)))
    reduced = projection(states)
    nodes = Nodes(projection, cluster_states(reduced, auto_nodes(len(reduced)), 0))
    vocabulary = 1 << 20
    graph = count_graph(nodes, corpus_of(streams, nodes.label(reduced), reduced), layer="final", vocab_size=vocabulary)
    other = projection(np.concatenate([s.states["final"] for s in tried]))
    corpus = corpus_of(tried, nodes.label(other), other)
    earlier = newest_text([h for s in streams if (h := heard(s.prompt, s.answer, [s.states["final"]], 0.0))])
    bare = nothing_known(width, vocabulary, "final", graph.arbiter)
    with bar(total=2 * len(tried), desc="answers", unit="seq") as progress:
        with_graph = try_sources(Sources(graph, NAMES), corpus, progress)
        blind = corpus_of(tried, np.zeros(len(other), np.int32), other)
        without = try_sources(Sources(bare, NAMES, earlier), blind, progress)
    return [with_graph, without]


def main() -> None:
    """Draw, count, fit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("streams", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=FILE)
    args = parser.parse_args()
    random, cases = np.random.default_rng(0), []
    for path in args.streams:
        items = load_streams(path).items
        width = items[0].states["final"].shape[1]
        for size in SIZES:
            for _ in range(DRAWS):
                chosen = random.permutation(len(items))[: size + TRIED]
                some = [items[k] for k in chosen.tolist()]
                cases += small(some[:size], some[size:], width)
    names = Sources(nothing_known(1, 2, "final", None), NAMES)  # type: ignore[arg-type]
    save(fit(Cases.join(cases), names), args.out)
    print(args.out)


if __name__ == "__main__":
    main()
