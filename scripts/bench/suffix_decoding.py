"""SuffixDecoding as it was published, on the tables of our own suffix drafter: the baseline of bench_drafters.py."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from daari_mlx.draft.drafter import Context, Draft
from daari_mlx.measure.suffix import History, Texts, commonest

DEPTH = 64  # tokens of match and draft together


class SuffixDecoding:
    """The published method (SuffixDecoding, arXiv:2411.04975), as ``arctic-inference`` 0.3.0 does it with paths.

    Args:
        answers: of the corpus.
        factor: drafts are at most this many times as long as the match.
        least: a path less likely than this as a whole, by plain counting, is not drafted further.
    """

    layer = None

    def __init__(self, answers: Sequence[Sequence[int]], factor: float = 1.0, least: float = 0.1) -> None:
        self.factor, self.least = factor, least
        self._texts = Texts(lead=0)
        for answer in answers:
            self._texts.learn(answer)

    def draft(self, context: Context, limit: int, pending: int = 0) -> Draft:
        """See :meth:`daari_mlx.draft.drafter.Drafter.draft`."""
        self._texts.read(context.tokens)
        own, corpus = (
            self._best(history, context.tokens[-DEPTH:], limit) for history in (self._texts.own, self._texts.corpus)
        )
        _, tokens, probabilities = own if own[0] >= corpus[0] else corpus
        each = [p / before for p, before in zip(probabilities, [1.0, *probabilities], strict=False)]
        return Draft(tokens, each, ["suffix"] * len(tokens))

    def _best(self, history: History, context: list[int], limit: int) -> tuple[float, list[int], list[float]]:
        """Of the drafts behind every match, the one with the most expected tokens: these, draft, path probabilities."""
        best: tuple[float, list[int], list[float]] = (0.0, [], [])
        before, path = -1, _Path(history, np.zeros(0, np.intp))
        for length, places in enumerate(history.endings(context, len(context) - 1), start=1):
            if len(places) != before:  # as many places as before are the same ones
                before, path = len(places), _Path(history, places)
            most = min(limit, int(length * self.factor + 1e-6), DEPTH - length)
            tokens, probabilities = path.first(most, self.least)
            score = sum(probabilities, np.float32(0))
            if score >= best[0]:
                best = float(score), tokens, [float(p) for p in probabilities]
        return best


class _Path:
    """The commonest continuation of some places, found as far as it is asked for, in float32 as elsewhere."""

    def __init__(self, history: History, places: NDArray[np.intp]) -> None:
        self._history, self._places, self._ended = history, places, False
        self._tokens: list[int] = []
        self._probabilities: list[np.float32] = []

    def first(self, most: int, least: float | np.float32) -> tuple[list[int], list[np.float32]]:
        """At most ``most`` tokens, each with the path's probability up to it, none below ``least``."""
        least = np.float32(least)
        path = self._probabilities[-1] if self._probabilities else np.float32(1)
        while len(self._tokens) < most and not self._ended and path >= least:
            tokens, places = self._history.following(self._places)
            if len(tokens) == 0:
                self._ended = True
                break
            token, count = commonest(tokens)
            path = path * (np.float32(count) / np.float32(len(self._places)))
            self._tokens.append(token)
            self._probabilities.append(path)
            self._places = places[tokens == token] + 1
        kept = sum(bool(p >= least) for p in self._probabilities[: max(most, 0)])
        return self._tokens[:kept], self._probabilities[:kept]
