"""Every source against a plain look-up, from any start and after whatever was drafted; what a conversation keeps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graphs import FULL_NODES, FULL_VOCABULARY, Said, full_corpus, full_graph, full_nodes, full_sequences, naive_kind
from hypothesis import given
from hypothesis import strategies as st
from test_recall import naive_find as naive_recall

from daari_mlx.compile.build import build
from daari_mlx.graph import recall
from daari_mlx.graph import sources as sources_module
from daari_mlx.graph.cells import LENGTH_OF
from daari_mlx.graph.codepoints import as_text
from daari_mlx.graph.graph import NO_NODE, Graph
from daari_mlx.graph.source import CELL, CELL_BITS, NAMES, SILENT, Moment, cells
from daari_mlx.graph.sources import LOOK_BACK, Copy, Sources

SAID = full_sequences(60, seed=0)  # what full_graph is made of
STEPS = dict(zip(full_graph().step_key.tolist(), full_graph().step_node.tolist(), strict=True))


class Spoken:
    """A voice taken apart, where the walk stood, and whose it is."""

    def __init__(self, voice: int, node: int, source: Any) -> None:
        self.token, self.cell, self.node, self.source = voice >> CELL_BITS, voice & CELL, node, source


def source_of(sources: Sources, name: str) -> Any:
    return next(s for s in sources.all if s.name == name)


@st.composite
def drafts(draw: st.DrawFn) -> tuple[list[int], int, list[int | None]]:
    """Tokens said, the anchor, and what is drafted behind them: None for what the source itself names."""
    said = draw(st.sampled_from(SAID))
    whole = [*said.before, *said.tokens]
    row = draw(st.integers(0, len(said.tokens) - 1))
    tokens = whole[: len(said.before) + row + 1]
    if draw(st.integers(0, 4)) == 0:
        tokens = [*tokens, draw(st.integers(0, FULL_VOCABULARY - 1))]
    anchor = said.labels[row] if draw(st.booleans()) else draw(st.integers(0, FULL_NODES - 1))
    other = st.integers(0, FULL_VOCABULARY - 1) | st.sampled_from([11, 12, 17, 18, 19, 2])
    return tokens, anchor, draw(st.lists(st.none() | other, max_size=30))


def drive(name: str, drafted: tuple[list[int], int, list[int | None]]) -> Any:
    """Yields what the source says, all that was said, the token pushed last or None, whether the source named it."""
    tokens, anchor, pushed = drafted
    sources = Sources(full_graph())
    sources.start(SAID[3].before + SAID[3].tokens, 0)  # an earlier text, which nothing is known of afterwards
    said, place = list(tokens), NAMES.index(name)
    state = full_nodes().centroids[anchor]
    moment = sources.start(tokens, anchor, state=state)
    spoken = Spoken(moment.voices[place], moment.node, source_of(sources, name))
    yield spoken, said, None, False
    for token in pushed:
        named = spoken.token
        chosen = named if token is None else token
        if chosen == SILENT:
            return
        said.append(chosen)
        sources.push(chosen, moment)
        spoken = Spoken(moment.voices[place], moment.node, spoken.source)
        yield spoken, said, chosen, chosen == named


@given(drafts())
def test_every_cell_is_one_of_the_source(drafted: tuple[list[int], int, list[int | None]]) -> None:
    for name in NAMES:
        for spoken, *_ in drive(name, drafted):
            assert spoken.token == SILENT or 0 <= spoken.token < FULL_VOCABULARY
            assert spoken.token == SILENT or 0 <= spoken.cell < cells(name)


@given(drafts())
def test_the_walk_stands_where_the_steps_lead(drafted: tuple[list[int], int, list[int | None]]) -> None:
    graph = full_graph()

    def step(node: int, token: int) -> int:
        any_node = STEPS.get(graph.size * FULL_VOCABULARY + token, NO_NODE)
        return any_node if node == NO_NODE else STEPS.get(node * FULL_VOCABULARY + token, any_node)

    node = NO_NODE
    for source, said, token, was_named in drive("edge", drafted):
        if token is None:
            node = step(drafted[1], said[-1])
        elif was_named:  # nobody knows better where the top edge leads
            node = STEPS.get(node * FULL_VOCABULARY + token, NO_NODE)
        else:
            node = step(node, token)
        first, after = graph.edge_start[node : node + 2] if node != NO_NODE else (0, 0)
        if first == after:
            assert source.token == SILENT
        else:
            assert source.token == graph.edge_token[first]
            assert source.cell == naive_kind(float(graph.edge_probability[first]), int(graph.support[node]))


@given(drafts())
def test_copy_goes_on_as_its_text_did(drafted: tuple[list[int], int, list[int | None]]) -> None:
    text = as_text(drafted[0])
    place = length = -1
    for spoken, said, token, was_named in drive("copy", drafted):
        place, length = place + 1, length + 1
        if token is None or not was_named or place == len(text):
            place, length = naive_recall(text, as_text(said[-LOOK_BACK:]))
        assert spoken.token == (ord(text[place]) if place >= 0 else SILENT)
        if spoken.token != SILENT:
            assert spoken.cell == LENGTH_OF[min(length, 63)]
            assert text[: spoken.source._place].endswith(as_text(said[-min(length, 2) :]))


def test_a_copy_reaches_to_the_end_of_its_text_and_begins_anew() -> None:
    copy = Copy()
    copy.recall.extend("abcxab")
    moment = Moment(0, ord("b"), "abcxab")
    voice, drafted = copy.start(moment), []
    for _ in range(9):
        drafted.append(chr(voice >> CELL_BITS))
        moment.said += drafted[-1]
        voice = copy.push(voice >> CELL_BITS, moment)
    assert "".join(drafted) == "cxabcxabc"


# --- a conversation

ACTIONS = st.lists(
    st.tuples(st.sampled_from(["grow", "other", "shorter", "equal"]), st.lists(st.integers(0, 59), max_size=6)),
    max_size=25,
)


@given(ACTIONS)
def test_what_was_said_is_kept_whatever_list_comes(actions: list[tuple[str, list[int]]]) -> None:
    """The same list grown goes on; another one, or one that was longer before, is another text."""
    sources = Sources(full_graph())
    tokens = [7]
    sources.start(tokens, 0)
    own = as_text(tokens)
    for action, more in actions:
        if action == "grow":
            tokens.extend(more)
        elif action == "shorter":
            del tokens[1 + len(more) :]
        else:
            tokens = [7, *more] if action == "other" else list(tokens)
        own = as_text(tokens)
        moment = sources.start(tokens, 3)
        assert sources._own.recall.text == own
        assert (moment.anchor, moment.last, moment.said) == (3, tokens[-1], own[-LOOK_BACK:])
        assert moment.voices == Sources(full_graph()).start(list(tokens), 3).voices


@given(st.integers(1, 11), st.integers(1, 11))
def test_a_text_can_be_read_bit_by_bit(first: int, second: int) -> None:
    """``until`` hides what comes later: drafts of the middle of a known text know no more than a live one."""
    whole = [*SAID[0].before, *SAID[0].tokens]
    first, second = sorted((min(first, len(whole)), min(second, len(whole))))
    sources, fresh = Sources(full_graph()), Sources(full_graph())
    sources.start(whole, 1, first)
    moment = sources.start(whole, 1, second)
    expected = fresh.start(whole[:second], 1)
    assert (moment.last, moment.said) == (expected.last, expected.said)
    assert moment.voices == expected.voices


def test_long_texts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources_module, "PROMPT", 50)
    random = np.random.default_rng(0)
    sources, tokens = Sources(full_graph()), [1]
    for _ in range(40):
        sources.start(tokens, 0)
        tokens.extend(random.integers(0, FULL_VOCABULARY, size=7).tolist())
        assert len(sources._own.recall.text) <= 100


def test_only_the_sources_asked_for_are_asked_in_their_order() -> None:
    for names in (["copy"], ["copy", "edge"], list(NAMES)):
        assert [s.name for s in Sources(full_graph(), names).all] == names


@pytest.mark.parametrize("offset", [0xD7F0, 0xFFF0, 0x10FFC0])
def test_any_id_can_be_drafted_and_copied(offset: int) -> None:
    """Ids among the surrogates, beyond 16 bits, and the last of all: what is drafted is the same, moved."""

    def graph_at(start: int) -> Graph:
        moved = [Said([t + start for t in s.before], [t + start for t in s.tokens], s.labels) for s in SAID[:25]]
        return build(full_nodes(), full_corpus(moved), layer="final", vocab_size=start + FULL_VOCABULARY).graph

    def drafted(start: int) -> list[list[int]]:
        sources, found = Sources(graph_at(start)), []
        for said in SAID[25:35]:
            tokens = [t + start for t in (*said.before, *said.tokens[:4])]
            moment = sources.start(tokens, said.labels[3], state=full_nodes().centroids[said.labels[3]])
            for token in said.tokens[4:]:
                found.append([v if v == SILENT else (v >> CELL_BITS) - start for v in moment.voices])
                sources.push(token + start, moment)
        return found

    expected = drafted(0)
    assert drafted(offset) == expected
    spoken = {name for k, name in enumerate(NAMES) if any(row[k] != SILENT for row in expected)}
    assert spoken == set(NAMES)


def test_the_longest_match_fits_what_sources_look_back_on() -> None:
    assert recall.LENGTHS[-1] <= LOOK_BACK
