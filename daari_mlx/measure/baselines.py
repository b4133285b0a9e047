"""Who drafts in a comparison by replay: the graph, parts of it, and what is known besides.

Each entry of :data:`DRAFTERS` makes, for a graph and a T(m), the function that :func:`daari_mlx.measure.replay.replay`
asks for a drafter of each stream. A new one is one small function.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from itertools import pairwise

from daari_mlx.cost.length import MAX_DRAFT, Cost, best_length
from daari_mlx.draft.drafter import Context, Draft, Drafter, GraphDrafter
from daari_mlx.draft.lookup import LookupDrafter
from daari_mlx.graph.arbiter import Arbiter, taken_at_their_word
from daari_mlx.graph.codepoints import BREAK
from daari_mlx.graph.graph import Graph
from daari_mlx.ground.errors import DaariError
from daari_mlx.measure.streams import Stream
from daari_mlx.measure.suffix import SuffixDrafter

DrafterOf = Callable[[Stream], Drafter]

RECYCLED = 8  # of the teacher's likeliest tokens at a row, how many are kept
PRIOR, MEMORY = 4.0, 0.97  # of how often a step along the likeliest came true
FLOOR = 0.02


def hearing(graph: Graph, name: str) -> Graph:
    """The graph with one source alone, whose counted chance is its word.

    Raises:
        DaariError: the graph has no such source.
    """
    arbiter = graph.arbiter
    if name not in arbiter.names:
        raise DaariError(f"The graph has no source {name!r}: it has {', '.join(arbiter.names)}.")
    odds = arbiter.odds[arbiter.names.index(name)]
    return replace(graph, arbiter=Arbiter((name,), (odds,), taken_at_their_word(1)))


def answers_of(graph: Graph) -> list[list[int]]:
    """The corpus's answers, each behind its prompt's last token."""
    answers: list[list[int]] = [[]]
    for token in graph.text.tolist():
        if token == BREAK:
            answers.append([])
        else:
            answers[-1].append(token)
    return [answer for answer in answers if answer]


def graph_drafter(graph: Graph, cost: Cost, ends: Collection[int]) -> DrafterOf:
    """The graph with all its sources, a new drafter for each answer, as :func:`daari_mlx.stream_generate` makes one."""
    return lambda stream: GraphDrafter(graph, cost=cost, ends=ends)


def edge_drafter(graph: Graph, cost: Cost, ends: Collection[int]) -> DrafterOf:
    """The plain graph: the walk alone."""
    alone = hearing(graph, "edge")
    return lambda stream: GraphDrafter(alone, cost=cost, ends=ends)


def lookup_drafter(graph: Graph, cost: Cost, ends: Collection[int]) -> DrafterOf:
    """Prompt lookup; what it learns about matches is kept from answer to answer."""
    drafter = LookupDrafter(cost=cost)
    return lambda stream: drafter


def suffix_drafter(graph: Graph, cost: Cost, ends: Collection[int]) -> DrafterOf:
    """The longest suffix over the graph's own corpus and the text at hand, learning as it goes."""
    drafter = SuffixDrafter(answers_of(graph), cost, ends)
    return lambda stream: drafter


def recycling_drafter(graph: Graph, cost: Cost, ends: Collection[int]) -> DrafterOf:
    """Token Recycling, started with what followed each token in the graph's corpus."""
    table = RecycledTokens()
    for answer in answers_of(graph):
        for token, after in pairwise(answer):
            table.put(token, [after])
    steps = StepChances()
    return lambda stream: RecyclingDrafter(stream, table, steps, cost, ends)


def oracle_drafter(graph: Graph, cost: Cost, ends: Collection[int]) -> DrafterOf:
    """The truth, as far as it pays: what no drafter of one token a position can beat."""
    return lambda stream: OracleDrafter(stream, cost)


DRAFTERS: dict[str, Callable[[Graph, Cost, Collection[int]], DrafterOf]] = {
    "graph": graph_drafter,
    "edge": edge_drafter,
    "lookup": lookup_drafter,
    "suffix": suffix_drafter,
    "recycling": recycling_drafter,
    "oracle": oracle_drafter,
}


class RecycledTokens:
    """After each token, the teacher's likeliest ones when it last stood there (Token Recycling, arXiv:2408.08696)."""

    def __init__(self) -> None:
        self.after: dict[int, list[int]] = {}

    def put(self, token: int, likeliest: list[int]) -> None:
        """Take in what a row of the teacher showed behind ``token``, likeliest first."""
        self.after[token] = likeliest[:RECYCLED]


class StepChances:
    """How often each step along the likeliest tokens came true."""

    def __init__(self) -> None:
        self._kept = [PRIOR * 0.5] * MAX_DRAFT
        self._judged = [PRIOR] * MAX_DRAFT

    def __call__(self, step: int) -> float:
        return self._kept[step] / self._judged[step]

    def learn(self, step: int, right: bool) -> None:
        """Take in one token that the teacher has judged."""
        self._kept[step] = self._kept[step] * MEMORY + right
        self._judged[step] = self._judged[step] * MEMORY + 1


class RecyclingDrafter:
    """The likeliest token after the last one, the likeliest after that, and so on.

    A stream shows only rows that the teacher agreed with; what rejected rows show, which a live run recycles too, is
    not known here.

    Args:
        stream: whose rows are read up to the last token said.
        table, steps: kept from answer to answer.
        cost: T(m)/T(1).
        ends: token ids that end an answer: nothing is drafted behind them.
    """

    layer = None

    def __init__(
        self, stream: Stream, table: RecycledTokens, steps: StepChances, cost: Cost, ends: Collection[int]
    ) -> None:
        self.table = table
        self._stream, self._steps, self._cost, self._ends = stream, steps, cost, frozenset(ends)
        self._rows = 0
        self._shown: tuple[int, list[int]] = (0, [])

    def read(self, tokens: list[int]) -> None:
        """Take in the rows of what was said since."""
        first = self._stream.start - 2  # the token that row 0 stands on
        for row in range(self._rows, len(tokens) - 1 - first):
            if first + row >= 0:
                self.table.put(tokens[first + row], self._stream.top[row].tolist())
        self._rows = max(self._rows, len(tokens) - 1 - first)

    def draft(self, context: Context, limit: int, pending: int = 0) -> Draft:
        """See :meth:`daari_mlx.draft.drafter.Drafter.draft`."""
        start, drafted = self._shown
        for step, (own, token) in enumerate(zip(context.tokens[start:], drafted, strict=False)):
            self._steps.learn(step, own == token)
            if own != token:
                break
        self.read(context.tokens)
        tokens: list[int] = []
        chances: list[float] = []
        last, path = context.tokens[-1], 1.0
        while len(tokens) < min(limit, MAX_DRAFT) and path > FLOOR and last not in self._ends:
            known = self.table.after.get(last)
            if known is None:
                break
            last = known[0]
            chances.append(self._steps(len(tokens)))
            path *= chances[-1]
            tokens.append(last)
        length = best_length(chances, self._cost.at(len(context.tokens)), pending)
        self._shown = (len(context.tokens), tokens[: max(length, 1)])
        return Draft(tokens[:length], chances[:length], ["recycled"] * length)


class OracleDrafter:
    """Knows the answer; the lengths of its drafts are those by which the whole of it takes the least time.

    Args:
        stream: whose answer is drafted.
        cost: T(m)/T(1), never falling with m.
    """

    layer = None

    def __init__(self, stream: Stream, cost: Cost) -> None:
        self._stream, self._cost = stream, cost
        self._best: dict[int, list[int]] = {}

    def draft(self, context: Context, limit: int, pending: int = 0) -> Draft:
        """See :meth:`daari_mlx.draft.drafter.Drafter.draft`."""
        place, answer = len(context.tokens) - self._stream.start, self._stream.answer
        length = min(self._lengths(limit)[place], limit)
        return Draft(answer[place : place + length], [1.0] * length, ["oracle"] * length)

    def _lengths(self, limit: int) -> list[int]:
        """The best length of a draft at each place of the answer, none longer than ``limit``: by going backwards.

        A limit that shrinks towards the end does no harm: the last token never has to be drafted.
        """
        known = self._best.get(limit)
        if known is None:
            size = len(self._stream.answer)
            times, known = [0.0] * (size + 1), [0] * size
            for place in range(size - 1, -1, -1):
                cost = self._cost.at(self._stream.start + place)
                most = min(limit, size - place - 1)
                times[place], known[place] = min(
                    (cost(1 + length) + times[place + length + 1], length) for length in range(most + 1)
                )
            self._best[limit] = known
        return known
