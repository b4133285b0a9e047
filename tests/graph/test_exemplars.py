"""Single states and where each went on: kept within their bytes, found by nearness, followed as a plain look-up is."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import numpy as np
import pytest
from graphs import (
    FULL_NODES,
    FULL_VOCABULARY,
    WIDTH,
    Said,
    corpus_of,
    draft_everywhere,
    full_corpus,
    full_graph,
    full_nodes,
    full_sequences,
)
from hypothesis import given
from hypothesis import strategies as st
from test_tables import sequences

from daari_mlx.compile import budget, merge
from daari_mlx.compile.budget import OVERHEAD, exemplar_rows, keep_exemplars
from daari_mlx.compile.build import count_graph
from daari_mlx.compile.merge import Part, merge_tables
from daari_mlx.compile.update import merge_graphs
from daari_mlx.graph import exemplars
from daari_mlx.graph.arrays import to_arrays
from daari_mlx.graph.cells import DISTANCES
from daari_mlx.graph.codepoints import BREAK
from daari_mlx.graph.exemplars import NEAREST, QUANTILES, REACH, Coarse, Exemplars, make_exemplars, rank_within, spans
from daari_mlx.graph.graph import Graph
from daari_mlx.graph.nodes import Nodes, Projection
from daari_mlx.graph.source import CELL, CELL_BITS, SILENT
from daari_mlx.graph.sources import Sources

SEEDS = st.integers(0, 2**32 - 1)


def whole_numbers(random: np.random.Generator, count: int, reach: int = 20) -> Coarse:
    """States that float32 tells the distances of exactly."""
    return Coarse(random.integers(-reach, reach + 1, size=(count, 3)).astype(np.int8), np.ones(3, np.float32))


# --- states of a byte a number


@given(SEEDS, st.integers(0, 30), st.sampled_from([1e-6, 1.0, 1e4]))
def test_a_byte_is_wrong_by_half_a_step_at_the_most(seed: int, count: int, scale: float) -> None:
    states = (np.random.default_rng(seed).normal(size=(count, WIDTH)) * scale).astype(np.float32)
    coarse = Coarse.of(states)
    assert len(coarse) == count and coarse.values.dtype == np.int8 and coarse.unit.shape == (WIDTH,)
    assert (coarse.unit > 0).all() and (np.abs(coarse[:] - states) <= coarse.unit * 0.5001).all()
    assert count == 0 or np.array_equal(coarse[count - 1], coarse[:][-1])


def test_what_a_given_step_cannot_reach_is_cut() -> None:
    unit = np.array([1.0, 0.5], np.float32)
    coarse = Coarse.of(np.array([[3.4, 3.4], [-500, 500]], np.float32), unit)
    assert coarse.values.tolist() == [[3, 7], [-127, 127]] and coarse.unit is unit


@given(st.lists(st.integers(0, 12), max_size=12), st.integers(0, 9))
def test_rows_are_taken_up_to_the_first_that_is_unknown(rows: list[int], known: int) -> None:
    coarse = whole_numbers(np.random.default_rng(0), known)
    expected = rows[: next((k for k, row in enumerate(rows) if row >= known), len(rows))]
    assert coarse.take(np.array(rows, np.int64)).values.tolist() == [coarse.values[k].tolist() for k in expected]


# --- runs and ranks


@given(st.lists(st.integers(-3, 5)))
def test_runs_and_ranks_are_those_of_a_loop(keys: list[int]) -> None:
    seen: Counter[int] = Counter()
    expected = []
    for key in keys:
        expected.append(seen[key])
        seen[key] += 1
    assert rank_within(np.array(keys, np.int32)).tolist() == expected
    runs = {key: (sorted(keys).index(key), sorted(keys).index(key) + seen[key]) for key in seen}
    assert spans(np.array(sorted(keys), np.int32)) == runs


# --- the nearest ones


@given(SEEDS, st.integers(1, 4 * NEAREST), st.integers(0, 5), st.sampled_from([0, 1, 400]))
def test_the_nearest_are_those_that_all_distances_tell(seed: int, count: int, first: int, width: int) -> None:
    random = np.random.default_rng(seed)
    states, place = whole_numbers(random, first + count + 3), random.permutation(first + count + 3).astype(np.int32)
    bounds = np.array([width // 2, width, width, 2 * width, 3 * width], np.float32)
    kept, state = Exemplars(states, place, bounds), random.integers(-20, 21, size=3).astype(np.float32)
    places, far, bucket = kept.nearest((first, first + count), state)
    weights = kept.weigh(far)
    distance = {int(place[k]) + 1: float(((states[k] - state) ** 2).sum()) for k in range(first, first + count)}
    assert len(set(places)) == len(places) == min(count, NEAREST) and set(places) <= set(distance)
    least = sorted(distance.values())[: len(places)]
    assert sorted(distance[p] for p in places) == least
    assert kept.width == max(0.3 * float(bounds[2]), 1e-9)
    expected = [max(float(np.exp((least[0] - distance[p]) / kept.width)), float(exemplars.LEAST)) for p in places]
    np.testing.assert_allclose(weights, expected, rtol=1e-4)
    assert bucket == sum(bound < least[0] for bound in bounds.tolist()) < DISTANCES


@given(SEEDS, st.integers(0, 40), st.integers(1, 4))
def test_exemplars_lie_by_token_and_know_how_near_other_answers_are(seed: int, count: int, owners: int) -> None:
    random = np.random.default_rng(seed)
    states, place = whole_numbers(random, count), random.permutation(count).astype(np.int32)
    tokens, owner = random.integers(0, 5, size=count).astype(np.int32), random.integers(0, owners, size=count)
    made = make_exemplars(states, place, tokens, owner)
    order = sorted(range(count), key=lambda k: (tokens[k], place[k]))
    assert made.place.tolist() == place[order].tolist() and made.place.dtype == np.int32
    assert made.states.values.tolist() == states.values[order].tolist()
    others = [[((states[k] - states[j]) ** 2).sum() for j in order if tokens[j] == tokens[k] and owner[j] != owner[k]]
              for k in order]  # fmt: skip
    found = [min(distances) for distances in others if distances]
    np.testing.assert_allclose(made.bounds, np.quantile(found, QUANTILES) if found else np.zeros(len(QUANTILES)))
    assert made.bounds.dtype == np.float32 and (np.diff(made.bounds) >= 0).all()


# --- which rows


@given(sequences(), st.data())
def test_the_first_whole_sequences_that_fit_give_exemplars(said: list[Said], data: st.DataObject) -> None:
    corpus = corpus_of(said)
    known = data.draw(st.integers(0, len(corpus.tokens)))
    alike = data.draw(st.integers(1, 6))
    allowed = data.draw(st.integers(0, 500))
    corpus = replace(corpus, states=whole_numbers(np.random.default_rng(0), known))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(budget, "ALIKE", alike)
        rows, count = exemplar_rows(corpus, allowed)
    best: tuple[list[int], int] = ([], 0)
    kept: list[int] = []
    seen: Counter[int] = Counter()
    row = words = 0
    for done, s in enumerate(said, 1):
        for k, token in enumerate(s.tokens[:-1], row):
            seen[token] += 1
            if seen[token] <= alike:
                kept.append(k)
        row, words = row + len(s.tokens), words + len(s.tokens) + 1
        if row <= known and len(kept) * (3 + 4) + words * 4 <= allowed:
            needed = done if len(kept) > len(best[0]) else best[1]  # behind the last of them no text is
            best = list(kept), needed
    assert (rows.tolist(), count) == best


# --- the source


def torn_graph() -> Graph:
    """Of three tokens in any order: the nearest states go on in many ways."""
    random = np.random.default_rng(4)
    said = []
    for length in random.integers(1, 30, size=40).tolist():
        said.append(Said([], random.integers(3, size=length).tolist(), random.integers(4, size=length).tolist()))
    return count_graph(full_nodes(), full_corpus(said), layer="final", vocab_size=FULL_VOCABULARY)


GRAPHS = (full_graph(), torn_graph())


@given(st.sampled_from(GRAPHS), SEEDS, st.sampled_from([0.0, 0.1, 1.0]), st.data())
def test_near_goes_on_as_most_of_the_nearest_did(graph: Graph, seed: int, blur: float, data: st.DataObject) -> None:
    random = np.random.default_rng(seed)
    state = graph.nodes.centroids[seed % 4] + np.float32(blur) * random.normal(size=WIDTH).astype(np.float32)
    last = data.draw(st.sampled_from([*graph.exemplars_of, 3]))
    sources = Sources(graph, ("near",))
    moment = sources.start([5, last], 0, state=state)
    text, alive, bucket = graph.text.tolist(), [], 0
    if last in graph.exemplars_of:
        places, far, bucket = graph.exemplars.nearest(graph.exemplars_of[last], state)
        weights = graph.exemplars.weigh(far)
        alive = [(w, text[p : text.index(BREAK, p)]) for p, w in zip(places, weights, strict=True)]
    for _ in range(data.draw(st.integers(1, 16))):
        mass: dict[int, float] = {}
        for weight, rest in alive:
            said = rest[0] if rest else BREAK
            mass[said] = mass.get(said, 0.0) + weight
        token = max(mass, key=mass.__getitem__) if mass else SILENT
        (voice,) = moment.voices
        assert voice >> CELL_BITS == token
        if token != SILENT:
            share = mass[token] / sum(weight for weight, _ in alive)
            assert voice & CELL == int(share * 8 + 1e-6) * DISTANCES + bucket
        pushed = data.draw(st.sampled_from([token, token, *mass, 3]))
        if pushed == SILENT:
            return
        sources.push(pushed, moment)
        alive = [(weight, rest[1:]) for weight, rest in alive if rest[:1] == [pushed]]


def test_without_states_near_is_silent() -> None:
    corpus = corpus_of(full_sequences(40))
    graph = count_graph(full_nodes(), corpus, layer="final", vocab_size=FULL_VOCABULARY)
    graph.check()
    assert len(graph.exemplars) == 0 and graph.exemplars_of == {}
    for made, state in ((graph, full_nodes().centroids[0]), (full_graph(), None)):
        sources = Sources(made, ("near",))
        moment = sources.start([5, 10], 0, state=state)
        sources.push(11, moment)
        assert moment.voices == [SILENT]


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
@pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")
def test_a_state_that_is_no_number_is_far_from_all(value: float) -> None:
    graph = full_graph()
    for token in graph.exemplars_of:
        sources = Sources(graph, ("near",))
        (voice,) = sources.start([token], 0, state=np.full(WIDTH, value, np.float32)).voices
        assert voice == SILENT or (voice & CELL) % DISTANCES == DISTANCES - 1


# --- within the bytes of a graph, and merged


def numbered(said: list[Said], first: int = 0) -> Coarse:
    """States that tell which row they are of."""
    row = first + np.arange(sum(len(s.tokens) for s in said))
    values = np.stack([row // 100**k % 100 for k in range(WIDTH)], axis=1)
    return Coarse(values.astype(np.int8), np.ones(WIDTH, np.float32))


def number(graph: Graph) -> list[int]:
    return (graph.exemplars.states.values.astype(np.int64) @ [100**k for k in range(WIDTH)]).tolist()


def numbered_graph(
    seed: int, count: int, nodes: Nodes | None = None, **options: Any
) -> tuple[Graph, dict[int, list[int]]]:
    """The tables of some sequences, and what followed in them from each row on, that row's token first."""
    said, first = full_sequences(count, seed=seed), 10_000 * seed
    corpus = corpus_of(said, numbered(said, first))
    graph = count_graph(nodes or full_nodes(), corpus, layer="final", vocab_size=FULL_VOCABULARY, **options)
    follows = [s.tokens[k:] for s in said for k in range(len(s.tokens))]
    prompts = np.arange(first, first + count, dtype=np.uint64)
    return replace(graph, arbiter=full_graph().arbiter, prompts=prompts), dict(enumerate(follows, first))


def counted_bytes(graph: Graph) -> int:
    fixed = ("arbiter.odds", "arbiter.weights", "exemplars.unit", "exemplars.bounds")
    return OVERHEAD + sum(array.nbytes for name, array in to_arrays(graph).items() if name not in fixed)


def assert_followed(graph: Graph, follows: dict[int, list[int]]) -> None:
    """Every exemplar's text goes on as it did, as far as a path or to its sequence's end; none is there twice."""
    graph.check()
    text = graph.text.tolist()
    for row, place in zip(number(graph), graph.exemplars.place.tolist(), strict=True):
        said = text[place : text.index(BREAK, place)][: REACH + 1]
        assert len(said) > 1 and said == follows[row][: REACH + 1]
    assert len(set(number(graph))) == len(graph.exemplars)


@pytest.mark.parametrize("max_bytes", [107_000, 112_000, 118_000, 130_000, 150_000, 200_000])
def test_exemplars_fit_into_the_bytes_of_a_graph(max_bytes: int) -> None:
    graph, follows = numbered_graph(1, 300, max_bytes=max_bytes)
    assert counted_bytes(graph) <= max_bytes
    assert_followed(graph, follows)
    assert 0 < len(graph.exemplars) <= len(follows) - 300
    assert (len(graph.exemplars) == len(follows) - 300) == (max_bytes == 200_000), "some are cut where bytes are few"
    draft_everywhere(graph)


@pytest.mark.parametrize("limit", [None, 106_000, 109_000, 115_000, 125_000])
def test_a_merged_graph_has_exemplars_of_both(limit: int | None) -> None:
    (one, follows), (two, more) = numbered_graph(1, 80), numbered_graph(2, 60)
    merged = merge_graphs(one, two, max_bytes=limit).graph
    assert_followed(merged, follows | more)
    rows = number(merged)
    assert set(rows) & set(number(one)) and set(rows) & set(number(two))
    if limit is None:
        assert set(rows) == {*number(one), *number(two)}
    else:
        assert counted_bytes(merged) <= limit and len(rows) < len(one.exemplars) + len(two.exemplars)
    assert (np.diff(merged.exemplars.bounds) >= 0).all()
    draft_everywhere(merged)


@pytest.mark.parametrize("alike", [1, 7, 50])
def test_no_token_has_too_many_and_both_graphs_give_theirs_in_turn(monkeypatch: pytest.MonkeyPatch, alike: int) -> None:
    for module in (budget, merge):
        monkeypatch.setattr(module, "ALIKE", alike)
    (one, follows), (two, more) = numbered_graph(1, 80), numbered_graph(2, 60)
    merged = merge_graphs(one, two).graph
    assert_followed(merged, follows | more)
    rows, chosen = number(merged), [number(graph) for graph in (one, two)]
    for token, (first, last) in merged.exemplars_of.items():
        parts = [
            own[slice(*graph.exemplars_of.get(token, (0, 0)))] for graph, own in zip((one, two), chosen, strict=True)
        ]
        in_turn = [row for pair in zip_longest(*parts) for row in pair if row is not None]
        assert max(map(len, parts)) <= alike and set(rows[first:last]) == set(in_turn[:alike])


def test_states_of_another_projection_are_not_cut_where_the_first_graph_has_none() -> None:
    """Directions in another order, of which one is long: its own steps would cut the states of the other graph."""
    nodes, corpus = full_nodes(), full_corpus(full_sequences(60))
    mean, basis = nodes.projection.mean, nodes.projection.basis
    turned = Nodes(Projection(mean, basis[:, ::-1].copy()), nodes.centroids[:, ::-1].copy())
    own = corpus.states[:] * np.array([100, 1, 1, 1], np.float32)
    bare = count_graph(nodes, corpus_of(full_sequences(60)), layer="final", vocab_size=FULL_VOCABULARY)
    other = count_graph(turned, replace(corpus, states=Coarse.of(own)), layer="final", vocab_size=FULL_VOCABULARY)
    found = merge_tables(nodes, [Part(graph, np.arange(FULL_NODES)) for graph in (bare, other)]).exemplars.states
    expected = other.exemplars.states[:][:, ::-1]
    assert len(found) == len(expected) and (np.abs(found[:] - expected) <= found.unit).all()


@given(st.integers(0, 6000))
def test_of_exemplars_alone_evenly_many_are_kept(allowed: int) -> None:
    graph, follows = numbered_graph(1, 20)
    text, kept = keep_exemplars(graph.text, graph.exemplars, allowed)
    assert 4 * len(text) + (WIDTH + 4) * len(kept) <= allowed
    moved = replace(kept, place=kept.place + np.int32(len(graph.text)))
    assert_followed(replace(graph, text=np.concatenate([graph.text, text]), exemplars=moved), follows)
    own = number(graph)
    gaps = np.diff([own.index(row) for row in number(replace(graph, exemplars=kept))])
    assert len(gaps) == 0 or gaps.max() - gaps.min() <= 1


def test_no_bytes_hold_no_exemplars() -> None:
    graph = full_graph()
    text, kept = keep_exemplars(graph.text, graph.exemplars, 0)
    assert len(text) == len(kept) == len(kept.states) == 0
    replace(graph, exemplars=kept).check()
