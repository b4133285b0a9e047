"""A growing text and its pairs of tokens, against a look at every place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daari_mlx.graph.recall import LENGTHS, TRIED, Recall

PIECES = st.lists(st.text(alphabet="ab\ud800\U00010000", max_size=30), max_size=8)


def naive_find(text: str, said: str) -> tuple[int, int]:
    """Of the newest places that said's last two tokens were followed at, the one whose match is the longest.

    Where they never were, the newest place that the last token was followed at.
    """
    places = [p for p in range(len(text) - 1, 1, -1) if len(said) > 1 and text[p - 2 : p] == said[-2:]][:TRIED]
    if not places:
        single = [p for p in range(1, len(text)) if text[p - 1] == said[-1:]]
        return (single[-1], 1) if single else (-1, 0)
    found, best = -1, 0
    for place in places:
        length = max([2, *(n for n in LENGTHS if place >= n and len(said) >= n and text[:place].endswith(said[-n:]))])
        if length > best:
            found, best = place, length
    return found, best


@given(PIECES, st.text(alphabet="ab\ud800\U00010000", max_size=20), st.integers(0, 20))
def test_a_match_is_the_longest_of_the_newest(pieces: list[str], said: str, back: int) -> None:
    recall = Recall(10_000)
    for piece in pieces:
        recall.extend(piece)
    whole = "".join(pieces)
    assert recall.text == whole
    for context in (said, whole[-back:], whole[: len(whole) // 2], whole[-back:] + said[:1]):
        assert recall.find(context) == naive_find(whole, context)


@given(PIECES, st.integers(1, 20))
def test_what_is_remembered_is_the_end_of_the_text_within_bounds(pieces: list[str], limit: int) -> None:
    recall, whole = Recall(limit), ""
    for piece in pieces:
        recall.extend(piece)
        whole += piece
        assert whole.endswith(recall.text)
        assert min(limit, len(whole)) <= len(recall.text) <= 2 * limit
        assert len(recall._earlier) == len(recall.text) and len(recall._newest) <= len(recall.text)
        for end in range(2, len(recall.text) + 1):
            context = recall.text[max(end - 9, 0) : end]
            assert recall.find(context) == naive_find(recall.text, context)


@pytest.mark.parametrize("said", ["", "a", "ab", "xyz"])
def test_nothing_is_found_in_no_text(said: str) -> None:
    recall = Recall(10)
    assert recall.find(said) == (-1, 0)
    recall.extend("")
    assert recall.find(said) == (-1, 0)
    recall.extend("ab")
    assert recall.find("ab") == recall.find("b") == (-1, 0), "nothing follows it yet"
    assert recall.find("a") == recall.find("xa") == (1, 1), "a single token is found where no pair is"
