"""From the teacher's true state, propose tokens.

A drafter is anything with the one method of :class:`Drafter`. That of a graph looks up tables: no matrix product per
token; re-anchoring, once a round, is the only arithmetic.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Protocol

from daari_mlx.cost.length import MAX_DRAFT, CostAt, Trust, best_length
from daari_mlx.graph.arbiter import FLOOR
from daari_mlx.graph.graph import Graph
from daari_mlx.graph.source import NO_NODE
from daari_mlx.graph.sources import Sources
from daari_mlx.ground.given import check_whole
from daari_mlx.ground.types import FloatArray

WAKEFUL = 3  # rounds in which no draft pays before the first rest
LONGEST_REST = 8


@dataclass(slots=True)
class Context:
    """What a drafter may look at.

    Attributes:
        tokens: prompt and emitted tokens; the draft continues after the last of them.
        state: ``(H,)`` float32, the teacher state from which ``tokens[-1]`` was chosen (the state at ``tokens[-2]``);
            None when no forward has shown one yet.
        states: ``(r, H)`` float32, the states from which the newest r tokens were chosen, ``state`` last; None where
            only ``state`` is known.
    """

    tokens: list[int]
    state: FloatArray | None
    states: FloatArray | None = None


@dataclass(slots=True)
class Draft:
    """A proposed continuation.

    Attributes:
        tokens: the draft tokens, possibly none.
        probabilities: the drafter's probability that each is right, given that all before it are.
        sources: which source drafted each; empty where the drafter has only one.
        anchor: the node of the teacher's true state, or ``NO_NODE``.
        rest: in how many rounds after this one nothing will be drafted, whatever the teacher says: the loop may run
            those ahead as mlx-lm's own does.
    """

    tokens: list[int] = field(default_factory=list)
    probabilities: list[float] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    anchor: int = NO_NODE
    rest: int = 0

    def first(self, length: int) -> Draft:
        """The draft cut to its first ``length`` tokens."""
        return replace(
            self,
            tokens=self.tokens[:length],
            probabilities=self.probabilities[:length],
            sources=self.sources[:length],
        )

    def source_of(self, position: int) -> str:
        """Which source drafted the token at ``position``; ``"drafter"`` where the drafter does not say."""
        return self.sources[position] if position < len(self.sources) else "drafter"


def rest_after(idle: int) -> int:
    """In how many rounds nothing will be drafted, after ``idle`` in a row in which no draft paid."""
    return 0 if idle < WAKEFUL else min(2 ** (idle - WAKEFUL), LONGEST_REST)


class Drafter(Protocol):
    """Proposes what the teacher will say next."""

    def draft(self, context: Context, limit: int, pending: int) -> Draft:
        """At most ``limit`` draft tokens after ``context.tokens``.

        Args:
            context: what has been said and the teacher's last state.
            limit: the most tokens that may be drafted, at least 1.
            pending: rows that the verify forward has to carry besides the last token and the draft.
        """
        ...


class GraphDrafter:
    """Anchors on the teacher's state, then lets the graph's sources name token after token, as far as it pays.

    One drafter serves one text at a time: what was said in it is a source too.

    Args:
        graph: the compiled graph.
        num_draft_tokens: draft exactly this many tokens when the graph knows so many; None lets the path's
            probability and ``cost`` decide.
        cost: T(m)/T(1) of this teacher on this machine; needed when ``num_draft_tokens`` is None.
        ends: token ids that end an answer: nothing is drafted behind them.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        num_draft_tokens: int | None = None,
        cost: CostAt | None = None,
        ends: Collection[int] = (),
    ) -> None:
        if num_draft_tokens is None and cost is None:
            raise ValueError("GraphDrafter needs num_draft_tokens or a cost curve to choose a length from.")
        if num_draft_tokens is not None:
            check_whole("num_draft_tokens", num_draft_tokens, 0)
        self.num_draft_tokens = num_draft_tokens
        self.cost = cost
        self.ends = frozenset(ends)
        self.use(graph)
        self._trust = Trust()
        # of the newest path: its text, where it began, its tokens and promises as far as they are judged: one at least
        self._shown: tuple[list[int], int, list[int], list[float]] | None = None
        self._idle = 0  # rounds without a draft in a row
        self._offered, self._text = Draft(), list[int]()  # the newest offer, and the text that it goes on from

    def use(self, graph: Graph, earlier: str = "") -> None:
        """Go on with another graph of the same teacher; how well promises held is still known.

        Args:
            earlier: answers to copy from, as code points with a break behind each.
        """
        self.graph = graph
        self.layer = graph.layer
        self.sources = Sources(graph, graph.arbiter.names, earlier)

    def draft(self, context: Context, limit: int, pending: int = 0) -> Draft:
        """See :meth:`Drafter.draft`; empty when there is no state or no source knows how to go on."""
        offered = self._propose(context, limit)
        if self.num_draft_tokens is not None:
            return offered
        assert self.cost is not None
        cost = self.cost.at(len(context.tokens))
        return self.take(best_length(self._trust.believed(offered.probabilities), cost, pending))

    def offer(self, context: Context, limit: int) -> Draft:
        """The likeliest path as far as anything is known, with the probabilities that are believed on this text.

        Who chooses the length says so with :meth:`take`.
        """
        offered = self._propose(context, limit)
        if self.num_draft_tokens is not None:
            return offered
        return replace(offered, probabilities=self._trust.believed(offered.probabilities))

    def _propose(self, context: Context, limit: int) -> Draft:
        """The newest offer, with the probabilities that the graph promises."""
        if context.state is None:
            self._offered = Draft()
            return self._offered
        self._learn(context.tokens)
        anchor, reduced = self.graph.nodes.anchor(context.state)
        moment = self.sources.start(context.tokens, anchor, state=reduced)
        asked = self.num_draft_tokens
        most, floor = (MAX_DRAFT, FLOOR) if asked is None else (asked, 0.0)
        found = self.graph.arbiter.propose(self.sources.all, moment, min(limit, most), self.ends, floor=floor)
        self._text, self._offered = context.tokens, Draft(*found, anchor)
        return self._offered

    def take(self, length: int) -> Draft:
        """The first ``length`` tokens of the newest offer, which are drafted now."""
        offered, self._offered = self._offered, Draft()
        if self.num_draft_tokens is not None or offered.anchor == NO_NODE:
            return offered.first(length)
        judged = max(length, 1)
        self._shown = self._text, len(self._text), offered.tokens[:judged], offered.probabilities[:judged]
        self._idle = 0 if length else self._idle + 1
        made = offered.tokens[:length], offered.probabilities[:length], offered.sources[:length]
        return Draft(*made, offered.anchor, rest_after(self._idle))

    def _learn(self, tokens: list[int]) -> None:
        """Compare the newest path with what the teacher said since; another text says nothing of it."""
        if self._shown is None:
            return
        text, start, drafted, promised = self._shown
        self._shown = None
        if tokens is not text and tokens[:start] != text[:start]:
            self._trust.turn()
            return
        for own, token, probability in zip(tokens[start:], drafted, promised, strict=False):
            self._trust.learn(probability, own == token)
            if own != token:
                break
