"""Shared prefixes: really shared, by enough sequences, and the same whatever the order of the corpus."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from daari_mlx.text.prefixes import LEAST, shared_prefixes

SYSTEM = list(range(100, 160))


def corpus(count: int, system: list[int], seed: int = 0) -> list[list[int]]:
    chance = random.Random(seed)
    return [system + [chance.randrange(50) for _ in range(chance.randrange(2, 20))] for _ in range(count)]


def test_a_system_prompt_is_found_to_its_last_token() -> None:
    assert shared_prefixes(corpus(40, SYSTEM), parts=4) == [len(SYSTEM)] * 40


def test_two_system_prompts_with_a_common_start_are_told_apart() -> None:
    other = SYSTEM[:20] + list(range(300, 360))
    lengths = shared_prefixes(corpus(40, SYSTEM) + corpus(40, other), parts=4)
    assert lengths == [len(SYSTEM)] * 40 + [len(other)] * 40


def test_rare_and_short_prefixes_are_left() -> None:
    """One that occurs at most once a part is computed as often as it is used; one of a few tokens spares nothing."""
    assert shared_prefixes(corpus(4, SYSTEM), parts=4) == [0] * 4
    assert shared_prefixes(corpus(40, SYSTEM[: LEAST - 1]), parts=4) == [0] * 40
    assert shared_prefixes([SYSTEM], parts=1) == [0]
    assert shared_prefixes([], parts=0) == []


def test_a_rare_longer_prefix_does_not_take_a_common_one_away() -> None:
    rare = [SYSTEM + list(range(400, 440)) + [k] for k in range(6)]
    assert shared_prefixes(corpus(60, SYSTEM) + rare, parts=6)[60:] == [len(SYSTEM)] * 6


heads = st.lists(st.lists(st.integers(0, 2), max_size=40), min_size=1, max_size=30)


@given(heads, st.integers(1, 5), st.randoms(use_true_random=False))
def test_every_prefix_is_shared_and_the_order_does_not_matter(
    found: list[list[int]], parts: int, chance: random.Random
) -> None:
    found = [[7] * LEAST + head for head in found]  # something to share
    lengths = shared_prefixes(found, parts)
    for head, length in zip(found, lengths, strict=True):
        assert length == 0 or LEAST <= length <= len(head)
        assert length == 0 or sum(other[:length] == head[:length] for other in found) > parts
    order = list(range(len(found)))
    chance.shuffle(order)
    assert shared_prefixes([found[i] for i in order], parts) == [lengths[i] for i in order]
