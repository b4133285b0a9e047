"""Will it pay here? Tokens per forward and projected speed-up of a graph on held-out answers, under any T(m)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from daari_mlx.cost.curves import Curve
from daari_mlx.cost.length import MAX_DRAFT, Cost, Trust, best_length
from daari_mlx.draft.drafter import rest_after
from daari_mlx.graph.outlook import HeldOut, Outlook
from daari_mlx.measure.replay import Answer, Replayed, Round

PAYS = 1.1  # projected speed-ups below it are lost in what drafting itself and other programs take
PREDICTABLE = 1.5  # tokens per forward, were further rows free, below which no T(m) makes much of a text
FREE = Cost((1, MAX_DRAFT + 1), (1.0, 1.0))
DRAWS = 1000  # of answers, for the interval
LOW, HIGH = 0.05, 0.95  # its ends


@dataclass(frozen=True)
class Forecast:
    """What is to be expected of a graph on one machine.

    Attributes:
        curve: the machine.
        answers: how many held-out answers it was gone through on.
        tokens_per_forward: of all of them together.
        speedup: against plain decoding, over all tokens; prefill is not counted, and drafting itself is free.
        low, high: between them lies the speed-up of nine in ten sets of as many answers, drawn from these.
        losing: how many answers would be slower than plain decoding.
        rows: of a forward that carries a draft, on average; 0 where none does.
        first_right: the share of first draft tokens that are right; 0 where there are none.
        free_rows: tokens per forward, were further rows free.
    """

    curve: Curve
    answers: int
    tokens_per_forward: float
    speedup: float
    low: float
    high: float
    losing: int
    rows: float
    first_right: float
    free_rows: float

    @property
    def pays(self) -> bool:
        """Whether it is worth the while."""
        return self.speedup >= PAYS

    @property
    def costs(self) -> str:
        """What a forward with a draft costs here, in words."""
        rows = max(2, round(self.rows))
        return f"a forward over {rows} tokens takes {self.curve.cost(rows):.2f} times as long as over one"

    @property
    def foretellable(self) -> bool:
        """Whether the answers could be drafted, were it for free: else no machine makes much of them."""
        return self.free_rows >= PREDICTABLE

    @property
    def why_not(self) -> str | None:
        """The reason, in words, or None where it pays."""
        if self.pays:
            return None
        free = f"if it took no longer, there would be {self.free_rows:.1f} tokens per forward"
        if self.foretellable:
            return f"{self.costs}, too long for what drafts save; {free}"
        first = f"a first draft token is right in {self.first_right:.0%} of places"
        return f"{self.costs}, and these answers are hard to predict: {first}; even {free}"


def forecast(outlook: Outlook, curve: Curve) -> Forecast:
    """Go through held-out answers as a live run would under a T(m), and sum up.

    Args:
        outlook: of at least one answer.
        curve: drafts are held within what was measured.
    """
    cost = curve.cost
    found = go_through(outlook, cost, curve.most)
    speedup = found.as_dict(cost)
    times = np.array([[answer.tokens, answer.time(cost)] for answer in found.answers])
    drafted = [rounds[0] for answer in found.answers for rounds in answer.rounds if rounds[0]]
    firsts = [promise.right > 0 for promise in outlook.promises() if promise.probabilities]
    low, high = ratio_interval(times)
    return Forecast(
        curve,
        len(found.answers),
        found.tokens_per_forward,
        found.speedup(cost),
        low,
        high,
        speedup["losing"],
        1 + float(np.mean(drafted)) if drafted else 0.0,
        float(np.mean(firsts)) if firsts else 0.0,
        go_through(outlook, FREE, MAX_DRAFT).tokens_per_forward,
    )


def ratio_interval(times: np.ndarray) -> tuple[float, float]:
    """Between which the ratio of two sums lies for nine in ten sets of as many answers, drawn anew from these.

    Args:
        times: ``(answers, 2)``, what is summed above and below the line.
    """
    drawn = np.random.default_rng(0).integers(len(times), size=(DRAWS, len(times)))
    sums = times[drawn].sum(axis=1)
    low, high = np.quantile(sums[:, 0] / sums[:, 1], (LOW, HIGH))
    return float(low), float(high)


def go_through(outlook: Outlook, cost: Cost, most: int) -> Replayed:
    """The rounds of a live run on held-out answers, each with a drafter that knows nothing of the others.

    Args:
        most: the most tokens that are drafted.
    """
    return Replayed(tuple(_answer(heard, cost, most) for heard in outlook.answers))


def go_through_fixed(outlook: Outlook, length: int) -> Replayed:
    """The rounds where every forward drafts ``length`` tokens, or the whole path where that is shorter."""
    return Replayed(tuple(_fixed(heard, length) for heard in outlook.answers))


def _fixed(heard: HeldOut, length: int) -> Answer:
    rounds: list[Round] = []
    said, size = 0, len(heard.promises)
    while said < size:
        promise = heard.promises[said]
        drafted = min(length, len(promise.probabilities))
        accepted = min(drafted, promise.right)
        rounds.append((drafted, accepted, min(accepted + 1, size - said)))
        said += rounds[-1][2]
    return Answer(heard.before, tuple(rounds), {}, 0.0)


def _answer(heard: HeldOut, cost: Cost, most: int) -> Answer:
    """What a graph's drafter and :func:`daari_mlx.measure.replay.replay` do, on promises made before."""
    rounds: list[Round] = []
    trust, idle, said, size = Trust(), 0, 0, len(heard.promises)
    while said < size:
        promise = heard.promises[said]
        probabilities = promise.probabilities[:most]
        length = best_length(trust.believed(probabilities), cost.at(heard.before + said))
        accepted = min(length, promise.right)
        if length:
            idle, new = 0, [(length, accepted, min(accepted + 1, size - said))]
        else:
            idle += 1
            new = [(0, 0, 1)] * min(rest_after(idle) + 1, size - said)
        rounds += new
        emitted = sum(r[2] for r in new)
        for place, probability in enumerate(probabilities[: min(max(length, 1), emitted)]):
            trust.learn(probability, place < promise.right)
            if place >= promise.right:
                break
        said += emitted
    return Answer(heard.before, tuple(rounds), {}, 0.0)
