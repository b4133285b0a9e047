"""More text for a graph: an extraction's states join a graph whose own states are gone, or two graphs join.

The graph's projection and nodes stay as they are. New states that lie apart from all nodes get nodes of their own, as
dense as a compilation makes them; tables are added up, and sources calibrated on new answers that are held out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from daari_mlx.compile.budget import MAX_BYTES, few_prompts
from daari_mlx.compile.build import count_graph
from daari_mlx.compile.calibrate import calibrate, parts
from daari_mlx.compile.cluster import MAX_NODES, STATES_PER_NODE, cluster_states, fit_sample, label_all
from daari_mlx.compile.compiler import (
    Compiled,
    first_states,
    held_out_stats,
    label_states,
    labelled,
    peak_mb,
    sample_states,
    summary,
)
from daari_mlx.compile.extract import extraction_record
from daari_mlx.compile.joined import (
    answers_of,
    both_outlooks,
    count_of,
    holds_all,
    learnt_in,
    outlook_in,
    settings_of,
    settings_told,
    whose_answers,
)
from daari_mlx.compile.merge import APART, Part, blend, join_nodes, merge_tables, spacing
from daari_mlx.compile.workdir import Workdir
from daari_mlx.graph.arbiter import Arbiter, counted
from daari_mlx.graph.corpus import Corpus
from daari_mlx.graph.exemplars import Exemplars, no_states
from daari_mlx.graph.graph import Graph
from daari_mlx.graph.nodes import Nodes
from daari_mlx.graph.outlook import outlook_of
from daari_mlx.graph.source import NAMES
from daari_mlx.graph.sources import Sources
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.given import check_whole
from daari_mlx.ground.types import FloatArray
from daari_mlx.teacher.fingerprint import describe, differences


def update_graph(
    graph: Graph,
    workdir: Workdir,
    *,
    seed: int = 0,
    max_bytes: int | None = None,
    stats: dict[str, Any] | None = None,
) -> Compiled:
    """Add a finished extraction to a graph.

    Args:
        graph: of the same teacher and layer; ``workdir`` was extracted with its projection.
        workdir: the new text.
        seed: of new nodes and of what is held out; the same inputs give the same bytes, as for ``compile_graph``.
        max_bytes: that the graph may have; None for 9 MB.
        stats: what the graph's own compilation counted: whose answers it holds, what was promised on held-out ones.

    Raises:
        DaariError: the extraction is not finished or of another teacher, layer or projection.
    """
    limit = _limit(max_bytes)
    check_whole("seed", seed, 0)
    extraction, plan = extraction_record(workdir), workdir.read_plan()
    check_same(graph, plan.teacher, plan.layer, "The new text was read")
    if not np.array_equal(workdir.read_projection().basis, graph.nodes.projection.basis):
        raise DaariError(
            f"The states in {workdir.path} were not reduced as those of the graph: remove that folder and run the same "
            "command again."
        )
    start = time.perf_counter()
    shards = list(workdir.read_shards(states=False))
    states = sum(len(s.tokens) for s in shards)
    if states == 0:
        raise DaariError(f"The workdir {workdir.path} has no states: give more text.")
    wanted = min(states, fit_sample(MAX_NODES))
    nodes = grow(graph.nodes, sample_states(workdir, states, wanted, seed), states, seed)
    corpus = labelled(shards, label_states(workdir, nodes, states, seed), first_states(workdir))
    prompts = np.concatenate([s.prompts for s in shards])
    unaware: list[Graph] = []
    made = add_corpus(graph, nodes, corpus, seed=seed, max_bytes=limit, unaware=unaware)
    outlook = outlook_of(unaware, made.arbiter, corpus, *parts(len(corpus), seed)) if unaware else None
    earlier, new = stats or {}, np.unique(prompts)
    made = replace(made, prompts=few_prompts(np.concatenate([graph.prompts, prompts]), limit))
    made.check()
    drafted = int(made.support.sum())
    found = {
        **summary(made, drafted),
        "states": drafted,
        "sequences": answers_of(graph, earlier) + len(corpus),
        "shared_prompts": len(np.intersect1d(graph.prompts, new)),
        "answers_cut": count_of(earlier, "answers_cut") + count_of(extraction, "answers_cut"),
        **learnt_in(earlier),
        "added": {"states": states, "sequences": len(corpus), "prompts": len(new), "nodes": made.size - graph.size},
        "seconds": {**extraction["seconds"], "update": time.perf_counter() - start},  # type: ignore[dict-item]
        "peak_mb": peak_mb(),
        "settings": {
            **settings_told(made, limit, seed),
            "answers": whose_answers(earlier, plan.answers),
            "max_tokens": plan.max_tokens,
            "corpus": plan.corpus,
            "chat_template_config": plan.chat_template_config,
        },
        **held_out_stats(both_outlooks(earlier, outlook)),
    }
    return Compiled(made, found)


def merge_graphs(
    first: Graph,
    second: Graph,
    *,
    max_bytes: int | None = None,
    stats: tuple[dict[str, Any], dict[str, Any]] = ({}, {}),
) -> Compiled:
    """One graph of two of the same teacher and layer.

    The nodes of the one that saw more keep their places; see :func:`daari_mlx.compile.merge.join_nodes` for those of
    the other. Where one has all prompts of the other, and both the teacher's own answers, the one alone is taken, and
    ``counted_once`` of the statistics is true. Else what both were compiled from counts twice: ``shared_prompts`` says
    how many prompts.

    Args:
        max_bytes: that the graph may have; None for 9 MB.
        stats: what the compilation of each counted: whose answers it holds, what was promised on held-out ones.

    Raises:
        DaariError: they are of different teachers or layers.
    """
    check_same(first, second.teacher, second.layer, "The second graph was compiled")
    limit, start = _limit(max_bytes), time.perf_counter()
    pairs = sorted(
        zip((first, second), stats, strict=True), key=lambda pair: (-int(pair[0].support.sum()), -len(pair[0].prompts))
    )
    (large, of_large), (small, of_small) = pairs
    once = holds_all(large, small, of_large, of_small)
    if once:
        made = merge_tables(large.nodes, [Part(large, np.arange(large.size))], limit)
    else:
        made = _added_up(large, small, limit)
    made.check()
    told = [of_large] if once else list(stats)
    drafted = int(made.support.sum())
    kinds = [settings_of(one) for one in told]
    found = {
        **summary(made, drafted),
        "states": drafted,
        "sequences": sum(answers_of(graph, one) for graph, one in ([pairs[0]] if once else pairs)),
        "shared_prompts": len(np.intersect1d(first.prompts, second.prompts)),
        "counted_once": once,
        **learnt_in(*told),
        "answers_cut": sum(count_of(one, "answers_cut") for one in told),
        "seconds": {"merge": time.perf_counter() - start},
        "peak_mb": peak_mb(),
        "settings": {
            **settings_told(made, limit, 0),
            "answers": whose_answers(told[0], kinds[-1].get("answers")),
            "max_tokens": max(count_of(kind, "max_tokens") for kind in kinds),
            "corpus": "merged",
        },
        **held_out_stats(outlook_in(of_large) if once else both_outlooks(stats[0], outlook_in(stats[1]))),
    }
    return Compiled(made, found)


def _added_up(large: Graph, small: Graph, limit: int) -> Graph:
    """What two graphs counted, in the nodes of the first and those that only the second has."""
    nodes, place = join_nodes(large.nodes, small.nodes, max(MAX_NODES, large.size))
    known = [g for g in (large, small) if _calibrated(g)] or [large, small]
    arbiter = blend([g.arbiter for g in known], [len(g.prompts) for g in known])
    heard = arbiter.names if _calibrated(known[0]) else NAMES
    both = [Part(_heard(large, heard), np.arange(large.size)), Part(_heard(small, heard), place)]
    return replace(merge_tables(nodes, both, limit), arbiter=arbiter)


def check_same(graph: Graph, teacher: dict[str, Any], layer: int | str, what: str) -> None:
    """See that something goes with a graph.

    Raises:
        DaariError: it is of another teacher or layer; ``what`` begins the second sentence.
    """
    found = differences(graph.teacher, teacher)
    if found:
        raise DaariError(
            f"The graph belongs to another teacher (they differ in: {', '.join(found)}).\n"
            f"  graph: {describe(graph.teacher)}\n  other: {describe(teacher)}\n"
            "Nodes of one teacher mean nothing to another: compile one for this teacher."
        )
    if graph.layer != layer:
        raise DaariError(f"The graph reads layer {graph.layer}. {what} with layer {layer}: take the same layer.")


def grow(nodes: Nodes, sample: FloatArray, states: int, seed: int) -> Nodes:
    """The nodes, and some more where new states lie farther from a node than its own nearest neighbour does.

    Args:
        nodes: of a graph; they keep their numbers.
        sample: ``(n, D)`` of the new states.
        states: how many there are in all.
        seed: of the clustering.
    """
    blocks = [sample[k : k + 4096] for k in range(0, len(sample), 4096)]
    near = np.concatenate(list(label_all(nodes.centroids, blocks, seed)))
    apart = np.linalg.norm(sample - nodes.centroids[near], axis=1) > APART * spacing(nodes.centroids)[near]
    count = int(apart.sum() * (states / len(sample)) / STATES_PER_NODE)
    count = min(count, max(0, MAX_NODES - len(nodes.centroids)), int(apart.sum()))
    if count == 0:
        return nodes
    return Nodes(nodes.projection, np.concatenate([nodes.centroids, cluster_states(sample[apart], count, seed)]))


def _limit(max_bytes: int | None) -> int:
    if max_bytes is not None:
        check_whole("max_bytes", max_bytes, 1)
    return MAX_BYTES if max_bytes is None else max_bytes


def add_corpus(
    graph: Graph,
    nodes: Nodes,
    corpus: Corpus,
    *,
    seed: int = 0,
    max_bytes: int = MAX_BYTES,
    unaware: list[Graph] | None = None,
    calibrator: Callable[[Corpus, Callable[[Corpus], Sources], int], Arbiter | None] = calibrate,
    weight: float | None = None,
) -> Graph:
    """A graph with the tables of a labelled corpus added to its own, and its sources calibrated on both.

    Args:
        graph: its nodes are the first of ``nodes``.
        nodes: that the corpus is labelled with.
        corpus: the new text, in an order drawn by chance; its prompts are not known here.
        seed: which new sequences are held out; those that the graph knows are gone.
        max_bytes: that the graph may have.
        unaware: gets the graphs that do not know what was held out, part by part.
        calibrator: fits an arbiter on parts of the corpus, as :func:`daari_mlx.compile.calibrate.calibrate` does.
        weight: how many sequences the graph's own arbiter counts as, against those of the corpus; None for its prompts.
    """
    known = _calibrated(graph)
    heard = graph.arbiter.names if known else NAMES
    old = Part(_heard(graph, heard), np.arange(graph.size))
    if "near" not in heard:
        corpus = replace(corpus, states=no_states())

    def both(some: Corpus) -> Graph:
        new = count_graph(nodes, some, layer=graph.layer, vocab_size=_vocabulary(graph, corpus), max_bytes=max_bytes)
        return merge_tables(nodes, [old, Part(new, np.arange(new.size))], max_bytes)

    def sources_of(some: Corpus) -> Sources:
        made = both(some)
        if unaware is not None:
            unaware.append(replace(made))  # the arrays, without what look-ups make of them
        return Sources(made, heard)

    fitted = calibrator(corpus, sources_of, seed)
    made = both(corpus)
    if fitted is None:
        return made
    if not known:
        return replace(made, arbiter=fitted)
    own = len(graph.prompts) if weight is None else weight
    return replace(made, arbiter=blend([graph.arbiter, fitted], [own, len(corpus)]))


def _calibrated(graph: Graph) -> bool:
    """Whether its sources were fitted on held-out text; a graph of too few answers takes its edges at their word."""
    return graph.arbiter.names != counted().names


def _heard(graph: Graph, names: Sequence[str]) -> Graph:
    """The graph without exemplars that no source of these would read: their bytes go to steps."""
    return graph if "near" in names else replace(graph, exemplars=Exemplars())


def _vocabulary(graph: Graph, corpus: Corpus) -> int:
    return max(graph.vocab_size, int(corpus.tokens.max(initial=0)) + 1)
