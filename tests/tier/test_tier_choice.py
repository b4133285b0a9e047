"""How many layers to leave out, and which: replayed blocks, the stated formula, and no unit overlooked."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daari_mlx.cost.length import Cost
from daari_mlx.ground.accept import accept_block
from daari_mlx.tier.choice import PATIENCE, Measured, expected_speed, fastest, ladder, replay

FLAT = Cost((1, 64), (1.0, 1.0))


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 12))
def test_a_replay_is_what_the_accept_rule_gives_block_by_block(agrees: list[bool], block: int) -> None:
    answer = list(range(len(agrees)))
    drafted = [token if right else -1 for token, right in zip(answer, agrees, strict=True)]
    place = passes = 0
    while place < len(answer):
        verdicts = [*answer[place : place + block + 1], *[-2] * (block + 1)]
        place += len(accept_block(drafted[place : place + block], verdicts))
        passes += 1
    assert replay(agrees, block) == passes


def test_full_agreement_gives_nine_tokens_a_pass_at_eight() -> None:
    assert Measured([[True] * 90], [[0.9] * 90]).passes(8) == (90, 10)
    assert Measured([[False] * 9], [[0.9] * 9]).passes(8) == (9, 9)


@given(
    st.lists(st.lists(st.booleans(), min_size=1, max_size=30), min_size=1, max_size=4),
    st.floats(0.01, 2.0),
    st.floats(1.0, 12.0),
)
def test_the_expected_speed_is_the_formula_at_its_best_block(
    agrees: list[list[bool]], weights: float, last: float
) -> None:
    measured, cost = Measured(agrees, agrees), Cost((1, 17), (1.0, last))  # type: ignore[arg-type]
    tokens = sum(map(len, agrees))
    speeds = {
        block: tokens / sum(replay(a, block) for a in agrees) / (cost(block + 1) + block * weights)
        for block in range(1, 17)
    }
    block, speed = expected_speed(measured, weights, cost)
    assert speed == pytest.approx(max(speeds.values())) == pytest.approx(speeds[block])


class Made:
    """A made-up model: every layer is worth something, some pairs are worth more together."""

    def __init__(self, count: int, seed: int, together: float = 0.0) -> None:
        rng = np.random.default_rng(seed)
        self.count, self.worth = count, rng.uniform(0.0, 0.2, count)
        self.extra, self.asked = rng.uniform(0, together, (count, count)), 0
        self.coins = rng.uniform(size=2000)

    def agreement(self, dropped: tuple[int, ...]) -> float:
        pairs = sum(self.extra[a, b] for a in dropped for b in dropped if a != b)
        return max(0.0, 1 - self.worth[list(dropped)].sum() - pairs)

    def measure(self, dropped: tuple[int, ...]) -> Measured:
        self.asked += 1
        flags = (self.coins < self.agreement(dropped)).tolist()
        return Measured([flags], [flags])

    def weigh(self, dropped: tuple[int, ...]) -> float:
        return 0.5 * (1 - len(dropped) / self.count)


@given(st.integers(0, 200), st.floats(0.0, 0.05))
def test_each_step_leaves_out_the_unit_that_costs_least(seed: int, together: float) -> None:
    """As long as a layer costs no less once others are gone: then no unit has to be measured in vain."""
    made, count = Made(10, seed, together), 10
    tiers = ladder([(k,) for k in range(count)], made.measure, made.weigh, FLAT, 5)
    assert [len(tier.dropped) for tier in tiers] == list(range(6))
    for before, after in pairwise(tiers):
        left = [made.measure((*before.dropped, k)).agreement for k in range(count) if k not in before.dropped]
        assert after.measured.agreement == max(left)
        assert after.dropped[:-1] == before.dropped


def test_few_units_are_measured_again() -> None:
    made = Made(30, 1, 0.002)
    ladder([(k,) for k in range(30)], made.measure, made.weigh, FLAT, 6)
    assert made.asked < 1 + 30 + 6 * 12, "and not 1 + 30 + 29 + 28 + ..."


def test_auto_goes_on_until_speed_falls_and_takes_the_fastest() -> None:
    made = Made(24, 3)
    tiers = ladder([(k,) for k in range(24)], made.measure, made.weigh, FLAT, None)
    best = fastest(tiers)
    assert len(tiers) < 24
    assert best.speed == max(tier.speed for tier in tiers)
    assert tiers.index(best) == len(tiers) - 1 - PATIENCE
    assert fastest([best, best]) is best


def test_units_that_cannot_go_are_left_alone() -> None:
    """A period of a pattern goes as a whole, and what the model refuses is not taken."""
    made = Made(6, 4)

    def measure(dropped: tuple[int, ...]) -> Measured | None:
        return None if 2 in dropped else made.measure(dropped)

    tiers = ladder([(0, 1), (2, 3), (4, 5)], measure, made.weigh, FLAT, 6)
    assert [sorted(tier.dropped) for tier in tiers][-1] == [0, 1, 4, 5]
