"""What still comes true: old answers that say what the newest no longer say fade, and go first where bytes are few.

An answer is known by its runs of ``RUN`` tokens. Its use is the share of them that the newest answers say too. Text
without a form shares few with any other, so what counts is how its use compares with that of the newest themselves.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from daari_mlx.graph.corpus import Corpus
from daari_mlx.graph.graph import Graph
from daari_mlx.ground.types import FloatArray
from daari_mlx.learn.heard import Heard

NEWEST = 200  # answers that tell what still comes true; so many later, half of what no longer does is left
RUN = 3  # tokens that are compared at once
STALE = 0.5  # of the usual use: an answer of less no longer comes true
EDGE = np.array([1 << 31])  # no token: stands before and behind an answer
_MIX = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)


def uses(answers: Sequence[Heard], newest: int) -> FloatArray:
    """``(n,)`` float32: the share of each answer's runs that others of the newest say too.

    Args:
        answers: oldest first.
        newest: how many of the last of them tell.
    """
    lengths = np.array([len(one.answer) for one in answers])
    padded = np.concatenate([part for one in answers for part in (EDGE, one.answer, EDGE)]).astype(np.uint64)
    ends = np.cumsum(lengths + 2)
    begins = np.ones(len(padded), bool)  # where a run begins that lies within one answer
    begins[ends - 1] = begins[ends - 2] = False
    at = np.flatnonzero(begins)
    runs = np.bitwise_xor.reduce([padded[at + k] * _MIX[k] for k in range(RUN)])
    _, run = np.unique(runs, return_inverse=True)
    pair = np.unique(run.astype(np.int64) * len(answers) + np.repeat(np.arange(len(answers)), lengths))
    run, owner = pair // len(answers), pair % len(answers)
    tells = owner >= len(answers) - newest
    said = np.bincount(run, tells, run.max() + 1)
    again = said[run] - tells > 0
    found: FloatArray = (np.bincount(owner, again) / np.bincount(owner)).astype(np.float32)
    return found


def stale(answers: Sequence[Heard]) -> NDArray[np.bool_]:
    """``(n,)``: which answers, oldest first, no longer come true; never one of the newest."""
    newest = min(NEWEST, -(-len(answers) // 2))
    found = np.zeros(len(answers), bool)
    if len(answers) > newest:
        use = uses(answers, newest)
        found[:-newest] = use[:-newest] < STALE * float(np.median(use[-newest:]))
    return found


def lasting(answers: Sequence[Heard]) -> list[Heard]:
    """The answers that tables are counted of, oldest first: of those that no longer come true, half of each older age.

    Which of them is drawn by when they were said, so that the same ones are left next time.
    """
    gone = stale(answers)
    age = np.arange(len(answers))[::-1] // NEWEST
    return [one for one, old, n in zip(answers, gone, age.tolist(), strict=True) if not old or _chance(one) < 0.5**n]


def first_to_go(answers: Sequence[Heard], surplus: int) -> set[int]:
    """Which of some answers, oldest first, go to free so many bytes: those that no longer come true, then the oldest.

    Those that go are told by their numbers.
    """
    order = np.argsort(~stale(answers), kind="stable")
    freed = np.cumsum([answers[k].nbytes for k in order.tolist()])
    return set(order[: int(np.searchsorted(freed, surplus)) + 1].tolist()) if surplus > 0 else set()


def _chance(one: Heard) -> float:
    """A number in [0, 1) that an answer always has."""
    return zlib.crc32(struct.pack("<d", one.at)) / 2**32


def faded(base: Graph, corpus: Corpus, heard: int) -> Graph:
    """A graph with less of what came true in none of the newest answers.

    Every ``NEWEST`` answers the counts of such a token at a node halve, and half of its exemplars there are left. What
    is seldom counted goes first where the bytes are few.

    Args:
        base: the graph.
        corpus: labelled answers, newest first; its nodes are the base's, then others.
        heard: how many answers have been heard since the graph was made.
    """
    halved = min(heard // NEWEST, 30)
    if halved == 0:
        return base
    rows = int(corpus.rows[:NEWEST].sum())
    width = max(base.vocab_size, int(corpus.tokens.max(initial=0)) + 1)
    came = np.unique(corpus.labels[:rows].astype(np.int64) * width + corpus.tokens[:rows])
    node = np.repeat(np.arange(base.size), np.diff(base.edge_start))
    seen = np.rint(base.edge_probability.astype(np.float64) * base.support[node])
    old = ~np.isin(node * width + base.edge_token, came)
    left = np.where(old, np.maximum(np.rint(seen / 2**halved), 1), seen)
    support = base.support - np.bincount(node, seen - left, base.size).astype(np.int64)
    made = replace(
        base,
        edge_probability=(left / np.maximum(support[node], 1)).astype(np.float32),
        support=support.astype(np.int32),
    )
    kept = base.exemplars
    if not len(kept):
        return made
    where = base.nodes.label(kept.states[:]).astype(np.int64) * width + base.text[kept.place]
    old = ~np.isin(where, came)
    return replace(made, exemplars=kept.only(np.flatnonzero(~old | (np.cumsum(old) % 2**halved == 0))))
