"""Single states of the corpus, a byte a number: the nearest ones, weighed by distance, say where their texts went on.

A node says what most of its states said. Where an answer is decided, the few states that are most alike tell more: what
they went on to say is looked up by nearness (k nearest neighbours, Cover and Hart 1967, weighed by distance).
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from functools import cached_property
from math import exp
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daari_mlx.graph.nodes import half_norms
from daari_mlx.ground.types import FloatArray, IntArray

NEAREST = 8  # exemplars that are asked
REACH = 24  # tokens of the text behind a state that are ever drafted or kept for it
ALIKE = 2048  # exemplars of one token, at the most: comparing a state with them takes 0.1 ms
TYPICAL = 2  # which bound is taken for the usual distance
SHARPNESS = 0.3  # of that distance: what makes an exemplar count 1/e of the nearest one
LEAST = 1e-6  # that an exemplar counts, of the nearest one
QUANTILES = (0.15, 0.35, 0.6, 0.8, 0.95)  # of the distance to the nearest one: between the buckets of a cell
SAMPLED = 800  # exemplars whose nearest ones are looked for, to learn what distances are usual
_LARGEST = 127


@dataclass(frozen=True)
class Coarse:
    """Reduced states with a byte for each number.

    Attributes:
        values: ``(n, D)`` int8.
        unit: ``(D,)`` float32, what a step of each dimension is worth.
    """

    values: NDArray[np.int8]
    unit: FloatArray

    @classmethod
    def of(cls, reduced: FloatArray, unit: FloatArray | None = None) -> Coarse:
        """Of ``(n, D)`` reduced states; what lies beyond a given unit's reach is cut."""
        states = np.asarray(reduced, np.float32)
        if unit is None:
            unit = np.maximum(np.abs(states).max(axis=0, initial=0) / _LARGEST, np.float32(1e-9)).astype(np.float32)
        return cls(np.clip(np.rint(states / unit), -_LARGEST, _LARGEST).astype(np.int8), unit)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: Any) -> FloatArray:
        """The states of some rows, or of one, as float32."""
        found: FloatArray = self.values[rows].astype(np.float32) * self.unit
        return found

    def take(self, rows: NDArray[np.int64]) -> Coarse:
        """Of these rows, as far as they are known: up to the first that is not."""
        unknown = np.flatnonzero(rows >= len(self))
        return Coarse(self.values[rows[: unknown[0]] if len(unknown) else rows], self.unit)


def no_states() -> Coarse:
    """Nothing is known of any state."""
    return Coarse(np.zeros((0, 0), np.int8), np.zeros(0, np.float32))


@dataclass(frozen=True)
class Exemplars:
    """Single states; with X of them:

    Attributes:
        states: ``(X, D)``.
        place: ``(X,)`` int32, where in the text the token stands that was chosen from each. They are in the order of
            those tokens, then of places.
        bounds: ``(len(QUANTILES),)`` float32, squared distances between the buckets of a cell, not falling.
    """

    states: Coarse = field(default_factory=no_states)
    place: IntArray = field(default_factory=lambda: np.zeros(0, np.int32))
    bounds: FloatArray = field(default_factory=lambda: np.zeros(len(QUANTILES), np.float32))

    def __len__(self) -> int:
        return len(self.place)

    @property
    def nbytes(self) -> int:
        """What they take, their text not counted."""
        return self.states.values.nbytes + self.place.nbytes

    @cached_property
    def width(self) -> float:
        """The squared distance over which an exemplar's weight falls to 1/e."""
        return max(SHARPNESS * float(self.bounds[TYPICAL]), 1e-9)

    @cached_property
    def _wide(self) -> tuple[FloatArray, FloatArray, list[float]]:
        """The states as float32, half their squared lengths, and the bounds, as every draft reads them."""
        states = self.states[:]
        return states, half_norms(states), self.bounds.tolist()

    @cached_property
    def _spans(self) -> dict[tuple[int, int], tuple[FloatArray, FloatArray, IntArray]]:
        """Spans that were asked for: their states, half squared lengths and the places behind them."""
        return {}

    def distances(self, first: int, last: int, state: FloatArray) -> FloatArray:
        """The squared distance of ``(D,)`` float32 ``state`` to each of ``[first, last)``; ``(last - first,)``."""
        states, halves, _ = self._wide
        found: FloatArray = 2 * (halves[first:last] - states[first:last] @ state) + state.dot(state)
        return found

    def nearest(self, span: tuple[int, int], state: FloatArray) -> tuple[list[int], list[float], int]:
        """The ``NEAREST`` of ``[first, last)``, of which there is one: where in the text each goes on behind its token,
        how far it is, and a bucket of distance.

        How far is half the squared distance less half the squared length of ``state``, which is the same for all. Of a
        state that is no number all are equally far.
        """
        cut = self._spans.get(span)
        if cut is None:
            rows = slice(*span)
            cut = self._spans[span] = self._wide[0][rows], self._wide[1][rows], self.place[rows] + 1
        states, halves, places = cut
        found = states @ state
        np.subtract(halves, found, found)
        if len(found) > NEAREST:
            chosen = found.argpartition(NEAREST)[:NEAREST]
            found, places = found[chosen], places[chosen]
        far: list[float] = found.tolist()
        distance = 2 * min(far) + float(state.dot(state))
        bucket = bisect_left(self._wide[2], distance) if distance == distance else len(QUANTILES)
        return places.tolist(), far, bucket

    def weigh(self, far: list[float]) -> list[float]:
        """What exemplars count that are so far, see :meth:`nearest`: 1 for the nearest one."""
        least, scale = min(far), 2 / self.width
        return [weight if (weight := exp((least - one) * scale)) > LEAST else LEAST for one in far]

    def only(self, rows: NDArray[np.int64]) -> Exemplars:
        """Some of them, rising."""
        return Exemplars(self.states.take(rows), self.place[rows], self.bounds)

    def behind(self, words: int) -> Exemplars:
        """The same with so many words put before their text."""
        return Exemplars(self.states, self.place + np.int32(words), self.bounds)

    def evenly(self, most: int) -> Exemplars:
        """All of them, or ``most`` that lie evenly among them."""
        if len(self) <= most:
            return self
        return self.only(np.linspace(0, len(self) - 1, most).astype(np.int64))


def spans(tokens: IntArray) -> dict[int, tuple[int, int]]:
    """Where the run of each token begins and ends in sorted ``tokens``."""
    starts = np.flatnonzero(np.diff(tokens, prepend=tokens[:1] - 1))
    ends = np.append(starts[1:], len(tokens))[: len(starts)]
    return dict(zip(tokens[starts].tolist(), zip(starts.tolist(), ends.tolist(), strict=True), strict=True))


def rank_within(key: NDArray[Any]) -> NDArray[np.int64]:
    """How many equal keys stand before each."""
    order = np.argsort(key, kind="stable")
    begin = np.concatenate([[True], key[order][1:] != key[order][:-1]]) if len(key) else np.zeros(0, bool)
    place = np.arange(len(key))
    rank = np.empty(len(key), np.int64)
    rank[order] = place - np.maximum.accumulate(np.where(begin, place, 0))
    return rank


def make_exemplars(states: Coarse, place: IntArray, tokens: IntArray, sequence: NDArray[np.int64]) -> Exemplars:
    """Of X states in any order: what stands where, and which distances are usual between answers.

    Args:
        states: ``(X, D)``.
        place: ``(X,)``.
        tokens: ``(X,)``, chosen from each state.
        sequence: ``(X,)``, which sequence each is of: a state's own one does not tell how near others are.
    """
    order = np.lexsort((place, tokens))
    made = Exemplars(states.take(order), place[order].astype(np.int32))
    run, owner = spans(tokens[order]), sequence[order]
    found = []
    for row in np.linspace(0, len(order) - 1, min(SAMPLED, len(order))).astype(int).tolist():
        first, last = run[int(tokens[order[row]])]
        other = owner[first:last] != owner[row]
        if other.any():
            found.append(float(made.distances(first, last, made.states[row])[other].min()))
    if not found:
        return made
    bounds = np.maximum(np.quantile(found, QUANTILES), 0).astype(np.float32)
    return Exemplars(made.states, made.place, bounds)
