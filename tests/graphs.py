"""Graphs for the tests: small random ones without a teacher, and what the tiny teacher's own is compiled from."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import KVCache

from daari_mlx.compile.build import build
from daari_mlx.cost.length import Cost
from daari_mlx.draft.drafter import Context, GraphDrafter
from daari_mlx.graph.corpus import Corpus
from daari_mlx.graph.exemplars import Coarse, no_states
from daari_mlx.graph.graph import NO_NODE, Graph
from daari_mlx.graph.nodes import Nodes, Projection

sys.path[:0] = [str(Path(__file__).parents[1] / "scripts" / name) for name in ("", "bench")]

WIDTH, HIDDEN = 4, 8  # of reduced states and of teacher states


def random_nodes(count: int, *, width: int = WIDTH, hidden: int = HIDDEN, seed: int = 0) -> Nodes:
    """Nodes with random centroids."""
    random = np.random.default_rng(seed)
    basis = np.linalg.qr(random.normal(size=(hidden, width)))[0].astype(np.float32)
    mean = random.normal(size=hidden, scale=0.1).astype(np.float32)
    return Nodes(Projection(mean, np.ascontiguousarray(basis)), random.normal(size=(count, width)).astype(np.float32))


def graph_of(
    count: int,
    vocabulary: int,
    edges: dict[int, dict[int, float]],
    steps: dict[tuple[int, int], int],
    *,
    seed: int = 0,
    seen: int = 10,
    teacher: dict[str, Any] | None = None,
) -> Graph:
    """A graph from tables that a person can read.

    Args:
        edges: node -> token -> probability.
        steps: (node, token) -> node; node ``count`` stands for any.
        seen: how many steps are taken to have left a node, for each of its edges.
    """
    rows = [sorted(edges.get(n, {}).items(), key=lambda e: (-e[1], e[0])) for n in range(count)]
    keys = sorted((node * vocabulary + token, target) for (node, token), target in steps.items())
    return Graph(
        nodes=random_nodes(count, seed=seed),
        layer="final",
        vocab_size=vocabulary,
        edge_start=np.cumsum([0, *map(len, rows)]).astype(np.int32),
        edge_token=np.array([token for row in rows for token, _ in row], np.int32),
        edge_probability=np.array([share for row in rows for _, share in row], np.float32),
        support=np.array([seen * len(row) for row in rows], np.int32),
        step_key=np.array([key for key, _ in keys], np.int64),
        step_node=np.array([target for _, target in keys], np.int32),
        teacher=teacher or {},
        prompts=np.array([3, 2**63 + 1], np.uint64),
    )


def random_graph(seed: int = 0, count: int = 12, vocabulary: int = 30, teacher: dict[str, Any] | None = None) -> Graph:
    """A graph with random tables: some nodes without edges, some edges that lead nowhere, some any-node steps."""
    random = np.random.default_rng(seed)
    edges: dict[int, dict[int, float]] = {}
    steps: dict[tuple[int, int], int] = {}
    for node in range(count):
        tokens = random.choice(vocabulary, size=int(random.integers(0, 5)), replace=False).tolist()
        shares = random.dirichlet(np.ones(len(tokens) + 1))[: len(tokens)]
        edges[node] = {t: float(max(s, 1e-6)) for t, s in zip(tokens, shares, strict=True)}
        steps |= {(node, t): int(random.integers(count)) for t in tokens if random.random() < 0.8}
    steps |= {(count, int(t)): int(random.integers(count)) for t in random.choice(vocabulary, size=6, replace=False)}
    return graph_of(count, vocabulary, edges, steps, seed=seed, teacher=teacher)


def chain(tokens: list[int], vocabulary: int = 1000, *, share: float = 0.9, seen: int = 10) -> Graph:
    """Node i says ``tokens[i]`` and leads to node i+1; the last one leads nowhere."""
    count = len(tokens)
    steps = {(i, t): i + 1 for i, t in enumerate(tokens[:-1])}
    return graph_of(count, vocabulary, {i: {t: share} for i, t in enumerate(tokens)}, steps, seen=seen)


def naive_kind(share: float, seen: int) -> int:
    """The cell of a count: nine buckets of shares, the last one for all of them, by six of counts."""
    return 6 * min(int(share * 8), 8) + sum(seen >= bound for bound in (2, 3, 5, 11, 51))


def naive_promise(share: float, seen: int) -> float:
    """What an arbiter that could not be calibrated takes for the chance of a walk's token."""
    bucket, counted = divmod(naive_kind(share, seen), 6)
    least = (1, 2, 3, 5, 11, 51)[counted]
    return min(max(bucket / 8 * least / (least + 2), 0.01), 0.99)


@dataclass(frozen=True)
class Said:
    """One sequence of a corpus: the prompt but its last token, and what was chosen from which node since."""

    before: list[int]
    tokens: list[int]
    labels: list[int]
    lead: int = 1


def corpus_of(sequences: list[Said], states: Coarse | None = None) -> Corpus:
    """The labelled corpus of some sequences; ``states`` of their rows, None for none known."""
    return Corpus(
        states=no_states() if states is None else states,
        labels=np.array([n for s in sequences for n in s.labels], np.int32),
        tokens=np.array([t for s in sequences for t in s.tokens], np.int32),
        rows=np.array([len(s.tokens) for s in sequences], np.int64),
        lead=np.array([s.lead for s in sequences], np.int64),
        before=np.array([t for s in sequences for t in s.before], np.int32),
        before_rows=np.array([len(s.before) for s in sequences], np.int64),
    )


FULL_NODES, FULL_VOCABULARY = 12, 60
FULL_STATES = np.random.default_rng(8).normal(size=(FULL_NODES, HIDDEN)).astype(np.float32)  # one on each node


def full_sequences(count: int = 60, seed: int = 0) -> list[Said]:
    """Answers of one form that name a class, told by their nodes, and quote two tokens of their prompt."""
    random, made = np.random.default_rng(seed), []
    for _ in range(count):
        kind = int(random.integers(4))
        prompt = random.integers(30, FULL_VOCABULARY, size=int(random.integers(4, 9))).tolist()
        quote = int(random.integers(len(prompt) - 2))
        answer = [11, 12, 13 + kind, 17, *prompt[quote : quote + 3], 18, 20 + int(random.integers(3)), 19, 2]
        labels = [(3 * kind + place) % FULL_NODES for place in range(len(answer) + 1)]
        made.append(Said(prompt, [10, *answer], labels))
    return made


def full_nodes() -> Nodes:
    """The nodes of :func:`full_graph`; ``FULL_STATES`` lie on them."""
    projection = random_nodes(1).projection
    return Nodes(projection, projection(FULL_STATES))


def full_corpus(sequences: list[Said], seed: int = 0) -> Corpus:
    """Their corpus, with states somewhere around their nodes."""
    labels = [label for said in sequences for label in said.labels]
    around = full_nodes().centroids[labels]
    blur = np.random.default_rng(seed).normal(size=around.shape).astype(np.float32)
    return corpus_of(sequences, Coarse.of(around + np.float32(0.1) * blur))


@cache
def _full_graph(seed: int) -> Graph:
    corpus = full_corpus(full_sequences(seed=seed), seed)
    return build(full_nodes(), corpus, layer="final", vocab_size=FULL_VOCABULARY).graph


def full_graph(seed: int = 0, teacher: dict[str, Any] | None = None) -> Graph:
    """A small graph with every table and source, calibrated; its arrays are shared: change copies only."""
    return replace(_full_graph(seed), teacher=teacher or {}, prompts=np.array([3, 2**63 + 1], np.uint64))


def draft_everywhere(graph: Graph, seed: int = 0) -> None:
    """Draft round after round over two texts, whatever the graph says; what it drafts is in order."""
    random = np.random.default_rng(seed)
    drafter = GraphDrafter(graph, num_draft_tokens=9)
    careful = GraphDrafter(graph, cost=Cost((1, 33), (1.0, 2.0)), ends=[2])
    for _ in range(2):
        tokens = random.integers(0, graph.vocab_size, size=5).tolist()
        for _ in range(4):
            state = random.normal(size=graph.hidden_size).astype(np.float32)
            draft, shorter = drafter.draft(Context(tokens, state), 9), careful.draft(Context(tokens, state), 9)
            for found in (draft, shorter):
                assert len(found.tokens) == len(found.probabilities) == len(found.sources) <= 9
                assert all(0 <= t < graph.vocab_size for t in found.tokens)
                assert all(0 < p < 1 for p in found.probabilities)
                assert set(found.sources) <= set(graph.arbiter.names)
            tokens.extend([*draft.tokens[: int(random.integers(9))], int(random.integers(graph.vocab_size))])


def naive_walk(graph: Graph, node: int, limit: int) -> tuple[list[int], list[int]]:
    """Tokens and nodes of a walk along top edges, by looking at the arrays one item at a time."""
    steps = dict(zip(graph.step_key.tolist(), graph.step_node.tolist(), strict=True))
    tokens, nodes = [], []
    while node != NO_NODE and len(tokens) < limit:
        first, after = int(graph.edge_start[node]), int(graph.edge_start[node + 1])
        if first == after:
            break
        tokens.append(int(graph.edge_token[first]))
        nodes.append(node)
        node = steps.get(node * graph.vocab_size + tokens[-1], NO_NODE)
    return tokens, nodes


class Scripted(nn.Module):
    """A teacher that says a given text, position by position: whatever is in its cache too many or too few shows.

    Args:
        truth: prompt and answer; behind it comes token 3.
    """

    def __init__(self, truth: list[int], vocabulary: int = 640, hidden: int = 64) -> None:
        super().__init__()
        self.args = SimpleNamespace(model_type="scripted")
        self.head = nn.Linear(hidden, vocabulary, bias=False)
        codes = np.random.default_rng(0).normal(size=(vocabulary, hidden)).astype(np.float32)
        self.head.weight = mx.array(8 * codes / np.linalg.norm(codes, axis=1, keepdims=True))
        self.truth = truth

    def make_cache(self) -> list[Any]:
        return [KVCache()]

    def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
        rows, start = inputs.shape[1], 0 if cache is None else cache[0].offset
        if cache is not None:
            cache[0].update_and_fetch(mx.zeros((1, 1, rows, 1)), mx.zeros((1, 1, rows, 1)))
        said = [self.truth[p] if p < len(self.truth) else 3 for p in range(start + 1, start + rows + 1)]
        return self.head(self.head.weight[mx.array([said])])


@dataclass(frozen=True)
class Compiled:
    """The tiny teacher, what it was asked, and the graph compiled from its answers."""

    teacher: Any  # daari_mlx.teacher.load.Teacher
    sequences: list[Any]  # prompt + the teacher's own greedy answer
    workdir: Any  # daari_mlx.compile.workdir.Workdir
    graph: Graph
    stats: dict[str, Any]
    path: Path  # the saved graph


def write_rows(path: Path, count: int, seed: int) -> list[list[dict[str, str]]]:
    """Write ``count`` rows of the invented SMS corpus without its long system prompt; return their messages."""
    from make_sms_corpus import make_rows

    messages = [list(row["messages"][1:]) for row in make_rows(count, seed=seed)]
    path.write_text("".join(json.dumps({"messages": m}, ensure_ascii=False) + "\n" for m in messages), encoding="utf-8")
    return messages


def compile_tiny(model: Any, tokenizer: Any, source: Path, folder: Path) -> Compiled:
    """Compile a graph of the tiny teacher's own answers to some invented messages into ``folder``."""
    from daari_mlx.compile.answers import answer_prompts
    from daari_mlx.compile.compiler import compile_graph
    from daari_mlx.compile.extract import ExtractOptions, extract
    from daari_mlx.compile.workdir import Workdir
    from daari_mlx.graph.artifact import save_graph
    from daari_mlx.teacher.load import Teacher
    from daari_mlx.text.data import read_prompts

    write_rows(folder / "train.jsonl", 72, seed=5)
    teacher = Teacher(model, tokenizer, str(source))
    prompts = read_prompts(folder / "train.jsonl", tokenizer).items
    workdir = Workdir(folder / "work")
    extract(teacher, prompts, workdir, ExtractOptions(answers="teacher", max_tokens=60, dimensions=32))
    found = compile_graph(workdir, nodes=96)
    path = save_graph(found.graph, folder / "graph", found.stats)
    return Compiled(teacher, answer_prompts(teacher, prompts, workdir, 60), workdir, found.graph, found.stats, path)
