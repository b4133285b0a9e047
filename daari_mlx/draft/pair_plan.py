"""Graph, model or both: what a round is expected to give for its time, from chances, agreement and measured costs.

Nothing here knows a graph or a model. Times are in units of T(1), a teacher's forward over one row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from daari_mlx.cost.length import Cost

PRIOR = 6.0  # judged tokens that an expectation counts for
MEMORY = 0.98  # what is left of a judged token's weight after one more
SAME_MISTAKE = 0.3  # how often a model that is wrong where the graph is wrong says the same: only costs depend on it
READS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # how much of a graph's draft a model may be given to read
LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 24, 28, 32)


class Share:
    """A running share of tokens that were right.

    Args:
        expected: what it is taken to be before any is judged.
    """

    def __init__(self, expected: float) -> None:
        self._right, self._judged = expected * PRIOR, PRIOR

    @property
    def value(self) -> float:
        """The share, in [0, 1]."""
        return self._right / self._judged

    def learn(self, right: bool) -> None:
        """Take in one judged token."""
        self._right = self._right * MEMORY + right
        self._judged = self._judged * MEMORY + 1


class Agreement:
    """How often a drafting model says what the teacher says, by what the graph said there.

    Args:
        expected: the share of all tokens, before any is judged.
    """

    def __init__(self, expected: float) -> None:
        self.anywhere = Share(expected)
        self.with_graph = Share((1 + expected) / 2)  # what one drafter knows the other mostly knows too
        self.against_graph = Share(expected * 0.7)

    def learn(self, graph: bool | None, right: bool) -> None:
        """Take in one token of the model.

        Args:
            graph: whether the graph was right there; None where it said nothing or nobody asked.
            right: whether the model was.
        """
        self.anywhere.learn(right)
        if graph is not None:
            (self.with_graph if graph else self.against_graph).learn(right)


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to draft.

    Attributes:
        tokens: expected emitted tokens of the round.
        rate: those for a unit of time.
        length: how many tokens to draft.
        read: how many tokens of the graph's draft the model reads first; None where the model is not asked.
    """

    tokens: float
    rate: float
    length: int
    read: int | None = None


def graph_plan(chances: Sequence[float], cost: Cost, pending: int) -> Plan:
    """The best draft of the graph alone, of tokens with these chances: that of ``best_length``, with its rate."""
    expected, path = 1.0, 1.0
    best = Plan(1.0, 1.0 / cost(1 + pending), 0)
    for length, chance in enumerate(chances, start=1):
        path *= chance
        expected += path
        rate = expected / cost(1 + pending + length)
        if rate > best.rate:
            best = Plan(expected, rate, length)
    return best


def model_plan(
    chances: Sequence[float],
    agreement: Agreement,
    cost: Cost,
    pending: int,
    forward: Callable[[int], float],
    behind: int,
    limit: int,
) -> Plan:
    """The best draft in which the model has a say.

    The model reads some of the graph's draft in one forward. Where it says the same, the draft goes on; where it does
    not, the likelier token of the two stays, and if that is the model's own, the model goes on from there token by
    token, as it does behind what it read.

    Args:
        chances: of the graph's tokens.
        agreement: of the model.
        cost: T(m)/T(1).
        pending: rows the verify forward carries in any case besides the last token.
        forward: what a forward of the model over so many rows takes.
        behind: tokens that it has to read before it can say anything.
        limit: the most tokens, at least 1.
    """
    same, other, alone = (s.value for s in (agreement.with_graph, agreement.against_graph, agreement.anywhere))
    step, best = forward(1), Plan(1.0, 0.0, 0)
    for read in READS:
        if read > len(chances):
            break
        on_path, off_path, going = 1.0, 0.0, 1.0  # right and on the graph's path, right beside it, still on it
        left = left_at = 0.0  # the chance that the model has left the path; that times where
        expected, start = 1.0, forward(behind + read) if behind + read else 0.0
        for length in range(1, limit + 1):
            if length <= read:
                graph = chances[length - 1]
                both, mine, its = graph * same, (1 - graph) * other, graph * (1 - same)
                if its >= mine:
                    leaves = 0.0
                    off_path, on_path = off_path * alone, on_path * (both + its)
                else:
                    leaves = 1 - both - (1 - graph) * (1 - other) * SAME_MISTAKE
                    off_path, on_path = off_path * alone + on_path * mine, on_path * both
                left += going * leaves
                left_at += going * leaves * length
                going *= 1 - leaves
            else:
                off_path, on_path = (off_path + on_path) * alone, 0.0
            expected += on_path + off_path
            if length >= read and (length == read + 1 or length in LENGTHS or length == limit):
                steps = left * length - left_at + going * max(0, length - read - 1)
                rate = expected / (cost(1 + pending + length) + start + step * steps)
                if rate > best.rate:
                    best = Plan(expected, rate, length, read)
    return best


def bound(cost: Cost, pending: int, start: float, limit: int) -> float:
    """The rate of a model that is always right and takes only ``start`` for any draft: no model gives more."""
    return max((1 + n) / (cost(1 + pending + n) + start) for n in range(1, limit + 1))


def longest(
    chances: Sequence[float], cost: Cost, pending: int, sunk: float, step: float = 0.0, drafted: int | None = None
) -> int:
    """The best length of a draft on which ``sunk`` has been spent already; each token behind ``drafted`` costs a step.

    Args:
        chances: of its tokens, drafted or hoped for.
        drafted: how many of them are there; None for all.
    """
    drafted = len(chances) if drafted is None else drafted
    best, expected, path = 0, 1.0, 1.0
    best_rate = 1.0 / (cost(1 + pending) + sunk)
    for length, chance in enumerate(chances, start=1):
        path *= chance
        expected += path
        rate = expected / (cost(1 + pending + length) + sunk + step * max(0, length - drafted))
        if rate > best_rate:
            best, best_rate = length, rate
    return best


def either(graph: float, model: float) -> float:
    """The chance of a token that both name, each with its own chance, were they independent."""
    both, none = graph * model, (1 - graph) * (1 - model)
    return both / (both + none) if both + none else 0.5


def instead(chance: float, other: float) -> float:
    """The chance of a token that one names with ``chance`` where the other names another one with ``other``."""
    mine, theirs, none = chance * (1 - other), other * (1 - chance), (1 - chance) * (1 - other)
    return mine / (mine + theirs + none) if mine + theirs + none else 0.5
