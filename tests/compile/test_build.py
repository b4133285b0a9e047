"""The whole of a graph: the same bytes twice, what it drafts on unseen text, and what damage is refused or harmless."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from graphs import (
    FULL_STATES,
    FULL_VOCABULARY,
    WIDTH,
    Said,
    draft_everywhere,
    full_corpus,
    full_graph,
    full_nodes,
    full_sequences,
    random_nodes,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from daari_mlx.compile.build import build
from daari_mlx.compile.calibrate import MIN_SEQUENCES
from daari_mlx.draft.drafter import Context, GraphDrafter
from daari_mlx.graph.arbiter import Arbiter, counted
from daari_mlx.graph.arrays import DTYPES, from_arrays, to_arrays
from daari_mlx.graph.artifact import FORMAT_VERSION
from daari_mlx.graph.codepoints import BREAK, MAX_TOKEN
from daari_mlx.graph.exemplars import ALIKE, QUANTILES, Coarse, Exemplars
from daari_mlx.graph.graph import Graph
from daari_mlx.graph.source import NAMES, cells
from daari_mlx.ground.errors import DaariError


def built(sequences: list[Said], **options: Any) -> Graph:
    return build(full_nodes(), full_corpus(sequences), layer="final", vocab_size=FULL_VOCABULARY, **options).graph


def test_the_same_corpus_gives_the_same_bytes() -> None:
    first, second = to_arrays(full_graph()), to_arrays(built(full_sequences()))
    assert first.keys() == second.keys() == DTYPES.keys()
    for name, array in first.items():
        if name != "prompts":
            assert array.dtype == second[name].dtype == DTYPES[name]
            assert array.tobytes() == second[name].tobytes(), name


def test_another_seed_holds_others_out_and_leaves_the_tables() -> None:
    first, second = to_arrays(full_graph()), to_arrays(built(full_sequences(), seed=1))
    differing = {n for n in first if n != "prompts" and first[n].tobytes() != second[n].tobytes()}
    assert "arbiter.odds" in differing and differing <= {"arbiter.odds", "arbiter.weights"}


@pytest.mark.parametrize("count", [1, 2, MIN_SEQUENCES - 1])
def test_a_small_corpus_is_drafted_from_by_its_walk(count: int) -> None:
    graph = built(full_sequences(count))
    graph.check()
    assert graph.arbiter.names == counted().names == ("edge",)
    assert len(graph.text) == sum(len(s.tokens) + 1 for s in full_sequences(count))
    draft_everywhere(graph)


@pytest.mark.parametrize("names", [("edge",), ("copy", "edge"), NAMES])
def test_only_named_sources_are_heard(names: tuple[str, ...]) -> None:
    graph = built(full_sequences(25), names=names)
    graph.check()
    assert graph.arbiter.names == names
    draft_everywhere(graph)


@pytest.mark.parametrize(
    "sequences",
    [
        [Said([1], [2], [0])] * 30,
        [Said([1], [2, 3], [0, 1])] * 30,
        [Said([], [2] * 70, [0] * 70)] * 25,
        [Said([5] * 50, [2, 2], [0, 0], 2)] * 25,
        [Said([1], [], [])] * 24 + [Said([1], [2, 3, 4], [0, 1, 2])],
    ],
    ids=["nothing follows", "one token follows", "one token for ever", "prompts alone", "empty sequences"],
)
def test_odd_corpora_make_sound_graphs(sequences: list[Said]) -> None:
    graph = built(sequences)
    graph.check()
    draft_everywhere(graph)


def accepted(drafter: GraphDrafter, sequences: list[Said]) -> tuple[int, int, list[float]]:
    """(rounds, draft tokens accepted, what was promised for each that was judged) over some answers, token by token."""
    rounds = right = 0
    judged: list[tuple[float, bool]] = []
    for said in sequences:
        whole, at = [*said.before, *said.tokens], 1
        tokens = whole[: len(said.before) + 1]
        while at < len(said.tokens):
            draft = drafter.draft(Context(tokens, FULL_STATES[said.labels[at - 1]]), 20)
            rounds += 1
            kept = 0
            for own, promised, token in zip(said.tokens[at:], draft.probabilities, draft.tokens, strict=False):
                judged.append((promised, own == token))
                if own != token:
                    break
                kept += 1
            right += kept
            tokens.extend(said.tokens[at : at + kept + 1])
            at += kept + 1
    return rounds, right, judged


def test_unseen_answers_are_drafted_as_promised() -> None:
    unseen = full_sequences(60, seed=123)
    rounds, right, judged = accepted(GraphDrafter(full_graph(), num_draft_tokens=20), unseen)
    assert right / rounds > 1.5
    promised, kept = (np.array(column, float) for column in zip(*judged, strict=True))
    assert abs(promised.mean() - kept.mean()) < 0.05
    _, walked, _ = accepted(GraphDrafter(replace(full_graph(), arbiter=counted()), num_draft_tokens=20), unseen)
    assert right > 1.1 * walked, "quotes are copied, which no walk can"


# --- damage


def damaged(part: str | None, **changes: Any) -> Graph:
    graph = full_graph()
    if part is None:
        return replace(graph, **changes)
    return replace(graph, **{part: replace(getattr(graph, part), **changes)})


def changed(part: str, name: str, index: Any, value: Any) -> Graph:
    array = getattr(getattr(full_graph(), part), name).copy()
    array[index] = value
    return damaged(part, **{name: array})


def with_states(change: Callable[[Any], Any], name: str = "values") -> Graph:
    """With other numbers, or steps that they are worth, of the exemplars' states."""
    states = full_graph().exemplars.states
    return damaged("exemplars", states=replace(states, **{name: change(getattr(states, name).copy())}))


def with_text(index: int, token: int) -> Graph:
    text = full_graph().text.copy()
    text[index] = token
    return damaged(None, text=text)


def with_odds(source: int, values: Any) -> Graph:
    odds = list(full_graph().arbiter.odds)
    odds[source] = values(odds[source].copy())
    return damaged("arbiter", odds=tuple(odds))


def with_value(value: float, index: Any = 3) -> Any:
    def change(odds: np.ndarray) -> np.ndarray:
        odds[index] = value
        return odds

    return change


def narrow(states: Coarse) -> Coarse:
    return Coarse(states.values[:, :-1], states.unit[:-1])


def crowded() -> Graph:
    """A graph with one exemplar more than a token may have."""
    kept, count = full_graph().exemplars, ALIKE + 1
    many = Coarse(np.repeat(kept.states.values[:1], count, axis=0), kept.states.unit)
    return damaged(None, exemplars=replace(kept, states=many, place=np.repeat(kept.place[:1], count)))


SIZE = len(full_graph().text)
DAMAGES = {
    "token of no vocabulary": lambda: with_text(0, FULL_VOCABULARY),
    "token below a break": lambda: with_text(0, -2),
    "no break at the end": lambda: with_text(-1, 5),
    "text without its last break": lambda: damaged(None, text=full_graph().text[:-1]),
    "text of another type": lambda: damaged(None, text=full_graph().text.astype(np.int64)),
    "states of another type": lambda: with_states(lambda values: values.astype(np.int16)),
    "states of no width": lambda: with_states(lambda values: values[:, 0]),
    "narrower states": lambda: with_states(lambda values: values[:, :-1]),
    "wider states": lambda: with_states(lambda values: np.repeat(values, 2, axis=1)),
    "states and steps narrower than nodes": lambda: damaged("exemplars", states=narrow(full_graph().exemplars.states)),
    "fewer states": lambda: with_states(lambda values: values[:-1]),
    "no states": lambda: with_states(lambda values: values[:0]),
    "unit zero": lambda: with_states(with_value(0.0, 1), "unit"),
    "unit negative": lambda: with_states(with_value(-1.0, 1), "unit"),
    "unit NaN": lambda: with_states(with_value(np.nan, 1), "unit"),
    "unit infinite": lambda: with_states(with_value(np.inf, 1), "unit"),
    "unit so large that squares overflow": lambda: with_states(with_value(1e30, 1), "unit"),
    "unit too long": lambda: with_states(lambda unit: np.append(unit, unit[:1]), "unit"),
    "unit too short": lambda: with_states(lambda unit: unit[:-1], "unit"),
    "unit of another type": lambda: with_states(lambda unit: unit.astype(np.float64), "unit"),
    "exemplar before the text": lambda: changed("exemplars", "place", 0, -1),
    "exemplar beyond the text": lambda: changed("exemplars", "place", -1, SIZE),
    "exemplar between sequences": lambda: changed("exemplars", "place", 0, SIZE - 1),
    "exemplars by no token": lambda: damaged("exemplars", place=full_graph().exemplars.place[::-1].copy()),
    "fewer exemplars": lambda: damaged("exemplars", place=full_graph().exemplars.place[:-1]),
    "exemplars of another type": lambda: damaged("exemplars", place=full_graph().exemplars.place.astype(np.int64)),
    "exemplars in a column": lambda: damaged("exemplars", place=full_graph().exemplars.place[:, None]),
    "exemplars that are none": lambda: damaged("exemplars", place=np.array(5, np.int32)),
    "bounds that fall": lambda: changed("exemplars", "bounds", 0, 1e5),
    "bound NaN": lambda: changed("exemplars", "bounds", 2, np.nan),
    "bound infinite": lambda: changed("exemplars", "bounds", -1, np.inf),
    "bound negative": lambda: changed("exemplars", "bounds", 0, -1e-3),
    "fewer bounds": lambda: damaged("exemplars", bounds=full_graph().exemplars.bounds[:-1]),
    "bounds of another type": lambda: damaged("exemplars", bounds=full_graph().exemplars.bounds.astype(np.float64)),
    "more exemplars of a token than a draft may be compared with": lambda: crowded(),
    "odds NaN": lambda: with_odds(0, with_value(float("nan"))),
    "odds infinite": lambda: with_odds(2, with_value(float("inf"))),
    "odds so large that sums overflow": lambda: with_odds(1, with_value(1e38)),
    "odds of fewer cells": lambda: with_odds(2, lambda odds: odds[:-1]),
    "odds in a column": lambda: with_odds(2, lambda odds: odds[:, None]),
    "odds of another type": lambda: with_odds(2, lambda odds: odds.astype(np.float64)),
    "odds of fewer sources": lambda: damaged("arbiter", odds=full_graph().arbiter.odds[:-1]),
    "weight NaN": lambda: changed("arbiter", "weights", (0, 0), np.nan),
    "weight infinite": lambda: changed("arbiter", "weights", (3, 2), -np.inf),
    "fewer weights": lambda: damaged("arbiter", weights=full_graph().arbiter.weights[:-1]),
    "weights of fewer sources": lambda: damaged("arbiter", weights=full_graph().arbiter.weights[:, :-1]),
    "no sources": lambda: damaged(None, arbiter=Arbiter((), (), np.zeros((1, 1), np.float32))),
    "a source twice": lambda: damaged("arbiter", names=(*NAMES[:-1], NAMES[0])),
    "a source that is none": lambda: damaged("arbiter", names=(*NAMES[:-1], "more")),
}


def test_the_undamaged_graph_is_sound() -> None:
    assert full_graph().arbiter.names == NAMES
    full_graph().check()


@pytest.mark.parametrize("damage", sorted(DAMAGES))
def test_each_damage_is_refused(damage: str) -> None:
    with pytest.raises(DaariError, match="The graph is damaged"):
        DAMAGES[damage]().check()


TABLES = [name for name in DTYPES if name.split(".")[0] in ("text", "exemplars", "arbiter")]


def config_of(graph: Graph, sources: Any = NAMES) -> dict[str, Any]:
    about = {"format_version": FORMAT_VERSION, "layer": "final", "vocab_size": graph.vocab_size}
    return {**about, "teacher": {}, "sources": list(sources)}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("change", ["float64", "int16", "bool", "column", "scalar", "shorter", "longer", "none"])
def test_other_types_and_shapes_are_refused(name: str, change: str) -> None:
    arrays = to_arrays(full_graph())
    array = arrays[name]
    changes = {
        "column": lambda: array[:, None],
        "scalar": lambda: np.array(array.flat[0]),
        "shorter": lambda: array[:-1],
        "longer": lambda: np.concatenate([array, array[-1:]]),
        "none": lambda: array[:0],
    }
    arrays[name] = changes[change]() if change in changes else array.astype(change)
    if name == "text" and change == "longer":
        from_arrays(arrays, config_of(full_graph())).check()  # one more sequence, an empty one
        return
    with pytest.raises(DaariError, match="The graph is damaged"):
        from_arrays(arrays, config_of(full_graph())).check()


@given(st.sampled_from(TABLES), st.data())
def test_a_changed_value_is_refused_or_harmless(name: str, data: st.DataObject) -> None:
    arrays = to_arrays(full_graph())
    array = arrays[name] = arrays[name].copy()
    bits = array.view(f"u{array.itemsize}").reshape(-1)
    index = data.draw(st.integers(0, len(bits) - 1))
    bits[index] = data.draw(st.integers(0, 2 ** (8 * array.itemsize) - 1) | st.integers(0, 60))
    try:
        graph = from_arrays(arrays, config_of(full_graph()))
        graph.check()
    except DaariError:
        return
    draft_everywhere(graph)


@st.composite
def any_graphs(draw: st.DrawFn) -> Graph:
    """Whatever is within the ranges, and nothing else that a compiled graph would be."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    nodes, vocabulary = draw(st.integers(1, 6)), draw(st.sampled_from([1, 2, 5, 0xDFFF, 0x10001, MAX_TOKEN]))
    few = random.integers(0, vocabulary, size=4)  # so that contexts are met again
    length = draw(st.sampled_from([0, 1, 2, 30, 200]))
    tokens = random.choice([*few, BREAK], size=length).astype(np.int32)
    tokens[-1:] = BREAK
    keys = np.unique(random.integers(0, nodes, size=20) * vocabulary + random.choice(few, size=20)).astype(np.int64)
    names = tuple(draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True)))
    scale = draw(st.sampled_from([0.0, 1.0, 9e5]))
    edges = random.integers(0, 4, size=nodes)
    stand = np.flatnonzero(tokens != BREAK)
    stand = random.choice(stand, size=int(random.integers(0, 40))) if len(stand) else stand
    stand = stand[np.argsort(tokens[stand], kind="stable")].astype(np.int32)
    states = Coarse(
        random.integers(-128, 128, size=(len(stand), WIDTH)).astype(np.int8),
        random.choice([1e-9, 1e-2, 1.0, 9e5], size=WIDTH).astype(np.float32),
    )
    bounds = np.sort(random.choice([0, 1e-9, 1, 10, 9e5], size=len(QUANTILES))).astype(np.float32)
    return Graph(
        nodes=random_nodes(nodes, seed=3),
        layer="final",
        vocab_size=vocabulary,
        edge_start=np.cumsum([0, *edges]).astype(np.int32),
        edge_token=random.choice(few, size=edges.sum()).astype(np.int32),
        edge_probability=random.uniform(1e-9, 1, size=edges.sum()).astype(np.float32),
        support=random.integers(0, 2**31 - 1, size=nodes).astype(np.int32),
        step_key=keys,
        step_node=random.integers(0, nodes, size=len(keys)).astype(np.int32),
        text=tokens,
        exemplars=Exemplars(states, stand, bounds),
        arbiter=Arbiter(
            names,
            tuple((random.uniform(-1, 1, size=cells(n)) * scale).astype(np.float32) for n in names),
            (random.uniform(-1, 1, size=(3 ** len(names), 1 + len(names))) * scale).astype(np.float32),
        ),
    )


@settings(max_examples=150)
@given(any_graphs(), st.integers(0, 1000))
def test_a_graph_that_passes_never_raises_while_drafting(graph: Graph, seed: int) -> None:
    graph.check()
    draft_everywhere(graph, seed)
