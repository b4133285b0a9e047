"""What a graph is: its figures, and its busiest nodes with the words that follow them."""

from __future__ import annotations

from typing import Any

import numpy as np

from daari_mlx.graph.graph import Graph
from daari_mlx.teacher.fingerprint import describe

SHOWN_EDGES = 3  # edges shown of each node
PATH_TOKENS = 16  # tokens of the likeliest path shown


def graph_view(graph: Graph, path: str, stats: dict[str, Any], size: int, tokenizer: Any, top: int) -> dict[str, Any]:
    """What ``inspect`` shows of the graph itself, as JSON values.

    Args:
        path: where the graph lies, as the user named it.
        stats: its ``compile_stats.json``.
        size: bytes of its files.
        tokenizer: for words; None leaves the texts None.
        top: how many nodes, the busiest first.
    """
    busiest = np.argsort(-graph.support, kind="stable")[:top]
    return {
        **{name: value for name, value in stats.items() if _sound(name, value)},
        "graph": path,
        "teacher": graph.teacher,
        "teacher_text": describe(graph.teacher),
        "layer": graph.layer,
        "sources": list(graph.arbiter.names),
        "nodes": graph.size,
        "edges": len(graph.edge_token),
        "steps": len(graph.step_key),
        "prompts": len(graph.prompts),
        "bytes": size,
        "busiest": [_node_view(graph, int(node), tokenizer) for node in busiest],
    }


def _sound(name: str, value: Any) -> bool:
    """Whether a figure is one: stats may come from anywhere. Held-out answers are told unpacked."""
    if name in ("states", "sequences"):
        return type(value) is int
    return name != "held_out" and (name not in ("top_edge_mass", "path_reuse") or type(value) is float)


def _node_view(graph: Graph, node: int, tokenizer: Any) -> dict[str, Any]:
    edges = range(graph.edge_start[node], graph.edge_start[node + 1])[:SHOWN_EDGES]
    path, _ = graph.follow(node, PATH_TOKENS)
    return {
        "node": node,
        "support": int(graph.support[node]),
        "edges": [
            {
                "token": int(graph.edge_token[edge]),
                "text": _words(tokenizer, [int(graph.edge_token[edge])]),
                "probability": float(graph.edge_probability[edge]),
            }
            for edge in edges
        ],
        "path": path,
        "path_text": _words(tokenizer, path),
    }


def _words(tokenizer: Any, tokens: list[int]) -> str | None:
    return None if tokenizer is None else str(tokenizer.decode(tokens))
