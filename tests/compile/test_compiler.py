"""Counting against a naive count in plain Python, and the same bytes from the same inputs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphs import Compiled
from hypothesis import given, settings
from hypothesis import strategies as st

from daari_mlx.compile.cluster import MAX_NODES, MIN_NODES, STATES_PER_NODE, auto_nodes
from daari_mlx.compile.compiler import compile_graph
from daari_mlx.compile.workdir import FORMAT, Plan, Workdir
from daari_mlx.graph.artifact import ARRAYS, CONFIG, graph_bytes, read_stats, save_graph
from daari_mlx.graph.graph import MAX_EDGES, Graph
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.files import save_arrays, write_json
from daari_mlx.share.find import load_graph

VOCABULARY, WIDTH = 50, 3
Rows = list[
    tuple[list[int], int]
]  # the token that followed each state of a sequence, and how many lead into the answer


def fill(folder: Path, corpus: Rows, *, seed: int = 0, per_shard: int = 2, vocabulary: int = VOCABULARY) -> Workdir:
    """A finished extraction of sequences whose states are random points around a few centres."""
    workdir = Workdir(folder)
    teacher = {"model_type": "none", "vocab_size": vocabulary, "weights": "0"}
    workdir.begin(Plan(teacher, "hash", len(corpus), "teacher", 256, "final", WIDTH, 0))
    save_arrays(
        workdir.projection_path, {"mean": np.zeros(WIDTH, np.float32), "basis": np.eye(WIDTH, dtype=np.float32)}
    )
    random = np.random.default_rng(seed)
    for number in range(0, len(corpus), per_shard):
        part = corpus[number : number + per_shard]
        tokens = [t for row, _ in part for t in row]
        centres = random.integers(-2, 3, size=(len(tokens), WIDTH))
        reduced = (centres + random.normal(size=(len(tokens), WIDTH)) * 0.05).astype(np.float16)
        save_arrays(
            workdir.shard_path(number // per_shard),
            {
                "reduced": reduced,
                "tokens": np.array(tokens, np.int32),
                "rows": np.array([len(row) for row, _ in part], np.int32),
                "lead": np.array([lead for _, lead in part], np.int32),
                "before": np.zeros(2 * len(part), np.int32),
                "before_rows": np.full(len(part), 2, np.int32),
                "prompts": np.arange(number, number + len(part), dtype=np.uint64)[::-1].copy(),
            },
        )
    count = sum(len(row) for row, _ in corpus)
    write_json(
        workdir.done_path,
        {
            "sequences": len(corpus),
            "tokens": count,
            "shards": -(-len(corpus) // per_shard),
            "seconds": {"answers": 0.5, "states": 1.5},
        },
    )
    return workdir


@st.composite
def corpora(draw: st.DrawFn) -> Rows:
    rows = []
    for _ in range(draw(st.integers(1, 6))):
        length = draw(st.integers(2, 12))
        rows.append((draw(st.lists(st.integers(0, 5), min_size=length, max_size=length)), draw(st.integers(0, 1))))
    return rows


def naive(graph: Graph, workdir: Workdir) -> tuple[dict[int, Counter[int]], dict[tuple[int, int], Counter[int]]]:
    """Tokens seen at each node, and nodes reached by each (node, token), ``graph.size`` being any node."""
    edges: dict[int, Counter[int]] = defaultdict(Counter)
    steps: dict[tuple[int, int], Counter[int]] = defaultdict(Counter)
    for shard in workdir.read_shards():
        labels, tokens = graph.nodes.label(shard.reduced).tolist(), shard.tokens.tolist()
        start = 0
        for rows, lead in zip(shard.rows.tolist(), shard.lead.tolist(), strict=True):
            for row in range(start, start + rows):
                if row >= start + lead:
                    edges[labels[row]][tokens[row]] += 1
                if row + 1 < start + rows:
                    steps[labels[row], tokens[row]][labels[row + 1]] += 1
                    steps[graph.size, tokens[row]][labels[row + 1]] += 1
            start += rows
    return edges, steps


@settings(max_examples=40)
@given(corpora(), st.integers(1, 4), st.integers(0, 1000))
def test_edges_and_steps_equal_a_naive_count(tmp_path_factory: Any, corpus: Rows, nodes: int, seed: int) -> None:
    workdir = fill(tmp_path_factory.mktemp("work"), corpus, seed=seed)
    states = sum(len(row) for row, _ in corpus)
    found = compile_graph(workdir, nodes=min(nodes, states))
    graph, (edges, steps) = found.graph, naive(found.graph, workdir)
    for node in range(graph.size):
        first, after = graph.edge_start[node : node + 2]
        tokens = graph.edge_token[first:after].tolist()
        assert tokens == [t for t, _ in sorted(edges[node].items(), key=lambda e: (-e[1], e[0]))]
        support = sum(edges[node].values())
        assert graph.support[node] == support
        shares = [edges[node][t] / support for t in tokens]
        np.testing.assert_allclose(graph.edge_probability[first:after], shares, rtol=1e-6)
    assert graph.step_key.tolist() == sorted(node * VOCABULARY + token for node, token in steps)
    for (node, token), reached in steps.items():
        most = max(reached.values())
        assert graph.step(node, token) == min(n for n, seen in reached.items() if seen == most)
    drafted = sum(len(row) - lead for row, lead in corpus)
    top = sum(max(seen.values()) for seen in edges.values() if seen)
    assert found.stats["top_edge_mass"] == pytest.approx(top / drafted)
    assert found.stats["edges"] == len(graph.edge_token) == sum(map(len, edges.values()))
    assert found.stats["path_reuse"] == pytest.approx(drafted / found.stats["edges"])
    assert graph.prompts.tolist() == list(range(len(corpus)))


def test_only_the_commonest_edges_of_a_node_are_kept(tmp_path: Path) -> None:
    tokens = [t for t in range(MAX_EDGES + 8) for _ in range(1 + t // 8)]
    graph = compile_graph(fill(tmp_path, [(tokens, 0)]), nodes=1).graph
    assert graph.edge_token.tolist() == sorted(range(8, MAX_EDGES + 8), key=lambda t: (-(t // 8), t))
    assert graph.support.tolist() == [len(tokens)]
    assert graph.edge_probability.sum() == pytest.approx((len(tokens) - 8) / len(tokens)), "shares of all that was seen"


def test_tokens_beyond_the_tokenizers_vocabulary_are_held(tmp_path: Path) -> None:
    """The teacher's head may be wider than its tokenizer."""
    graph = compile_graph(fill(tmp_path, [([1, 9, 1, 9], 0)], vocabulary=5), nodes=2).graph
    assert graph.vocab_size == 10 and 9 in graph.edge_token


@pytest.mark.parametrize("nodes", [0, -1, 9, 10_000])
def test_a_number_of_nodes_that_cannot_be_is_refused(tmp_path: Path, nodes: int) -> None:
    workdir = fill(tmp_path, [([1, 2, 3, 4], 0), ([1, 2, 3, 4], 1)])
    many = f"--nodes is {nodes}, but there are 8 states .*give 1 to 8"
    with pytest.raises(DaariError, match=many if nodes > 0 else f"nodes is {nodes}: give at least 1"):
        compile_graph(workdir, nodes=nodes)
    assert compile_graph(workdir, nodes=8).graph.size == 8


def test_equal_states_make_a_graph(tmp_path: Path) -> None:
    workdir = fill(tmp_path, [([1, 2, 1, 2, 1], 0)])
    path = workdir.shard_path(0)
    shard = next(workdir.read_shards())
    save_arrays(path, {field.name: getattr(shard, field.name) * (field.name != "reduced") for field in fields(shard)})
    graph = compile_graph(workdir, nodes=3).graph
    assert graph.support.sum() == 5


@given(st.integers(1, 10**9))
def test_auto_nodes_stay_within_bounds(states: int) -> None:
    count = auto_nodes(states)
    assert 1 <= count <= min(states, MAX_NODES)
    if states >= MIN_NODES:
        assert count >= MIN_NODES and count & (count - 1) == 0
    if MIN_NODES < count < MAX_NODES:
        assert 2**-0.51 < count * STATES_PER_NODE / states < 2**0.51


def test_auto_nodes_are_told(tmp_path: Path) -> None:
    stats = compile_graph(fill(tmp_path, [([1, 2, 3, 4] * 25, 1)])).stats
    assert stats["nodes"] == auto_nodes(100) == 64
    assert stats["settings"]["nodes"] == 64 and stats["settings"]["nodes_asked"] == "auto"


def test_the_statistics_say_what_was_done_and_how_to_do_it_again(compiled: Compiled) -> None:
    stats = read_stats(compiled.path)
    assert stats["sequences"] == len(compiled.sequences)
    assert stats["states"] == sum(len(s.tokens) - s.answer_start + 1 for s in compiled.sequences)
    assert stats["nodes"] == 96 and stats["edges"] == len(compiled.graph.edge_token)
    assert stats["steps"] == len(compiled.graph.step_key)
    assert 0.5 < stats["top_edge_mass"] < 1 and stats["path_reuse"] > 2
    assert stats["bytes"] == graph_bytes(compiled.path)
    assert set(stats["seconds"]) == {"answers", "choices", "states", "read", "cluster", "label", "build"}
    assert all(seconds >= 0 for seconds in stats["seconds"].values()) and stats["peak_mb"] > 50
    plan = json.loads(compiled.workdir.plan_path.read_text())
    for name in ("layer", "dimensions", "answers", "max_tokens", "corpus"):
        assert stats["settings"][name] == plan[name]
    assert stats["settings"]["nodes_asked"] == 96 and stats["settings"]["seed"] == 0
    assert {"mlx", "mlx-lm", "numpy", "scikit-learn", "daari-mlx"} <= set(stats["versions"])


def test_an_unfinished_or_emptied_extraction_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DaariError, match="run daari-mlx extract again"):
        compile_graph(Workdir(tmp_path / "nothing"))
    workdir = fill(tmp_path / "work", [([1, 2, 3], 0)])
    workdir.shard_path(0).unlink()
    with pytest.raises(DaariError, match=r"lacks 00000\.safetensors: extract again"):
        compile_graph(workdir)


def test_a_workdir_of_another_version_is_refused(tmp_path: Path) -> None:
    workdir = fill(tmp_path, [([1, 2, 3], 0)])
    plan = json.loads(workdir.plan_path.read_text())
    for change in ({"format_version": FORMAT - 1}, {"format_version": FORMAT + 1}, {"more": 1}):
        workdir.plan_path.write_text(json.dumps({**plan, **change}))
        with pytest.raises(DaariError, match="extract again"):
            compile_graph(workdir)


def test_two_processes_write_the_same_bytes(compiled: Compiled, tmp_path: Path) -> None:
    """And they are the bytes that this one wrote."""
    code = """
import sys
import daari_mlx
from daari_mlx.graph.artifact import save_graph
from daari_mlx.compile.compiler import compile_graph
from daari_mlx.compile.workdir import Workdir
found = compile_graph(Workdir(sys.argv[1]), nodes=96)
save_graph(found.graph, sys.argv[2], found.stats)
"""
    for name in ("one", "two"):
        command = [sys.executable, "-c", code, str(compiled.workdir.path), str(tmp_path / name)]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
    for file in (ARRAYS, CONFIG):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
        assert (tmp_path / "one" / file).read_bytes() == (compiled.path / file).read_bytes()


def test_another_seed_is_another_clustering(compiled: Compiled, tmp_path: Path) -> None:
    other = compile_graph(compiled.workdir, nodes=96, seed=1)
    assert not np.array_equal(other.graph.nodes.centroids, compiled.graph.nodes.centroids)
    assert load_graph(save_graph(other.graph, tmp_path / "graph", other.stats)).size == 96
