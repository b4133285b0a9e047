"""The labelled corpus and the tables counted from it, against lists and dictionaries."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
from graphs import Said, corpus_of
from hypothesis import given
from hypothesis import strategies as st

from daari_mlx.compile.tables import count_edges, count_steps
from daari_mlx.graph.codepoints import BREAK
from daari_mlx.graph.corpus import Corpus
from daari_mlx.graph.graph import MAX_EDGES

VOCABULARY, NODES = 9, 4


@st.composite
def sequences(draw: st.DrawFn) -> list[Said]:
    """Sequences with prompts; some of them without any row, some with nothing but the prompt's."""
    made = []
    for _ in range(draw(st.integers(1, 7))):
        length = draw(st.integers(0, 9))
        row = st.lists(st.integers(0, VOCABULARY - 1), min_size=length, max_size=length)
        labels = draw(st.lists(st.integers(0, NODES - 1), min_size=length, max_size=length))
        before = draw(st.lists(st.integers(0, VOCABULARY - 1), max_size=4))
        made.append(Said(before, draw(row), labels, draw(st.integers(0, length))))
    return made


def same(left: Corpus, right: Corpus) -> bool:
    names = ("labels", "tokens", "rows", "lead", "before", "before_rows")
    return all(
        np.array_equal(getattr(left, n), getattr(right, n)) and getattr(left, n).dtype == getattr(right, n).dtype
        for n in names
    )


@given(sequences(), st.data())
def test_taking_sequences_is_making_a_corpus_of_them(said: list[Said], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(said) - 1), max_size=8))
    corpus = corpus_of(said)
    assert len(corpus) == len(said)
    assert same(corpus.take(chosen), corpus_of([said[k] for k in chosen]))
    assert same(corpus.take(np.array(chosen, np.int64)), corpus.take(chosen))


@given(sequences())
def test_rows_know_what_follows_and_where_the_answer_begins(said: list[Said]) -> None:
    corpus = corpus_of(said)
    assert corpus.follows().tolist() == [k + 1 < len(s.tokens) for s in said for k in range(len(s.tokens))]
    assert corpus.answers().tolist() == [k >= s.lead for s in said for k in range(len(s.tokens))]


@given(sequences())
def test_the_text_has_a_break_behind_every_sequence(said: list[Said]) -> None:
    text, places = corpus_of(said).text()
    assert text.tolist() == [t for s in said for t in (*s.tokens, BREAK)]
    assert text[places].tolist() == [t for s in said for t in s.tokens]
    assert text.dtype == places.dtype == np.int32


@given(sequences())
def test_edges_are_the_commonest_tokens_of_a_node(said: list[Said]) -> None:
    corpus = corpus_of(said)
    seen: dict[int, Counter[int]] = defaultdict(Counter)
    for s in said:
        for label, token in zip(s.labels[s.lead :], s.tokens[s.lead :], strict=True):
            seen[label][token] += 1
    answers = corpus.answers()
    start, token, share, support = count_edges(corpus.labels[answers], corpus.tokens[answers], NODES, VOCABULARY)
    assert len(start) == NODES + 1 and start[0] == 0 and start[-1] == len(token)
    for node in range(NODES):
        ordered = sorted(seen[node].items(), key=lambda e: (-e[1], e[0]))
        assert token[start[node] : start[node + 1]].tolist() == [t for t, _ in ordered]
        total = support[node]
        assert total == sum(seen[node].values())
        np.testing.assert_allclose(share[start[node] : start[node + 1]], [n / total for _, n in ordered], rtol=1e-6)


def test_only_so_many_edges_are_kept() -> None:
    tokens = np.arange(MAX_EDGES + 5, dtype=np.int32)
    start, token, share, support = count_edges(np.zeros_like(tokens), tokens, 1, 100)
    assert token.tolist() == list(range(MAX_EDGES)) and start.tolist() == [0, MAX_EDGES]
    assert support.tolist() == [MAX_EDGES + 5] and share[0] == np.float32(1 / (MAX_EDGES + 5))


@given(sequences())
def test_steps_lead_where_they_mostly_led(said: list[Said]) -> None:
    reached: dict[int, Counter[int]] = defaultdict(Counter)
    for s in said:
        for row in range(len(s.tokens) - 1):
            for origin in (s.labels[row], NODES):
                reached[origin * VOCABULARY + s.tokens[row]][s.labels[row + 1]] += 1
    key, node = count_steps(corpus_of(said), NODES, VOCABULARY)
    assert key.tolist() == sorted(reached) and key.dtype == np.int64 and node.dtype == np.int32
    assert node.tolist() == [min(reached[k].items(), key=lambda e: (-e[1], e[0]))[0] for k in sorted(reached)]


def test_a_corpus_of_empty_sequences_has_empty_tables() -> None:
    corpus = corpus_of([Said([1], [], []), Said([], [], [])])
    text, places = corpus.text()
    assert text.tolist() == [BREAK, BREAK] and len(places) == 0
    assert len(count_steps(corpus, NODES, VOCABULARY)[0]) == 0
    assert corpus.take([]).tokens.tolist() == [] and len(corpus.take([])) == 0
