"""Which layers a cheap tier can do without, and how many: from agreement with the teacher's own stream, and from costs.

Nothing here knows a model. Where a drafter's greedy token at a position of the teacher's stream is the teacher's own,
it *agrees* there; since all before is the same text, runs of agreement are exactly what a block would get accepted.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from daari_mlx.cost.length import Cost

Unit = tuple[int, ...]  # layers that can only be left out together
BLOCK = 8  # the block size that figures are given for
LONGEST_BLOCK = 16
PATIENCE = 3  # tiers in a row that are expected to be slower, after which no smaller one is looked at
FORMULA = (
    "speed = tokens / (T(block + 1) + block * weights), the best block of 1 to 16: tokens of a pass by replaying the "
    "drafter's agreement with the teacher's own stream, T(m) a teacher forward over m rows relative to one, measured "
    "here, weights the tier's bytes relative to the teacher's; plain decoding is 1"
)


@dataclass(frozen=True)
class Measured:
    """How a drafter agrees with the teacher's stream.

    Attributes:
        agrees: one list of flags for each answer, one flag a token.
        promises: the drafter's own probability for its token, in the same places.
    """

    agrees: list[list[bool]]
    promises: list[list[float]]

    @property
    def agreement(self) -> float:
        """The share of tokens on which both agree."""
        return sum(map(sum, self.agrees)) / max(1, sum(map(len, self.agrees)))

    def passes(self, block: int) -> tuple[int, int]:
        """(tokens, verifier passes) of all answers with drafts of ``block`` tokens."""
        counts = [replay(agrees, block) for agrees in self.agrees]
        return sum(map(len, self.agrees)), sum(counts)


@dataclass(frozen=True)
class Tier:
    """One candidate: the teacher without some layers.

    Attributes:
        dropped: the layers left out, in the order they were.
        weights: its bytes relative to the teacher's.
        measured: see :class:`Measured`.
        block: the block size that is expected to be fastest.
        speed: expected tokens a second relative to plain decoding, see ``FORMULA``.
    """

    dropped: tuple[int, ...]
    weights: float
    measured: Measured
    block: int
    speed: float


def replay(agrees: Sequence[bool], block: int) -> int:
    """How many verifier passes an answer takes: each gives a run of agreement of at most ``block``, and one token."""
    place = passes = 0
    while place < len(agrees):
        run = 0
        while run < block and place + run < len(agrees) and agrees[place + run]:
            run += 1
        place += run + 1
        passes += 1
    return passes


def expected_speed(measured: Measured, weights: float, cost: Cost) -> tuple[int, float]:
    """The best block size and its speed, by ``FORMULA``."""
    best = (1, 0.0)
    for block in range(1, LONGEST_BLOCK + 1):
        tokens, passes = measured.passes(block)
        speed = tokens / max(passes, 1) / (cost(block + 1) + block * weights)
        if speed > best[1]:
            best = (block, speed)
    return best


def ladder(
    units: list[Unit],
    measure: Callable[[tuple[int, ...]], Measured | None],
    weigh: Callable[[tuple[int, ...]], float],
    cost: Cost,
    most: int | None,
) -> list[Tier]:
    """Tiers with ever fewer layers; each leaves out, of the one before, the unit that costs the least agreement.

    What a unit cost when more layers were left tells, nearly always, the least that it costs now: so units are measured
    again in that order, only until none that is left can be better.

    Args:
        units: what can be left out.
        measure: measures the teacher without some layers; None where those cannot be left out together.
        weigh: its bytes relative to the teacher's.
        cost: T(m)/T(1) of the teacher.
        most: how many layers to leave out; None goes on until speed has fallen for ``PATIENCE`` tiers.

    Returns:
        The tiers, that with all layers first.
    """

    def tier(dropped: tuple[int, ...], measured: Measured) -> Tier:
        block, speed = expected_speed(measured, weights := weigh(dropped), cost)
        return Tier(dropped, weights, measured, block, speed)

    whole = measure(())
    assert whole is not None
    tiers = [tier((), whole)]
    waiting = [(-1.0, unit) for unit in units]  # (negative agreement when it was last measured, unit)
    while waiting and (most is None or len(tiers[-1].dropped) < most):
        found = _next_unit(waiting, tiers[-1].dropped, measure)
        if found is None:
            break
        unit, measured = found
        tiers.append(tier(tiers[-1].dropped + unit, measured))
        if most is None and len(tiers) - 1 - tiers.index(fastest(tiers)) >= PATIENCE:
            break
    return tiers


def _next_unit(
    waiting: list[tuple[float, Unit]], dropped: tuple[int, ...], measure: Callable[[tuple[int, ...]], Measured | None]
) -> tuple[Unit, Measured] | None:
    """The unit that is best left out next, taken off the heap of those that wait; None where none can be."""
    fresh: dict[Unit, Measured] = {}
    while waiting:
        _, unit = heapq.heappop(waiting)
        if unit in fresh:
            return unit, fresh[unit]
        measured = measure(dropped + unit)
        if measured is not None:
            fresh[unit] = measured
            heapq.heappush(waiting, (-measured.agreement, unit))
    return None


def fastest(tiers: list[Tier]) -> Tier:
    """The tier with the highest expected speed; of equals that with the most layers."""
    return max(tiers, key=lambda tier: tier.speed)
