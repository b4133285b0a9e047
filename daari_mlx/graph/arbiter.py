"""Arbitration: how far each source can be trusted, and how their voices add up to one probability.

Each source's cell has a share of right tokens, counted on text that the graph had not seen. Who agrees with whom tells
as much as how sure each is: every scene (which sources name a token, which another, which are silent) has a logistic
regression of its own over the sources' log-odds. Taking the highest probability of any source would promise too much,
and multiplying their odds even more, because they err together.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp
from operator import itemgetter, mul
from typing import NamedTuple

import numpy as np

from daari_mlx.graph.cells import COUNTS, SHARES
from daari_mlx.graph.source import CELL, CELL_BITS, SILENT, Moment, Source
from daari_mlx.ground.types import FloatArray

SAME, OTHER = 1, 2  # what a source says of a token in a scene: this one, another one; 0 is nothing
FLOOR = 0.02  # no T(m) is so flat that a path less likely than this as a whole pays
REMEMBERED = 20_000  # verdicts, at the most: 6 MB
MAX_ODDS = 12.0  # log-odds beyond which a probability no longer grows: it never is 0 or 1
_LIMITS = (1 / (1 + exp(MAX_ODDS)), 1 / (1 + exp(-MAX_ODDS)))

Case = tuple[int, ...]  # the voice of every source, see :class:`daari_mlx.graph.source.Source`
Verdict = tuple[int, float, str]  # a token, its probability, its source


class Proposal(NamedTuple):
    """The likeliest path of some sources.

    Attributes:
        tokens: the draft tokens.
        probabilities: that each is right, given that all before it are.
        sources: the first source that named each of them.
    """

    tokens: list[int]
    probabilities: list[float]
    sources: list[str]


@dataclass(frozen=True)
class Arbiter:
    """What turns the sources' cells into the probability that a token is right.

    Attributes:
        names: the S sources that are heard, in the order of the arrays.
        odds: per source ``(cells,)`` float32, the log-odds that its token is right, by cell.
        weights: ``(3 ** S, 1 + S)`` float32, by scene: the log-odds that a token starts from, and what each source's
            own log-odds count in them. A scene is a number to base 3 with a digit for each source, the first one
            lowest: 0 where it is silent, ``SAME`` where it names the token, ``OTHER`` where it names another.
    """

    names: tuple[str, ...]
    odds: tuple[FloatArray, ...]
    weights: FloatArray

    @cached_property
    def worth(self) -> list[list[float]]:
        """``odds`` as lists."""
        return [odds.tolist() for odds in self.odds]

    @cached_property
    def scenes(self) -> list[list[float]]:
        """``weights`` as lists."""
        return self.weights.tolist()

    @cached_property
    def known(self) -> dict[Case, Verdict]:
        """What was judged before: forms repeat themselves, and a look-up is quicker than a sum."""
        return {}

    def propose(
        self,
        heard: Sequence[Source],
        moment: Moment,
        limit: int,
        ends: Collection[int] = (),
        *,
        floor: float = FLOOR,
    ) -> Proposal:
        """The likeliest path, token by token.

        Args:
            heard: the sources, as named by ``names``, at most three, started on ``moment``, which is moved along.
            limit: the most tokens.
            ends: tokens after which nothing is drafted: an answer ends there.
            floor: a path less likely than this as a whole is not drafted further.
        """
        tokens: list[int] = []
        probabilities: list[float] = []
        named: list[str] = []
        # written out, three sources take a third of the time that a loop over them takes
        first, second, third = (*[source.push for source in heard], _mute, _mute)[:3]
        case, path, last, known = (*moment.voices, SILENT, SILENT)[:3], 1.0, limit - 1, self.known
        for step in range(limit):
            token, probability, name = known.get(case) or self._judge(case)
            if token == SILENT:
                break
            path *= probability
            tokens.append(token)
            probabilities.append(probability)
            named.append(name)
            if path <= floor or token in ends or step == last:
                break
            moment.said += chr(token)
            case = first(token, moment), second(token, moment), third(token, moment)
        return Proposal(tokens, probabilities, named)

    def _judge(self, case: Case) -> Verdict:
        """The likeliest token, its probability and source; ``SILENT`` where nobody names one."""
        found = self.weigh(case)
        token, odds, name = max(found, key=itemgetter(1)) if found else (SILENT, 0.0, "")
        probability = 1 / (1 + exp(-odds)) if -MAX_ODDS < odds < MAX_ODDS else _LIMITS[odds > 0]
        if len(self.known) >= REMEMBERED:
            self.known.clear()
        verdict = self.known[case] = token, probability, name
        return verdict  # not looked up again: another thread may have cleared them

    def weigh(self, case: Case) -> list[tuple[int, float, str]]:
        """Every token that is named, the log-odds that it is right, and the first source that named it."""
        worth, values, scene, digit = self.worth, [1.0], 0, 1
        same: dict[int, int] = {}  # by token, what the scene is less where each of its sources says ``SAME``
        first: dict[int, str] = {}
        for place, voice in enumerate(case):
            if voice == SILENT:
                values.append(0.0)
            else:
                token = voice >> CELL_BITS
                values.append(worth[place][voice & CELL])
                scene += OTHER * digit
                same[token] = same.get(token, 0) + (OTHER - SAME) * digit
                first.setdefault(token, self.names[place])
            digit *= 3
        return [(token, sum(map(mul, self.scenes[scene - less], values)), first[token]) for token, less in same.items()]


def _mute(token: int, moment: Moment) -> int:
    """Stands in for a source where there are fewer than three."""
    return SILENT


def scenes_of(count: int) -> np.ndarray:
    """``(3 ** count, count)`` int64: what every source says in each scene of so many."""
    return np.arange(3**count)[:, None] // 3 ** np.arange(count) % 3


def counted() -> Arbiter:
    """That of a corpus too small to hold anything back: the walk's share is the chance, less where counts are few."""
    share = (np.arange(SHARES) / (SHARES - 1))[:, None]
    seen = np.array([1.0, 2.0, 3.0, 5.0, 11.0, 51.0])[None]
    assert seen.shape[1] == COUNTS
    chance = np.clip(share * seen / (seen + 2), 0.01, 0.99).ravel()
    odds = np.log(chance / (1 - chance)).astype(np.float32)
    return Arbiter(("edge",), (odds,), taken_at_their_word(1))


def taken_at_their_word(count: int) -> FloatArray:
    """The weights by which a token has the mean log-odds of the sources that name it, of ``count`` in all."""
    own = scenes_of(count) == SAME
    weights = own / np.maximum(own.sum(axis=1, keepdims=True), 1)
    return np.concatenate([np.zeros((len(own), 1)), weights], axis=1).astype(np.float32)
