"""From shards of reduced states to nodes, edges and steps."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from daari_mlx.compile.budget import MAX_BYTES, few_prompts
from daari_mlx.compile.build import build
from daari_mlx.compile.cluster import BLOCK, auto_nodes, cluster_states, fit_sample, label_all
from daari_mlx.compile.extract import extraction_record
from daari_mlx.compile.workdir import Shard, Workdir
from daari_mlx.graph.corpus import Corpus
from daari_mlx.graph.exemplars import Coarse
from daari_mlx.graph.graph import Graph
from daari_mlx.graph.nodes import Nodes
from daari_mlx.graph.outlook import Outlook
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.given import check_whole
from daari_mlx.ground.progress import bar
from daari_mlx.ground.types import FloatArray, IntArray

KEPT_STATES = 400_000  # of a corpus, that exemplars and calibration may draw on: 26 MB


@dataclass(frozen=True)
class Compiled:
    """A graph and what its compilation counted (``compile_stats.json``)."""

    graph: Graph
    stats: dict[str, Any]


def compile_graph(
    workdir: Workdir, *, nodes: int | None = None, seed: int = 0, max_bytes: int | None = None
) -> Compiled:
    """Compile a finished extraction.

    Args:
        workdir: what ``extract`` filled.
        nodes: N; None derives it from the number of states. Everything else follows from it.
        seed: of the clustering. The same inputs, seed, versions and processor give the same bytes; another kind of
            processor, or another BLAS, rounds products differently, which can move a state on a border between nodes.
        max_bytes: that the graph may have, whatever the corpus; None for 9 MB.

    Raises:
        DaariError: the extraction is not finished, or too small for ``nodes``; ``max_bytes`` does not hold the nodes.
    """
    for name, value in (("nodes", nodes), ("max_bytes", max_bytes)):
        if value is not None:
            check_whole(name, value, 1)
    check_whole("seed", seed, 0)
    extraction, plan = extraction_record(workdir), workdir.read_plan()
    clock = _Clock()
    shards = list(workdir.read_shards(states=False))
    if not shards:
        raise DaariError(f"The workdir {workdir.path} has no shards: extract again.")
    states = sum(len(s.tokens) for s in shards)
    count = auto_nodes(states) if nodes is None else nodes
    if count < 1 or count > states:
        raise DaariError(
            f"--nodes is {count}, but there are {states} states to make nodes from: give 1 to {states}, or more data."
        )
    clock.lap("read")
    centroids = cluster_states(sample_states(workdir, states, min(states, fit_sample(count)), seed), count, seed)
    found = Nodes(workdir.read_projection(), centroids)
    clock.lap("cluster")
    corpus = labelled(shards, label_states(workdir, found, states, seed), first_states(workdir))
    prompts = few_prompts(np.concatenate([s.prompts for s in shards]), max_bytes or MAX_BYTES)
    shards.clear()  # the corpus holds all of it
    clock.lap("label")
    vocab_size = max(int(plan.teacher["vocab_size"]), int(corpus.tokens.max()) + 1)
    built = build(found, corpus, layer=plan.layer, vocab_size=vocab_size, seed=seed, max_bytes=max_bytes or MAX_BYTES)
    graph = replace(built.graph, teacher=plan.teacher, prompts=prompts)
    graph.check()
    clock.lap("build")
    stats = {
        **summary(graph, int(corpus.answers().sum())),
        "states": states,
        "sequences": extraction["sequences"],
        "answers_cut": extraction.get("answers_cut", 0),
        "seconds": {**extraction["seconds"], **clock.laps},  # type: ignore[dict-item]
        "peak_mb": peak_mb(),
        "settings": {
            "nodes": count,
            "nodes_asked": "auto" if nodes is None else nodes,
            "seed": seed,
            "max_bytes": max_bytes or MAX_BYTES,
            "layer": plan.layer,
            "dimensions": plan.dimensions,
            "answers": plan.answers,
            "max_tokens": plan.max_tokens,
            "corpus": plan.corpus,
            "chat_template_config": plan.chat_template_config,
        },
        **held_out_stats(built.outlook),
    }
    return Compiled(graph, stats)


def summary(graph: Graph, drafted: int) -> dict[str, Any]:
    """What a graph is, in figures.

    Args:
        drafted: how many states an answer token was chosen from.

    Returns:
        ``nodes``, ``edges``, ``steps``; ``top_edge_mass``, the share of those states whose token is their node's top
        edge; ``path_reuse``, states for each distinct edge.
    """
    has_edge = np.diff(graph.edge_start) > 0
    top = graph.edge_probability[graph.edge_start[:-1][has_edge]]
    edges = len(graph.edge_token)
    return {
        "nodes": graph.size,
        "edges": edges,
        "steps": len(graph.step_key),
        "top_edge_mass": float((top * graph.support[has_edge]).sum() / max(drafted, 1)),
        "path_reuse": drafted / max(edges, 1),
    }


def held_out_stats(outlook: Outlook | None) -> dict[str, Any]:
    """What ``compile_stats.json`` tells of held-out answers, under ``held_out``; nothing where there are none."""
    return {"held_out": outlook.as_record()} if outlook is not None and outlook.answers else {}


def peak_mb() -> float:
    """The most memory this process has held, in MB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak / 1e3


class _Clock:
    """Seconds per stage."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name], self._last = now - self._last, now


def sample_states(workdir: Workdir, states: int, wanted: int, seed: int) -> FloatArray:
    """``wanted`` of all states, chosen evenly by chance; ``(wanted, D)`` float32."""
    chosen = np.sort(np.random.default_rng(seed).choice(states, wanted, replace=False))
    parts, start = [], 0
    for shard in workdir.read_shards():
        inside = chosen[np.searchsorted(chosen, start) : np.searchsorted(chosen, start + len(shard.reduced))] - start
        parts.append(shard.reduced[inside].astype(np.float32))
        start += len(shard.reduced)
    return np.concatenate(parts)


def label_states(workdir: Workdir, nodes: Nodes, states: int, seed: int) -> IntArray:
    """The node of every state of a finished extraction, ``(states,)`` int32."""
    labels = np.empty(states, np.int32)
    start = 0
    with bar(total=states, desc="nodes", unit="state") as progress:
        for found in label_all(nodes.centroids, _blocks(workdir), seed):
            labels[start : start + len(found)] = found
            start += len(found)
            progress.update(len(found))
    return labels


def _blocks(workdir: Workdir) -> Iterator[np.ndarray]:
    """The states of all shards, ``(n, D)`` float16, in pieces of at least ``BLOCK`` but for the last."""
    waiting: list[np.ndarray] = []
    for shard in workdir.read_shards():
        waiting.append(shard.reduced)
        if sum(map(len, waiting)) >= BLOCK:
            yield np.concatenate(waiting)
            waiting = []
    if waiting:
        yield np.concatenate(waiting)


def first_states(workdir: Workdir) -> Coarse:
    """The first ``KEPT_STATES`` states: more than exemplars and calibration ever take."""
    parts, count = [], 0
    for shard in workdir.read_shards():
        parts.append(shard.reduced)
        count += len(shard.reduced)
        if count >= KEPT_STATES:
            break
    return Coarse.of(np.concatenate(parts))


def labelled(shards: list[Shard], labels: IntArray, states: Coarse) -> Corpus:
    """The labelled corpus of some shards."""
    return Corpus(
        labels,
        np.concatenate([s.tokens for s in shards]),
        np.concatenate([s.rows for s in shards]).astype(np.int64),
        np.concatenate([s.lead for s in shards]).astype(np.int64),
        np.concatenate([s.before for s in shards]),
        np.concatenate([s.before_rows for s in shards]).astype(np.int64),
        states,
    )
