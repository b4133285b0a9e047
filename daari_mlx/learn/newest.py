"""Answers that no table was counted of yet: the very next answer can go on as they did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from daari_mlx.compile.budget import OVERHEAD, PLACE_BYTES, WORD_BYTES
from daari_mlx.draft.drafter import Context, GraphDrafter
from daari_mlx.graph.codepoints import BREAK_CHARACTER, as_text
from daari_mlx.graph.exemplars import ALIKE, Coarse, Exemplars, rank_within
from daari_mlx.graph.graph import Graph
from daari_mlx.graph.nodes import Projection
from daari_mlx.ground.types import IntArray
from daari_mlx.learn.heard import Heard
from daari_mlx.learn.memory import corpus_of, reduced_states

COPIED = 2048  # tokens of the newest answers that are copied from while there is no graph
SPARE = 8  # one in so many of a graph's bytes is left to answers that its tables do not know yet


class Newest:
    """Puts the newest answers into a graph, each reduced once however often that is done.

    Args:
        room: bytes of a graph that they may take, see :func:`room_for_newest`.
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self._projection: Projection | None = None
        self._known: dict[int, tuple[Heard, Heard]] = {}  # by id: as heard, and reduced by the projection

    def within(self, graph: Graph, answers: Sequence[Heard]) -> Graph:
        """The graph with as many of the answers as there is room for, the newest first; they stand oldest first."""
        fit = those_that_fit(answers, graph.nodes.centroids.shape[1], self._room)
        projection = graph.nodes.projection
        known = self._known if projection is self._projection else {}
        self._projection = projection
        self._known = {id(one): known[id(one)] if id(one) in known else (one, one.through(projection)) for one in fit}
        return with_newest(graph, [reduced for _, reduced in self._known.values()])


def room_for_newest(max_bytes: int) -> int:
    """Of a graph's bytes, what its tables leave to answers that they do not know yet."""
    return max(0, max_bytes - OVERHEAD) // SPARE


def those_that_fit(answers: Sequence[Heard], dimensions: int, room: int) -> Sequence[Heard]:
    """The newest of some answers, as many as so many bytes of a graph hold.

    Args:
        answers: oldest first.
        dimensions: of a graph's reduced states.
        room: see :func:`room_for_newest`.
    """
    taken = [len(one.states) * (dimensions + PLACE_BYTES + WORD_BYTES) + WORD_BYTES for one in reversed(answers)]
    fit = int(np.searchsorted(np.cumsum(taken), room, side="right"))
    return answers[len(answers) - fit :]


def with_newest(graph: Graph, answers: Sequence[Heard]) -> Graph:
    """A graph that can go on as the newest answers did, from states like theirs; its other tables stay as they are.

    Args:
        graph: with a projection of its own.
        answers: that it does not know yet, their states reduced by its projection, in any order.
    """
    if not answers:
        return graph
    corpus = corpus_of(answers, graph.nodes)
    follows, (text, places) = corpus.follows(), corpus.text()
    old = graph.exemplars
    unit = old.states.unit if len(old) else None
    fresh = Coarse.of(reduced_states(answers)[follows], unit)
    place = np.concatenate([places[follows] + np.int32(len(graph.text)), old.place]).astype(np.int32)
    words: IntArray = np.concatenate([graph.text, text])
    values = np.concatenate([fresh.values, old.states.values]) if len(old) else fresh.values
    rows = np.flatnonzero(rank_within(words[place]) < ALIKE)  # the newest stand first
    rows = rows[np.lexsort((place[rows], words[place[rows]]))]
    return replace(
        graph,
        text=words,
        exemplars=Exemplars(Coarse(values[rows], fresh.unit), place[rows], old.bounds),
    )


def looked_up(graph: Graph) -> Graph:
    """The same graph with all that a first draft makes of its arrays: no answer waits for that."""
    begin = [int(graph.text[graph.exemplars.place[0]])] if len(graph.exemplars) else [0]
    state = np.zeros(graph.hidden_size, np.float32)
    GraphDrafter(graph, num_draft_tokens=1).draft(Context(begin, state), 1)
    return graph


def newest_text(answers: Sequence[Heard]) -> str:
    """The newest answers as code points, each behind its prompt's last token and with a break after it."""
    texts: list[str] = []
    size = 0
    for one in reversed(answers):
        texts.append(as_text([int(one.prompt[-1]), *one.answer.tolist()]) + BREAK_CHARACTER)
        size += len(texts[-1])
        if size >= COPIED:
            break
    return "".join(reversed(texts))
