"""Stage 6, arbitration: how far each source can be trusted, and how their voices add up to one probability.

Each source's cell has a share of right tokens, counted on text that the graph had not seen. Sources that name the same
token add to its log-odds, sources that name another take from it, each by the weights of a logistic regression on the
same text: a maximum over the sources would promise too much, and a product of their odds even more, for they err
together.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp

import numpy as np

from daari_mlx.cells import COUNTS, SHARES, STEP_OF, STEPS
from daari_mlx.nodes import FloatArray
from daari_mlx.source import Moment, Source

OWN, OWN_ANYHOW, OTHER, OTHER_ANYHOW = range(4)  # columns of the weights
FLOOR = 0.02  # no T(m) is so flat that a path less likely than this as a whole pays
BUCKETS = STEP_OF  # of steps since the anchor; later steps share the last
LAST_STEP = len(BUCKETS) - 1
MAX_ODDS = 12.0  # log-odds beyond which a probability no longer grows: it never is 0 or 1
_LIMITS = (1 / (1 + exp(MAX_ODDS)), 1 / (1 + exp(-MAX_ODDS)))

Voice = tuple[list[float], list[float]]  # of a source: for its own token and for any, by cell


@dataclass(frozen=True)
class Proposal:
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
        names: the sources that are heard, in the order of the arrays.
        odds: per source ``(cells, STEPS)`` float32, the log-odds that its token is right, by cell and bucket of steps
            since the anchor.
        weights: ``(len(names), 4)`` float32: what a source adds to the log-odds of its own token (times its log-odds,
            and at any rate), and to those of another token.
        bias: the log-odds that every token starts from.
    """

    names: tuple[str, ...]
    odds: tuple[FloatArray, ...]
    weights: FloatArray
    bias: float

    @cached_property
    def voices(self) -> list[list[Voice]]:
        """By bucket of steps and source: what each cell adds to the source's own token beside what it adds to any."""
        made: list[list[Voice]] = [[] for _ in range(STEPS)]
        for odds, weight in zip(self.odds, self.weights, strict=True):
            other = odds * weight[OTHER] + weight[OTHER_ANYHOW]
            own = odds * weight[OWN] + weight[OWN_ANYHOW] - other
            for step in range(STEPS):
                made[step].append((own[:, step].tolist(), other[:, step].tolist()))
        return made

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
            heard: the sources, as named by ``names``, started on ``moment``, which is moved along.
            limit: the most tokens.
            ends: tokens after which nothing is drafted: an answer ends there.
            floor: a path less likely than this as a whole is not drafted further.
        """
        tokens: list[int] = []
        probabilities: list[float] = []
        named: list[str] = []
        path, bucket, pairs = 1.0, -1, []
        while len(tokens) < limit and path > floor:
            if BUCKETS[min(len(tokens), LAST_STEP)] != bucket:
                bucket = BUCKETS[min(len(tokens), LAST_STEP)]
                pairs = list(zip(heard, self.voices[bucket], strict=True))
            token, odds, name = self._choose(pairs)
            if token < 0:
                break
            probability = 1 / (1 + exp(-odds)) if -MAX_ODDS < odds < MAX_ODDS else _LIMITS[odds > 0]
            path *= probability
            tokens.append(token)
            probabilities.append(probability)
            named.append(name)
            if token in ends:
                break
            moment.said += chr(token)
            for source in heard:
                source.push(token, moment)
        return Proposal(tokens, probabilities, named)

    def _choose(self, pairs: list[tuple[Source, Voice]]) -> tuple[int, float, str]:
        """The token with the best log-odds, these, and the first source that named it; -1 where all are silent."""
        total, first, votes, name = self.bias, -1, 0.0, ""
        rivals: dict[int, tuple[float, str]] = {}
        for source, (own, other) in pairs:
            token = source.token
            if token >= 0:
                cell = source.cell
                total += other[cell]
                if token == first:
                    votes += own[cell]
                elif first < 0:
                    first, votes, name = token, own[cell], source.name
                else:
                    voice, namer = rivals.get(token, (0.0, source.name))
                    rivals[token] = voice + own[cell], namer
        for token, (voice, namer) in rivals.items():
            if voice > votes:
                first, votes, name = token, voice, namer
        return first, total + votes, name


def counted(names: tuple[str, ...] = ("edge",)) -> Arbiter:
    """The arbiter of a corpus too small to hold anything back: a share counts as the chance, less where counts are few.

    Args:
        names: sources whose cells are kinds (``edge``, ``path``).
    """
    share = (np.arange(SHARES) / (SHARES - 1))[:, None]
    seen = np.array([1.0, 2.0, 3.0, 5.0, 11.0, 51.0])[None]
    assert seen.shape[1] == COUNTS
    chance = np.clip(share * seen / (seen + 2), 0.01, 0.99).reshape(-1, 1)
    odds = np.repeat(np.log(chance / (1 - chance)), STEPS, axis=1).astype(np.float32)
    weights = np.zeros((len(names), 4), np.float32)
    weights[:, OWN] = 1 / len(names)
    return Arbiter(names, (odds,) * len(names), weights, 0.0)
