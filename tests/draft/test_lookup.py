"""Prompt lookup: what followed the longest match is copied, and matches are believed as far as they came true."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daari_mlx.cost.length import Cost
from daari_mlx.draft.drafter import Context
from daari_mlx.draft.lookup import LONGEST, SHORTEST, LookupDrafter

FLAT, STEEP = Cost((1, 64), (1.0, 1.0)), Cost((1,), (1.0,))


def naive(text: list[int], most: int) -> list[int]:
    """By its definition: the latest place of the longest repeated ending, and what follows there."""
    for length in range(min(LONGEST, len(text) - 1), SHORTEST - 1, -1):
        for end in range(len(text) - 1, length - 1, -1):
            if text[end - length : end] == text[-length:]:
                drawn_on = list(text)
                while len(drawn_on) < len(text) + most:
                    drawn_on.append(drawn_on[end + len(drawn_on) - len(text)])
                return drawn_on[len(text) :]
    return []


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=60), st.lists(st.integers(1, 9), max_size=8), st.integers(1, 12)
)
def test_drafts_are_what_followed_the_longest_match(text: list[int], grows: list[int], limit: int) -> None:
    drafter, at = LookupDrafter(num_draft_tokens=9), 1
    context = Context(text[:1], None)
    for step in [0, *grows]:
        context.tokens += text[at : at + step]
        at += step
        draft = drafter.draft(context, limit)
        assert draft.tokens == naive(context.tokens, min(limit, 9))
        assert len(draft.tokens) == len(draft.probabilities) == len(draft.sources)


def test_another_text_starts_anew() -> None:
    drafter = LookupDrafter(num_draft_tokens=3)
    assert drafter.draft(Context([1, 2, 3, 4, 1, 2], None), 8).tokens == [3, 4, 1]
    assert drafter.draft(Context([9, 9, 8, 1, 2], None), 8).tokens == []


def test_length_follows_costs_and_what_came_true() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2]
    assert LookupDrafter(cost=STEEP).draft(Context(list(text), None), 8).tokens == []
    assert LookupDrafter(cost=FLAT).draft(Context(list(text), None), 6).tokens == [3, 4, 5, 6, 7, 8]
    dear, drafter = Cost((1, 64), (1.0, 14.0)), None
    drafter, context, lengths = LookupDrafter(cost=dear), Context(list(text), None), []
    for number in range(60):
        lengths.append(len(drafter.draft(context, 8).tokens))
        context.tokens += [100 + number, 1, 2]
    assert lengths[0] > 0 and lengths[-1] == 0, "matches of two tokens never came true"


def test_a_length_or_a_cost_is_needed() -> None:
    with pytest.raises(ValueError, match="LookupDrafter needs"):
        LookupDrafter()
