"""The corpus as a string: the longest match of a context and what mostly follows it, against a look at every place."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from graphs import Said, corpus_of, naive_kind
from hypothesis import given
from hypothesis import strategies as st

from daari_mlx.tables import build_text
from daari_mlx.text import BREAK, BREAK_CHARACTER, MAX_CONTEXT, SHOWN, Text, as_text, no_text

# among them what is no character in UTF-16 (surrogates), what needs two of its units, and the last id of all
ODD = [0, 1, 9, 10, 0xD7FF, 0xD800, 0xDBFF, 0xDC00, 0xDFFF, 0xE000, 0xFFFF, 0x10000, 0x10FFFD, 0x10FFFE]


@st.composite
def texts(draw: st.DrawFn) -> list[list[int]]:
    """Sequences of few different tokens, so that much is said again."""
    tokens = draw(st.lists(st.sampled_from(ODD), min_size=1, max_size=3, unique=True))
    return draw(st.lists(st.lists(st.sampled_from(tokens), min_size=1, max_size=40), min_size=1, max_size=6))


@st.composite
def texts_and_contexts(draw: st.DrawFn) -> tuple[list[list[int]], list[int]]:
    """Sequences, and a context that was partly said in them."""
    sequences = draw(texts())
    whole = [t for s in sequences for t in s]
    start = draw(st.integers(0, len(whole) - 1))
    said = whole[start : start + draw(st.integers(0, 40))]
    ahead = draw(st.lists(st.sampled_from([*whole, *ODD]), max_size=30))
    behind = draw(st.lists(st.sampled_from([*whole, *ODD]), max_size=2))
    return sequences, ahead + said + behind


def text_of(sequences: list[list[int]]) -> Text:
    return build_text(corpus_of([Said([], s, [0] * len(s)) for s in sequences]).text()[0])


def naive_matches(tokens: list[int], context: list[int]) -> tuple[list[int], int]:
    """All places of the longest ending of a context that another token follows, and its length."""
    best, places = 1, []
    for place in range(len(tokens) - 1):
        if tokens[place + 1] == BREAK:
            continue
        length = 0
        while length < min(place + 1, len(context), MAX_CONTEXT) and tokens[place - length] == context[-1 - length]:
            length += 1
        if length > best:
            best, places = length, [place]
        elif length == best > 1:
            places.append(place)
    return places, best if places else 0


def backward(text: Text, place: int) -> str:
    return text.characters[: place + 1][::-1][:MAX_CONTEXT]


@given(texts_and_contexts())
def test_the_longest_match_is_found_and_goes_on_as_most_do(given: tuple[list[list[int]], list[int]]) -> None:
    sequences, context = given
    text = text_of(sequences)
    tokens = text.tokens.tolist()
    places, length = naive_matches(tokens, context)
    found = text.find(as_text(context))
    assert found[1] == length
    if not places:
        assert found == (-1, 0)
        return
    assert found[0] in places
    matched = tokens[found[0] - length + 1 : found[0] + 2]
    assert BREAK not in matched and matched[:-1] == context[-length:]
    places.sort(key=lambda place: (backward(text, place), place))
    heard = places[:: -(-len(places) // SHOWN)]  # of many, an evenly spread sample votes
    votes = Counter(tokens[place + 1] for place in heard)
    assert len(heard) <= SHOWN and votes[matched[-1]] == max(votes.values())


@given(texts())
def test_the_order_is_that_of_strings(sequences: list[list[int]]) -> None:
    text = text_of(sequences)
    tokens = text.tokens.tolist()
    assert tokens == [t for s in sequences for t in (*s, BREAK)]
    assert text.characters == "".join(BREAK_CHARACTER if t == BREAK else chr(t) for t in tokens)
    followed = [p for p in range(len(tokens) - 1) if BREAK not in tokens[p : p + 2]]
    assert text.order.tolist() == sorted(followed, key=lambda place: (backward(text, place), place))


@given(texts())
def test_kinds_tell_how_well_three_tokens_of_the_sequence_tell_the_next(sequences: list[list[int]]) -> None:
    text = text_of(sequences)
    seen: Counter[tuple[tuple[int, ...], int]] = Counter()
    count: Counter[tuple[int, ...]] = Counter()
    for s in sequences:
        for place in range(len(s) - 1):
            known = tuple(s[max(place - 2, 0) : place + 1])
            seen[known, s[place + 1]] += 1
            count[known] += 1
    expected = []
    for s in sequences:
        for place in range(len(s) - 1):
            known = tuple(s[max(place - 2, 0) : place + 1])
            expected.append(naive_kind(seen[known, s[place + 1]] / count[known], count[known]))
        expected += [0, 0]  # the last token of a sequence and the break: nothing follows
    assert text.kinds.tolist() == expected


def test_the_kind_of_a_beginning_does_not_depend_on_what_was_said_before() -> None:
    """The first token of every sequence is one case, whatever the sequence ahead of it ended with."""
    text = text_of([[7, 8, 1], [7, 8, 2], [7, 9, 3], [7, 8, 4]])
    begins = [p for p in range(len(text.tokens)) if text.tokens[p] == 7]
    assert text.kinds[begins].tolist() == [naive_kind(share, 4) for share in (0.75, 0.75, 0.25, 0.75)]


def test_no_match_reaches_across_a_break() -> None:
    text = text_of([[1, 2, 3], [4, 5, 6, 7]])
    assert text.find(as_text([2, 3, 4, 5])) == (5, 2)
    assert text.find(as_text([3, 4])) == (-1, 0), "what stands left of a break and right of it was never said in a row"
    assert text.find(as_text([2, 3])) == (-1, 0), "nothing follows there"


def test_a_single_token_is_no_match() -> None:
    text = text_of([[1, 2, 3]])
    for context in ([], [1], [2], [9, 2], [2, 1]):
        assert text.find(as_text(context)) == (-1, 0)
    assert text.find(as_text([1, 2])) == (1, 2)


def test_the_majority_of_many_equal_matches_is_sampled() -> None:
    sequences = [[1, 2, 3]] * 300 + [[1, 2, 4]] * 100
    text = text_of(sequences)
    place, length = text.find(as_text([5, 1, 2]))
    assert length == 2 and text.tokens[place + 1] == 3


def test_nothing_is_found_in_no_text() -> None:
    assert no_text().find("") == no_text().find("ab") == (-1, 0)
    only = text_of([[1], [1], [2]])
    assert only.find(as_text([1, 1])) == (-1, 0) and len(only.order) == 0


@pytest.mark.parametrize("seed", range(20))
def test_an_order_that_is_none_does_no_harm(seed: int) -> None:
    """A file's order is not known to be sorted: the match may be a poor one, but a place of the text it is."""
    random = np.random.default_rng(seed)
    tokens = random.integers(0, 3, size=200).astype(np.int32)
    tokens[random.integers(0, 200, size=10)] = BREAK
    tokens[-1] = BREAK
    inside = np.flatnonzero(tokens[:-1] != BREAK)
    text = Text(tokens, random.choice(inside, size=150).astype(np.int32), np.zeros(200, np.uint8))
    for _ in range(200):
        place, length = text.find(as_text(random.integers(0, 3, size=int(random.integers(1, 30))).tolist()))
        assert -1 <= place < 199 and 0 <= length <= MAX_CONTEXT
