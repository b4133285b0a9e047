"""Stage 6, draft: walk the graph from the teacher's true state and propose tokens.

A drafter is anything with the one method of :class:`Drafter`. The walk is table look-ups: no matrix product per token;
re-anchoring, once a round, is the only arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

from daari_mlx.graph import NO_NODE, Graph
from daari_mlx.length import MAX_DRAFT, Cost, Trust, best_length
from daari_mlx.nodes import FloatArray


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
        nodes: the node stood on when each token was drafted.
        rest: in how many rounds after this one nothing will be drafted, whatever the teacher says: the loop may run
            those ahead as mlx-lm's own does.
    """

    tokens: list[int] = field(default_factory=list)
    probabilities: list[float] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    anchor: int = NO_NODE
    nodes: list[int] = field(default_factory=list)
    rest: int = 0

    def first(self, length: int) -> Draft:
        """The draft cut to its first ``length`` tokens."""
        return replace(
            self,
            tokens=self.tokens[:length],
            probabilities=self.probabilities[:length],
            sources=self.sources[:length],
            nodes=self.nodes[:length],
        )

    def source_of(self, position: int) -> str:
        """Which source drafted the token at ``position``; ``"drafter"`` where the drafter does not say."""
        return self.sources[position] if position < len(self.sources) else "drafter"


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
    """Anchors on the teacher's state, takes the step of the token chosen there, and walks top edges.

    Args:
        graph: the compiled graph.
        num_draft_tokens: draft exactly this many tokens when the graph knows so many; None lets the path's
            probability and ``cost`` decide.
        cost: T(m)/T(1) of this teacher on this machine; needed when ``num_draft_tokens`` is None.
    """

    def __init__(self, graph: Graph, *, num_draft_tokens: int | None = None, cost: Cost | None = None) -> None:
        if num_draft_tokens is None and cost is None:
            raise ValueError("GraphDrafter needs num_draft_tokens or a cost curve to choose a length from.")
        self.graph = graph
        self.layer = graph.layer
        self.num_draft_tokens = num_draft_tokens
        self.cost = cost
        self._trust = Trust()
        self._shown = (0, Draft())  # where the newest path began, and as much of it as is judged: one token at least

    def draft(self, context: Context, limit: int, pending: int = 0) -> Draft:
        """See :meth:`Drafter.draft`; empty when there is no state or the graph has never seen this step."""
        if context.state is None:
            return Draft()
        self._learn(context.tokens)
        anchor = self.graph.nodes.anchor(context.state)
        most = MAX_DRAFT if self.num_draft_tokens is None else self.num_draft_tokens
        draft = self.walk(self.graph.step(anchor, context.tokens[-1]), min(limit, most))
        draft.anchor = anchor
        if self.cost is not None and self.num_draft_tokens is None:
            length = best_length([p * self._trust.factor for p in draft.probabilities], self.cost, pending)
            self._shown = (len(context.tokens), draft.first(max(length, 1)))
            draft = draft.first(length)
        return draft

    def _learn(self, tokens: list[int]) -> None:
        """Compare the newest path with what the teacher said since."""
        start, path = self._shown
        self._shown = (0, Draft())
        for own, drafted, probability in zip(tokens[start:], path.tokens, path.probabilities, strict=False):
            self._trust.learn(probability, own == drafted)
            if own != drafted:
                break

    def walk(self, node: int, limit: int) -> Draft:
        """Follow top edges from ``node`` for at most ``limit`` tokens, or until nothing more was ever observed."""
        token_of, probability_of, target_of = self.graph.walk
        draft = Draft()
        while node != NO_NODE and len(draft.tokens) < limit:
            probability = probability_of[node]
            if probability == 0:
                break
            draft.tokens.append(token_of[node])
            draft.probabilities.append(probability)
            draft.nodes.append(node)
            node = target_of[node]
        draft.sources = ["edge"] * len(draft.tokens)
        return draft
