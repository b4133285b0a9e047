"""What a graph is: its figures, and its busiest nodes with the words that follow them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from daari_mlx.graph.graph import Graph
from daari_mlx.ground.errors import DaariError
from daari_mlx.teacher.fingerprint import describe
from daari_mlx.teacher.load import check_model_files

SHOWN_EDGES = 3  # edges shown of each node
PATH_TOKENS = 16  # tokens of the likeliest path shown


def tokenizer_for(graph: Graph, model: str | None) -> tuple[Any, str | None]:
    """The tokenizer that turns the graph's token ids into words.

    Args:
        model: a model folder or Hub repository; None takes the folder that the graph's teacher was loaded from.

    Returns:
        The tokenizer, or None and why there is none.

    Raises:
        DaariError: ``model`` was given and has no tokenizer, or another one.
    """
    source = model or graph.teacher.get("source")
    if not isinstance(source, str):
        return None, "token ids only: the graph does not say where its teacher was loaded from; --model names it"
    if model is None and not Path(source).is_dir():
        return None, f"token ids only: the teacher's folder {source!r} is not here; --model names another place of it"
    tokenizer, why = _load_tokenizer(source, graph.teacher.get("vocab_size"))
    if why is None:
        return tokenizer, None
    if model is not None:
        raise DaariError(f"{why}. Give the teacher that the graph was compiled from, or no --model for token ids.")
    return None, f"token ids only: {why}"


def _load_tokenizer(source: str, vocab_size: Any) -> tuple[Any, str | None]:
    from mlx_lm.utils import load_tokenizer

    try:
        check_model_files(source)
        tokenizer = load_tokenizer(Path(source) if Path(source).is_dir() else source)
    except Exception as error:  # a Hub, a file system and code of the tokenizer's own stand behind it
        return None, f"No tokenizer could be loaded from {source!r} ({type(error).__name__}: {error})"
    found = len(tokenizer.get_vocab())
    if found != vocab_size:
        return None, f"The tokenizer of {source!r} has {found} tokens, that of the graph's teacher {vocab_size}"
    return tokenizer, None


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
