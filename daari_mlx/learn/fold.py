"""From remembered answers to a graph, by the compiler's own functions: what is learnt is what would be compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from daari_mlx.compile.budget import MAX_BYTES, few_prompts
from daari_mlx.compile.build import build, count_graph
from daari_mlx.compile.calibrate import MIN_SEQUENCES, calibrate, fit, try_sources
from daari_mlx.compile.cluster import FEW_NODES, auto_nodes, cluster_states, fit_sample
from daari_mlx.compile.update import add_corpus, grow
from daari_mlx.graph.arbiter import Arbiter
from daari_mlx.graph.corpus import Corpus
from daari_mlx.graph.graph import Graph
from daari_mlx.graph.nodes import Nodes, Projection, fit_projection, nearest
from daari_mlx.graph.outlook import Outlook
from daari_mlx.graph.source import NAMES
from daari_mlx.graph.sources import Sources
from daari_mlx.ground.progress import bar
from daari_mlx.ground.types import FloatArray
from daari_mlx.learn.fading import faded
from daari_mlx.learn.heard import Heard
from daari_mlx.learn.memory import corpus_of, reduced_states
from daari_mlx.text.identity import prompt_hash

DIMENSIONS = 64  # of reduced states, as compile has them
STEPS = 8  # times that few centroids move to the mean of their states
SAMPLED = 1 << 16  # states that a compiled graph's new nodes are looked for among
ENOUGH = 80  # answers from which on some of them tell how far sources can be trusted
RECENT, TRIED = 400, 60  # which of them: so many of the newest


@dataclass(frozen=True)
class Folded:
    """A graph of some answers, and what was promised on those of them that were held out; None where none were."""

    graph: Graph
    outlook: Outlook | None = None


def nothing_known(hidden_size: int, vocab_size: int, layer: int | str, prior: Arbiter) -> Graph:
    """The graph of no text: one node without edges. Sources that read the text at hand speak all the same."""
    nodes = Nodes(
        Projection(np.zeros(hidden_size, np.float32), np.zeros((hidden_size, 1), np.float32)),
        np.zeros((1, 1), np.float32),
    )
    none = np.zeros(0, np.int32)
    return Graph(
        nodes=nodes,
        layer=layer,
        vocab_size=vocab_size,
        edge_start=np.zeros(2, np.int32),
        edge_token=none,
        edge_probability=np.zeros(0, np.float32),
        support=np.zeros(1, np.int32),
        step_key=np.zeros(0, np.int64),
        step_node=none,
        arbiter=prior,
    )


def fit_directions(answers: Sequence[Heard]) -> Projection:
    """The projection of states that are not reduced yet."""
    states = np.concatenate([one.states for one in answers]).astype(np.float32)
    return fit_projection(states, min(DIMENSIONS, len(states)))


def fold(
    answers: Sequence[Heard],
    base: Graph,
    projection: Projection | None,
    *,
    seed: int = 0,
    max_bytes: int = MAX_BYTES,
    held_out: bool = False,
    heard: int | None = None,
) -> Folded:
    """The graph of some answers.

    Args:
        answers: in the order they were said; at least ``FEWEST``.
        base: what was known before: its tables are added to. Without a projection it is the graph of no text, whose
            teacher, layer and vocabulary the new one has, and whose arbiter is the one that few answers go by.
        projection: of a compiled ``base``, or the one that these answers' states went through; None fits one.
        seed: of nodes and of what is held out.
        max_bytes: that the graph may have.
        held_out: whether to tell what was promised on answers held out.
        heard: how many answers were heard since ``base`` was made, those that faded included; None for these.
    """
    newest = list(reversed(answers))  # of many, the first ones are those that exemplars and calibration are taken from
    if base.size > 1 or len(base.edge_token):
        return Folded(_added(newest, base, seed, max_bytes, heard or len(answers)))
    projection = fit_directions(newest) if projection is None else projection
    newest = [one.through(projection) for one in newest]
    nodes = Nodes(projection, _place(reduced_states(newest), seed))
    corpus, outlook = corpus_of(newest, nodes), None
    vocab_size = max(base.vocab_size, int(corpus.tokens.max()) + 1)
    if held_out and len(corpus) >= MIN_SEQUENCES:
        built = build(nodes, corpus, layer=base.layer, vocab_size=vocab_size, seed=seed, max_bytes=max_bytes)
        graph, outlook = built.graph, built.outlook
    else:

        def count(some: Corpus) -> Graph:
            return count_graph(nodes, some, layer=base.layer, vocab_size=vocab_size, max_bytes=max_bytes)

        fitted = calibrate_quickly(corpus, lambda some: Sources(count(some), NAMES), seed)
        graph = replace(count(corpus), arbiter=fitted or base.arbiter)
    return Folded(replace(graph, teacher=base.teacher, prompts=_prompts(answers, base, max_bytes)), outlook)


def _added(newest: Sequence[Heard], base: Graph, seed: int, max_bytes: int, heard: int) -> Graph:
    """A compiled graph with the tables of some answers added; how far it is trusted is soon what they say."""
    newest = [one.through(base.nodes.projection) for one in newest]
    states = reduced_states(newest)
    nodes = grow(base.nodes, _some(states, SAMPLED, seed), len(states), seed)
    corpus = corpus_of(newest, nodes)
    made = add_corpus(
        faded(base, corpus, heard),
        nodes,
        corpus,
        seed=seed,
        max_bytes=max_bytes,
        calibrator=calibrate_quickly,
        weight=max(0, ENOUGH - len(newest)),
    )
    return replace(made, prompts=_prompts(newest, base, max_bytes))


def calibrate_quickly(corpus: Corpus, build: Callable[[Corpus], Sources], seed: int) -> Arbiter | None:
    """What :func:`daari_mlx.compile.calibrate.calibrate` does, of a larger corpus on some of its first sequences only.

    Arguments and None are those of it.
    """
    if len(corpus) < ENOUGH:
        return calibrate(corpus, build, seed)
    recent = np.random.default_rng(seed).permutation(min(len(corpus), RECENT))
    held = np.sort(recent[: min(TRIED, len(recent) // 4)])
    sources = build(corpus.take(np.setdiff1d(np.arange(len(corpus)), held)))
    with bar(total=len(held), desc="calibration", unit="seq") as progress:
        return fit(try_sources(sources, corpus.take(held), progress), sources)


def _place(states: FloatArray, seed: int) -> FloatArray:
    """Centroids: of few nodes by some steps of Lloyd's, of many as a compilation places them."""
    count = auto_nodes(len(states))
    sample = _some(states, fit_sample(count), seed)
    if count > FEW_NODES:
        return cluster_states(sample, count, seed)
    chosen = np.random.default_rng(seed).choice(len(sample), count, replace=False)
    centroids = sample[np.sort(chosen)]
    for _ in range(STEPS):
        labels = nearest(sample, centroids)
        order = np.argsort(labels, kind="stable")
        taken, first, members = np.unique(labels[order], return_index=True, return_counts=True)
        centroids[taken] = np.add.reduceat(sample[order], first) / members[:, None].astype(np.float32)
    return centroids


def _prompts(answers: Sequence[Heard], base: Graph, max_bytes: int) -> np.ndarray:
    own = np.array([prompt_hash(one.prompt.tolist()) for one in answers], np.uint64)
    return few_prompts(np.concatenate([base.prompts, own]), max_bytes)


def _some(states: FloatArray, most: int, seed: int) -> FloatArray:
    """At most so many of them, chosen evenly by chance."""
    if len(states) <= most:
        return states
    return states[np.sort(np.random.default_rng(seed).choice(len(states), most, replace=False))]
