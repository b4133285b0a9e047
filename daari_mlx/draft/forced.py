"""The tokens that a schema leaves no choice in are drafted: keys, quotes and commas of JSON need no graph.

Another drafter's tokens go between them, where the teacher has a choice. The same text may be cut into other tokens,
and the teacher has the word in that: forced tokens are drafts as any others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from daari_mlx.cost.length import MAX_DRAFT, CostAt, best_length
from daari_mlx.draft.check import checked
from daari_mlx.draft.drafter import Context, Draft, Drafter
from daari_mlx.ground.errors import DaariError
from daari_mlx.teacher.tap import FINAL

SOURCE = "schema"
UNTOLD = 0.5  # the chance of a token of which its drafter tells none
NOT_ASKED = Draft()
PRIOR, START, MEMORY = 20.0, 0.95, 0.97  # judged tokens a text starts with, the share of them kept, what is left of one


@runtime_checkable
class Forcing(Protocol):
    """A grammar of one answer, as its processor keeps it."""

    size: int  # token ids that it knows

    def forced(self, history: list[int]) -> list[int]:
        """The tokens that there is no choice in behind ``history``, as the tokenizer would write them."""

    def allowed(self, history: list[int], draft: list[int]) -> int:
        """How many leading draft tokens may follow ``history``."""


ForceDrafts = Callable[[Forcing, Drafter | None], Drafter]  # a row's grammar and its own drafter, made one


def grammar_among(processors: Sequence[Any] | None) -> Forcing | None:
    """The first of the processors of one answer that knows what it forces; None where there is none."""
    return next((one for one in processors or () if isinstance(one, Forcing)), None)


class ForcedDrafter:
    """Drafts what a grammar forces, and what another drafter says where it leaves a choice; for one answer.

    Args:
        grammar: of the answer.
        other: who drafts the choices; None for nobody.
        before: how many of a context's tokens stand before the histories that the grammar knows.
        num_draft_tokens: draft this many tokens where so many are known; None lets ``cost`` decide.
        cost: T(m)/T(1) of the teacher on this machine; needed when ``num_draft_tokens`` is None.
    """

    def __init__(
        self,
        grammar: Forcing,
        other: Drafter | None = None,
        *,
        before: int = 0,
        num_draft_tokens: int | None = None,
        cost: CostAt | None = None,
    ) -> None:
        if num_draft_tokens is None and cost is None:
            raise ValueError("ForcedDrafter needs num_draft_tokens or a cost curve to choose a length from.")
        self.layer = None if other is None else getattr(other, "layer", FINAL)
        self._grammar, self._other, self._before = grammar, other, before
        self._asked, self._cost = num_draft_tokens, cost
        self._kept, self._judged = PRIOR * START, PRIOR
        self._own = NOT_ASKED
        self._offered: tuple[int, Draft] = (0, Draft())  # where the newest offer begins, and the offer
        self._shown = self._offered  # of the newest draft as much as is judged
        self._rest = 0  # rounds in which the other drafter is not asked

    def draft(self, context: Context, limit: int, pending: int = 0) -> Draft:
        """See :meth:`daari_mlx.draft.drafter.Drafter.draft`."""
        offered = self.offer(context, limit, pending)
        if self._asked is not None:
            return self.take(len(offered.tokens))
        assert self._cost is not None
        return self.take(best_length(offered.probabilities, self._cost.at(len(context.tokens)), pending))

    def offer(self, context: Context, limit: int, pending: int = 0) -> Draft:
        """All that could be drafted; who chooses the length says so with :meth:`take`."""
        self._learn(context.tokens)
        most = min(limit, MAX_DRAFT if self._asked is None else self._asked)
        self._own = self._ask(context, most, pending)
        self._offered = len(context.tokens), self._merged(context.tokens[self._before :], self._own, most)
        return self._offered[1]

    def take(self, length: int) -> Draft:
        """The first ``length`` tokens of the newest offer, which are drafted now."""
        start, offered = self._offered
        take = getattr(self._other, "take", None)
        if take is not None and self._own is not NOT_ASKED:
            self._rest = take(min(length, len(self._own.tokens))).rest
        self._shown = start, offered.first(max(length, 1))
        return offered.first(length)

    def _ask(self, context: Context, most: int, pending: int) -> Draft:
        """What the other drafter says, unless it rests; the grammar may have something to say in every round."""
        if self._other is None or self._rest:
            self._rest = max(self._rest - 1, 0)
            return NOT_ASKED
        own = checked(self._other, context, most, pending, self._grammar.size, offered=True)
        self._rest = own.rest
        return own

    def _merged(self, history: list[int], own: Draft, most: int) -> Draft:
        """The other's tokens as long as the grammar allows them, and what it forces behind them."""
        made = Draft(anchor=own.anchor)
        tokens, allowed = made.tokens, self._grammar.allowed(history, own.tokens[:most])
        forced = self._forced(history)
        for place in range(allowed):
            token = own.tokens[place]
            chance = own.probabilities[place] if place < len(own.probabilities) else UNTOLD
            known = forced[:1] == [token]
            _add(made, token, max(chance, self._sure) if known else chance, own.source_of(place))
            forced = forced[1:] if known and len(forced) > 1 else self._forced(history + tokens)
        while forced and len(tokens) < most:
            for token in forced[: most - len(tokens)]:
                _add(made, token, self._sure, SOURCE)
            forced = self._forced(history + tokens)
        return made

    @property
    def _sure(self) -> float:
        """The chance that the teacher writes a forced token as the tokenizer does."""
        return self._kept / self._judged

    def _forced(self, history: list[int]) -> list[int]:
        try:
            return self._grammar.forced(history)
        except DaariError:  # looking ahead may be too much for a grammar that can be followed step by step
            return []

    def _learn(self, tokens: list[int]) -> None:
        start, draft = self._shown
        self._shown = (0, Draft())
        for place, (own, drafted) in enumerate(zip(tokens[start:], draft.tokens, strict=False)):
            if draft.source_of(place) == SOURCE:
                self._kept = self._kept * MEMORY + (own == drafted)
                self._judged = self._judged * MEMORY + 1
            if own != drafted:
                break


def _add(draft: Draft, token: int, chance: float, source: str) -> None:
    draft.tokens.append(token)
    draft.probabilities.append(chance)
    draft.sources.append(source)
