"""More text joins a graph, and two graphs become one: counts add up, nothing is lost, the same bytes twice."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from graphs import (
    FULL_VOCABULARY,
    Compiled,
    corpus_of,
    draft_everywhere,
    full_corpus,
    full_graph,
    full_nodes,
    full_sequences,
    write_rows,
)
from typer.testing import CliRunner

from daari_mlx.cli.main import app
from daari_mlx.compile.budget import MAX_BYTES, few_prompts, most_prompts
from daari_mlx.compile.build import build, count_graph
from daari_mlx.compile.merge import Part, join_nodes, merge_tables, spacing
from daari_mlx.compile.update import add_corpus, check_same, grow, merge_graphs
from daari_mlx.graph.artifact import ARRAYS, STATS, read_stats, save_graph
from daari_mlx.graph.graph import Graph
from daari_mlx.graph.nodes import Nodes, Projection
from daari_mlx.graph.outlook import HeldOut, Outlook, Promise
from daari_mlx.graph.source import NAMES
from daari_mlx.ground.errors import DaariError
from daari_mlx.share.find import load_graph


def counted(seed: int, count: int = 40) -> Graph:
    """The tables of some sequences, with prompts of their own."""
    corpus = corpus_of(full_sequences(count, seed=seed))
    graph = count_graph(full_nodes(), corpus, layer="final", vocab_size=FULL_VOCABULARY)
    return replace(graph, prompts=np.arange(seed * 1000, seed * 1000 + count, dtype=np.uint64))


def edge_counts(graph: Graph) -> Counter[tuple[int, int]]:
    node = np.repeat(np.arange(graph.size), np.diff(graph.edge_start))
    seen = np.rint(graph.edge_probability * graph.support[node]).astype(int)
    return Counter(dict(zip(zip(node.tolist(), graph.edge_token.tolist(), strict=True), seen.tolist(), strict=True)))


def same_nodes(*graphs: Graph) -> list[Part]:
    return [Part(graph, np.arange(graph.size)) for graph in graphs]


def test_edges_add_up_to_those_of_all_text_at_once() -> None:
    one, two = counted(1), counted(2)
    merged = merge_tables(full_nodes(), same_nodes(one, two))
    merged.check()
    both = corpus_of([*full_sequences(40, seed=1), *full_sequences(40, seed=2)])
    whole = count_graph(full_nodes(), both, layer="final", vocab_size=FULL_VOCABULARY)
    assert edge_counts(merged) == edge_counts(whole) == edge_counts(one) + edge_counts(two)
    np.testing.assert_array_equal(merged.support, whole.support)
    np.testing.assert_array_equal(merged.edge_token, whole.edge_token)
    assert set(merged.step_key.tolist()) == set(whole.step_key.tolist())
    agree = np.mean([merged.step(*divmod(k, FULL_VOCABULARY)) == whole.step(*divmod(k, FULL_VOCABULARY))
                     for k in whole.step_key.tolist()])  # fmt: skip
    assert agree > 0.9
    assert merged.prompts.tolist() == sorted({*one.prompts.tolist(), *two.prompts.tolist()})


def test_a_graph_alone_stays_what_it_was() -> None:
    graph = full_graph(3)
    alone = merge_tables(graph.nodes, same_nodes(graph))
    for name in ("edge_start", "edge_token", "support", "step_key", "step_node", "text"):
        np.testing.assert_array_equal(getattr(alone, name), getattr(graph, name), err_msg=name)


def test_a_graph_merged_with_itself_keeps_its_nodes_and_shares() -> None:
    graph = full_graph(3)
    twice = merge_graphs(graph, graph).graph
    assert twice.size == graph.size and twice.support.tolist() == (2 * graph.support).tolist()
    np.testing.assert_allclose(twice.edge_probability, graph.edge_probability, rtol=1e-5)
    draft_everywhere(twice)


def test_nodes_of_another_projection_find_their_place() -> None:
    """The same directions turned: the other graph's nodes lie where they did, and none is added."""
    nodes = full_nodes()
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))[0].astype(np.float32)
    basis = nodes.projection.basis @ turn
    turned = Nodes(Projection(nodes.projection.mean, basis), nodes.centroids @ turn)
    joined, place = join_nodes(nodes, turned, 100)
    assert place.tolist() == list(range(len(nodes.centroids))) and len(joined.centroids) == len(nodes.centroids)
    apart = Nodes(nodes.projection, nodes.centroids + 100)
    joined, place = join_nodes(nodes, apart, 100)
    assert place.tolist() == list(range(len(nodes.centroids), 2 * len(nodes.centroids)))
    np.testing.assert_array_equal(joined.centroids[: len(nodes.centroids)], nodes.centroids)
    assert len(join_nodes(nodes, apart, 15)[0].centroids) == 15, "no more than there may be"


def test_spacing_is_the_distance_of_the_nearest_other() -> None:
    points = np.random.default_rng(0).normal(size=(600, 4)).astype(np.float32)
    distance = np.linalg.norm(points[:, None] - points[None], axis=2) + np.diag(np.full(600, np.inf))
    np.testing.assert_allclose(spacing(points), distance.min(axis=1), atol=1e-3)


def test_new_states_get_nodes_only_where_they_lie_apart() -> None:
    nodes, random = full_nodes(), np.random.default_rng(0)
    near = nodes.centroids[random.integers(len(nodes.centroids), size=500)]
    assert grow(nodes, near, 500, 0) is nodes
    grown = grow(nodes, np.concatenate([near, near + 100]), 1000, 0)
    assert len(grown.centroids) - len(nodes.centroids) == 500 // 12
    np.testing.assert_array_equal(grown.centroids[: len(nodes.centroids)], nodes.centroids)


def test_text_that_is_added_is_drafted_and_what_was_there_still_is() -> None:
    graph = full_graph(0)
    more = add_corpus(graph, graph.nodes, corpus_of(full_sequences(60, seed=9)))
    more.check()
    assert more.support.sum() == graph.support.sum() + sum(len(s.tokens) - s.lead for s in full_sequences(60, seed=9))
    assert set(graph.step_key.tolist()) <= set(more.step_key.tolist())
    assert more.arbiter.names == graph.arbiter.names
    draft_everywhere(more)


OLDER = ("edge", "copy")  # the sources of a graph that has no single states


def with_sources(names: tuple[str, ...], seed: int = 0, count: int = 60) -> Graph:
    """A graph with everything, whose arbiter hears these sources only."""
    corpus = full_corpus(full_sequences(count, seed=seed), seed)
    graph = build(full_nodes(), corpus, layer="final", vocab_size=FULL_VOCABULARY, names=names).graph
    return replace(graph, prompts=np.arange(seed * 1000, seed * 1000 + count, dtype=np.uint64))


@pytest.mark.parametrize("names", [OLDER, NAMES])
@pytest.mark.parametrize("way", ["merge", "update"])
def test_exemplars_are_kept_where_a_source_reads_them(names: tuple[str, ...], way: str) -> None:
    graph, other = with_sources(names), with_sources(NAMES, seed=1, count=40)
    corpus = full_corpus(full_sequences(40, seed=1), 1)

    def made(limit: int) -> Graph:
        if way == "merge":
            return merge_graphs(graph, other, max_bytes=limit).graph
        return add_corpus(graph, graph.nodes, corpus, max_bytes=limit)

    for limit in (MAX_BYTES, 115_000):
        found = made(limit)
        found.check()
        assert found.arbiter.names == names
        assert (len(found.exemplars) > 0) == ("near" in names)
        draft_everywhere(found)


def test_a_graph_of_too_few_answers_is_heard_as_what_it_is_joined_with() -> None:
    few, many = with_sources(NAMES, count=6), with_sources(NAMES, seed=1)
    assert few.arbiter.names == ("edge",) and few.exemplars.place.size
    often = replace(few, support=few.support * 1000)  # it saw more, in longer answers
    for one, two in ((few, many), (often, many)):
        merged = merge_graphs(one, two).graph
        for mine, theirs in zip(merged.arbiter.odds, many.arbiter.odds, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-6)
        assert merged.arbiter.names == NAMES
        draft_everywhere(merged)
    grown = few
    for count, names in ((5, ("edge",)), (40, NAMES)):
        before = len(grown.exemplars)
        grown = add_corpus(grown, grown.nodes, full_corpus(full_sequences(count, seed=2), 2))
        grown.check()
        assert grown.arbiter.names == names and len(grown.exemplars) > before > 0
        draft_everywhere(grown)
    both = merge_graphs(few, with_sources(NAMES, seed=3, count=6)).graph
    assert both.arbiter.names == ("edge",) and len(both.exemplars) > len(few.exemplars)


def test_another_teacher_or_layer_is_refused() -> None:
    ours, theirs = ({"model_type": "x", "weights": w, "vocab_size": 60} for w in ("1", "2"))
    graph = full_graph(0, teacher=ours)
    with pytest.raises(DaariError, match=r"another teacher .*weights"):
        merge_graphs(graph, full_graph(1, teacher=theirs))
    with pytest.raises(DaariError, match=r"reads layer final.*with layer 3"):
        merge_graphs(graph, replace(full_graph(1, teacher=ours), layer=3))
    check_same(graph, ours, "final", "")


def test_hashes_of_prompts_have_a_share_of_the_bytes() -> None:
    prompts = np.random.default_rng(0).integers(2**63, size=500_000).astype(np.uint64)
    few = few_prompts(prompts, 9_000_000)
    assert len(few) == most_prompts(9_000_000) and few.tolist() == sorted(prompts.tolist())[: len(few)]
    assert few_prompts(prompts[:10], 9_000_000).tolist() == sorted(prompts[:10].tolist())


# --- from the command line


def done(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def more(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("more") / "new.jsonl"
    write_rows(path, 30, seed=77)
    return path


def test_an_update_needs_no_old_states_and_gives_the_same_bytes_twice(
    compiled: Compiled, more: Path, tiny_teacher_path: Path, tmp_path: Path
) -> None:
    graphs = [tmp_path / "one", tmp_path / "two"]
    for graph in graphs:
        shutil.copytree(compiled.path, graph)
        done("compile", "--update", graph, "--data", more, "--model", tiny_teacher_path)
    assert (graphs[0] / ARRAYS).read_bytes() == (graphs[1] / ARRAYS).read_bytes()
    assert {p.name for p in tmp_path.iterdir()} == {"one", "two"}, "no work is left behind"
    found, stats = load_graph(graphs[0]), read_stats(graphs[0])
    assert set(compiled.graph.prompts.tolist()) < set(found.prompts.tolist())
    assert len(found.prompts) == len(compiled.graph.prompts) + 30
    assert stats["added"]["sequences"] == 30
    assert stats["held_out"]["answers"] > read_stats(compiled.path)["held_out"]["answers"], "of old and new text"
    assert found.support.sum() > compiled.graph.support.sum()
    size = compiled.graph.size
    np.testing.assert_array_equal(found.nodes.centroids[:size], compiled.graph.nodes.centroids)
    assert found.teacher == compiled.graph.teacher and found.layer == compiled.graph.layer


@pytest.mark.parametrize("answers", [None, "reference"])
def test_an_update_is_made_as_the_graph_was_and_a_mixture_is_told(
    answers: str | None, compiled: Compiled, more: Path, tiny_teacher_path: Path, tmp_path: Path
) -> None:
    """The graph holds the teacher's answers of at most 60 tokens, of chats rendered with some variable."""
    graph = tmp_path / "graph"
    shutil.copytree(compiled.path, graph)
    stats = read_stats(graph)
    config = {"enable_thinking": False}
    stats["settings"] |= {"answers": "teacher", "max_tokens": 12, "chat_template_config": config}
    (graph / STATS).write_text(json.dumps(stats))
    args = ["compile", "--update", graph, "--data", more, "--model", tiny_teacher_path, "--limit", "6"]
    result = done(*args, *(["--answers", answers] if answers else []))
    settings = read_stats(graph)["settings"]
    assert settings["answers"] == ("mixed" if answers else "teacher")
    assert settings["max_tokens"] == 12 and settings["chat_template_config"] == config
    assert ("holds teacher answers, these are reference ones" in result) == bool(answers)
    assert '--chat-template-config is the graph\'s own, {"enable_thinking": false}' in result
    assert ("not known: some of the answers" in result) == bool(answers)


HEARD = {"held_out": Outlook((HeldOut(10, (Promise((0.9,), 1),) * 3),) * 2).as_record()}


def test_a_graph_that_has_all_prompts_of_another_is_taken_alone() -> None:
    small, large = sorted((full_graph(1), full_graph(2)), key=lambda graph: int(graph.support.sum()))
    large = replace(large, prompts=np.sort(np.append(large.prompts, np.uint64(9))))
    settings: dict[str, object] = {"answers": "teacher", "max_tokens": 40}
    stats = {"settings": settings, **HEARD}
    for pair in ((large, small), (small, large)):
        merged = merge_graphs(*pair, stats=(stats, stats))
        assert merged.stats["counted_once"] and merged.stats["shared_prompts"] == 2
        assert merged.stats["held_out"]["answers"] == 2
        assert merged.graph.support.tolist() == large.support.tolist()
        assert edge_counts(merged.graph) == edge_counts(large)
        draft_everywhere(merged.graph)
    # other answers to the same prompts, and prompts of which only some are known, are more than the larger graph has
    for changes in ({"answers": "reference"}, {"answers": "mixed"}, {"max_tokens": 41}, {"max_bytes": 160}):
        other = {"settings": settings | changes, **HEARD}
        merged = merge_graphs(large, small, stats=(stats, other))
        assert not merged.stats["counted_once"], changes
        assert merged.graph.support.sum() == large.support.sum() + small.support.sum()
    more = replace(small, prompts=np.append(small.prompts, np.uint64(2**63 + 2)))
    assert not merge_graphs(large, more, stats=(stats, stats)).stats["counted_once"]


def test_a_merged_graph_keeps_what_was_promised_and_whose_answers_it_holds() -> None:
    one, two = full_graph(1), replace(full_graph(2), prompts=np.array([3, 7], np.uint64))
    stats = {"settings": {"answers": "teacher", "max_tokens": 40}, "answers_cut": 3, **HEARD}
    merged = merge_graphs(one, two, stats=(stats, stats)).stats
    assert merged["settings"]["answers"] == "teacher" and merged["settings"]["max_tokens"] == 40
    assert merged["held_out"]["answers"] == 4 and merged["answers_cut"] == 6
    both = np.intersect1d(one.prompts, two.prompts)
    assert merged["shared_prompts"] == len(both)
    assert merge_graphs(one, one).stats["shared_prompts"] == len(one.prompts)
    for other in ({}, {"settings": {"answers": "reference"}}, {"settings": {"answers": "mixed"}}, {"settings": 3}):
        assert merge_graphs(one, two, stats=(stats, other)).stats["settings"]["answers"] == "mixed"


@pytest.mark.parametrize("known", [0, 6, 10])
def test_an_update_counts_answers_and_says_which_prompts_are_known(
    known: int, compiled: Compiled, more: Path, tiny_teacher_path: Path, tmp_path: Path
) -> None:
    graph = tmp_path / "graph"
    shutil.copytree(compiled.path, graph)
    lines = more.read_text().splitlines()
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    first.write_text("\n".join(lines[:10]) + "\n")
    second.write_text("\n".join(lines[10 - known : 20 - known]) + "\n")
    words = ["compile", "--update", graph, "--model", tiny_teacher_path, "--answers", "reference", "--data"]
    before = read_stats(graph)["sequences"]
    assert "are in the graph already" not in done(*words, first)
    stats = read_stats(graph)
    stats["answers_cut"] = stats["sequences"]  # every answer that is there was cut; none of those that come
    (graph / STATS).write_text(json.dumps(stats))
    told = f"note: {known} of these 10 prompts are in the graph already: what they taught counts twice"
    out = done(*words, second)
    assert (told in out) == bool(known)
    assert read_stats(graph)["sequences"] == before + 20 and read_stats(graph)["shared_prompts"] == known
    assert f"{before + 10} of {before + 20}, by --max-tokens" in out


def test_no_more_answers_are_cut_than_there_are() -> None:
    one, two = full_graph(1), full_graph(2)
    settings = {"answers": "teacher", "max_tokens": 40}
    many, few = ({"settings": settings, "sequences": count, "answers_cut": count} for count in (30, 26))
    merged = merge_graphs(one, two, stats=(many, few | {"settings": settings | {"max_tokens": 50}})).stats
    assert merged["answers_cut"] == merged["sequences"] == 56, "prompts that are in both were answered twice"
    once = merge_graphs(one, one, stats=(many, many)).stats
    assert once["counted_once"] and once["answers_cut"] == once["sequences"] == 30
    assert merge_graphs(one, two).stats["sequences"] == len(one.prompts) + len(two.prompts), "not told: its prompts"


def test_an_update_can_be_written_elsewhere(
    compiled: Compiled, more: Path, tiny_teacher_path: Path, tmp_path: Path
) -> None:
    before = (compiled.path / ARRAYS).read_bytes()
    done("compile", "--update", compiled.path, "--data", more, "--model", tiny_teacher_path, "--graph-path",
         tmp_path / "new", "--limit", "5")  # fmt: skip
    assert (compiled.path / ARRAYS).read_bytes() == before
    assert load_graph(tmp_path / "new").arbiter.names == compiled.graph.arbiter.names


@pytest.mark.parametrize("words", [["--nodes", "8"], ["--layer", "1"]])
def test_what_an_update_cannot_honour_is_refused(compiled: Compiled, more: Path, words: list[str]) -> None:
    result = CliRunner().invoke(
        app, ["compile", "--update", str(compiled.path), "--data", str(more), "--model", "x", *words]
    )
    assert result.exit_code == 2 and "graph's own" in result.output


def test_an_update_needs_text_and_teacher(compiled: Compiled, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["compile", "--update", str(compiled.path), "--workdir", str(tmp_path)])
    assert result.exit_code == 2 and "--data and --model" in result.output


def test_two_graphs_become_one(compiled: Compiled, tmp_path: Path) -> None:
    other = replace(compiled.graph, prompts=compiled.graph.prompts[:1] + np.uint64(1))
    save_graph(other, tmp_path / "other", compiled.stats)
    out = done("merge", compiled.path, tmp_path / "other", "--graph-path", tmp_path / "both")
    found = load_graph(tmp_path / "both")
    assert len(found.prompts) == len(compiled.graph.prompts) + 1 and "nodes" in out
    assert found.size == compiled.graph.size
    out = done("merge", tmp_path / "both", compiled.path, "--graph-path", tmp_path / "again")
    assert "prompts are in both graphs: one of them has all that the other has, and is taken alone" in out
    assert load_graph(tmp_path / "again").support.tolist() == found.support.tolist()
