"""Compile a graph from recorded streams (daari-mlx bench --save-streams), for the teacher that they were recorded from.

    python scripts/bench/compile_streams.py STREAMS GRAPH --model MODEL [--adapter-path PATH]

What extraction would read again, the teacher's own answers and their states, lies in the streams already.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
from stream_graphs import Made

import daari_mlx  # noqa: F401  brings a real BLAS before MLX loads
from daari_mlx.compile.compiler import held_out_stats, summary
from daari_mlx.graph.artifact import save_graph
from daari_mlx.measure.streams import load_streams
from daari_mlx.teacher.load import load_teacher


def main() -> None:
    """Compile and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("streams", type=Path)
    parser.add_argument("graph", type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--adapter-path")
    parser.add_argument("--first", type=int, help="take only so many streams from the front")
    parser.add_argument("--last", type=int, help="take only so many streams from the back")
    args = parser.parse_args()
    fingerprint = load_teacher(args.model, adapter_path=args.adapter_path).fingerprint()
    loaded = load_streams(args.streams)
    streams = loaded.items
    streams = streams[-args.last :] if args.last else streams[: args.first]
    built = Made(streams, vocab_size=int(fingerprint["vocab_size"])).built
    graph = replace(
        built.graph,
        teacher=fingerprint,
        prompts=np.unique(np.array([s.key for s in streams], np.uint64)),
    )
    counts = summary(graph, sum(len(s.tokens) - s.start for s in streams))
    told = {"sequences": len(streams), "settings": {"answers": "teacher", "max_tokens": loaded.max_tokens}}
    save_graph(graph, args.graph, {**counts, **told, **held_out_stats(built.outlook)})
    print(args.graph)


if __name__ == "__main__":
    main()
