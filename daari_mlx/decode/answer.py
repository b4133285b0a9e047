"""One answer under way: what it may still draft, how long it rests, when it ends, and what each token counts for.

All of it is the same for one row and for many; what differs is who runs the teacher.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import mlx.core as mx
import numpy as np

from daari_mlx.decode.emitted import NOTHING, Emitted, Round
from daari_mlx.decode.limits import NO_LIMIT, Options
from daari_mlx.draft.check import checked
from daari_mlx.draft.drafter import Context, Draft, Drafter
from daari_mlx.ground.accept import Statistics
from daari_mlx.ground.errors import DaariError
from daari_mlx.teacher.judge import Verified
from daari_mlx.teacher.row import MAX_PENDING

LEARNT = 4096  # tokens of an answer, about, that are learnt from: their states are held until its end
MAX_STATES = 64  # states of the newest tokens that are kept for the drafter over rounds of rest
CLEAR_EVERY = 256  # tokens between two returns of freed buffers to the system, as mlx-lm does


class Hears(Protocol):
    """Who learns from finished answers."""

    def hear(self, prompt: list[int], answer: list[int], states: list[Any]) -> None:
        """See :meth:`daari_mlx.learn.learner.Learner.hear`."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the next round does.

    Attributes:
        draft: what is drafted; empty for a round without a draft.
        ahead: the round after this one has no draft either, so its forward may be started before this one is read.
    """

    draft: Draft
    ahead: bool = False


class Answer:
    """The state of one answer but for the teacher's.

    Args:
        prompt: its token ids.
        options: limits and callbacks.
        drafter: who drafts, or None.
        vocabulary: how many token ids the teacher knows: a draft ends before any other.
        statistics: counts are added to it.
        cached: tokens that the cache stands for, the prompt but its last token included.
        earlier: the tokens before the prompt, where they are known: the drafter reads them too.
        state: ``(H,)`` MLX or NumPy array, the state at the last token but one of the prompt; None where none was read.
        learner: who learns from the answer, at its end, or None; it needs states.
    """

    def __init__(
        self,
        prompt: list[int],
        options: Options,
        drafter: Drafter | None,
        vocabulary: int,
        statistics: Statistics,
        *,
        cached: int,
        earlier: list[int] | None = None,
        state: Any = None,
        learner: Hears | None = None,
    ) -> None:
        self.text = list(prompt)  # prompt and emitted tokens
        self.statistics = statistics
        self.emitted = 0
        self.taken = 0  # tokens emitted of the newest round
        self._prompt_tokens = len(prompt)
        self._options, self._drafter, self._vocabulary, self._cached = options, drafter, vocabulary, cached
        self._context = Context([*(earlier or ()), *prompt], None)  # the drafter's own view of the text
        self._states: deque[Any] = deque([] if state is None else [state[None]], maxlen=MAX_STATES)
        self._resting = 0  # rounds that go without a draft from here on
        self._learner = learner
        self._seen: list[Any] = [] if learner is None else [block.copy() for block in map(_as_rows, self._states)]
        self._led = len(self._seen)  # rows of them before the answer's own

    @property
    def ended(self) -> bool:
        """Whether the budget is spent."""
        return self.emitted == self._options.max_tokens

    @property
    def resting(self) -> bool:
        """Whether the next round has no draft, whatever this one brings."""
        return self._resting > 0

    @property
    def ends_next(self) -> bool:
        """Whether its next token is its last."""
        return self.emitted + 1 == self._options.max_tokens

    def plan(self, pending: int) -> Plan:
        """What the next round drafts.

        Args:
            pending: rows that its forward has to carry besides the newest token and the draft.
        """
        draft = NOTHING
        if self._resting == 0:
            draft, self._resting = self._ask(pending)
            if draft.tokens:
                return Plan(draft)
        self._resting = max(self._resting - 1, 0)
        return Plan(draft, ahead=self._resting > 0 and self._options.row_limit(self.emitted, self._cached) > 1)

    def offer(self, pending: int) -> Draft:
        """What could be drafted now, before a length is chosen for all answers of a round; :meth:`take` follows."""
        if self._resting:
            self._resting -= 1
            return NOTHING
        draft, rest = self._ask(pending, offered=True)
        self._resting = rest if rest == NO_LIMIT else 0
        return draft

    def take(self, offered: Draft, length: int, clock: int) -> Plan:
        """The round's plan, once its length is chosen: the first ``length`` tokens of the offer.

        Args:
            clock: the number of the round. Answers that rest wake in the same rounds, so that all of them rest in the
                others.
        """
        if offered is NOTHING or self._drafter is None:
            return Plan(NOTHING)
        take = getattr(self._drafter, "take", None)
        draft = offered.first(length) if take is None else take(min(length, len(offered.tokens)))
        if draft.rest:
            self._resting = max(self._resting, draft.rest - clock % draft.rest)
        return Plan(draft)

    def emit(self, plan: Plan, verified: Verified) -> Iterator[Emitted]:
        """The tokens of a round; each counts as emitted once it is given out."""
        self.taken = 0
        draft, carried = plan.draft, verified.draft
        made = Round(self.statistics.forwards + 1, verified.tokens, draft, len(carried), verified.accepted)
        if verified.states is not None:
            self._states.append(verified.states)
        try:
            for row, (token, logprobs) in enumerate(verified):
                if row == 0:
                    self._begin(len(carried))
                if not 0 <= token < (self._vocabulary or NO_LIMIT):  # the next forward would read what lies behind
                    raise DaariError(f"The sampler chose token {token}: this teacher's end at {self._vocabulary - 1}.")
                agreed = row < len(carried) and token == carried[row]
                made.accepted = max(made.accepted, row + agreed)
                source = draft.source_of(row) if agreed else None
                self._count(token, source)
                yield Emitted(token, logprobs, source, made)
                if self.emitted % CLEAR_EVERY == 0:
                    mx.clear_cache()
        finally:
            if verified.states is not None and self.taken:
                self._states[-1] = verified.states[: self.taken]
                if self._learner is not None and self.emitted <= LEARNT:
                    self._seen.append(_as_rows(verified.states)[: self.taken].copy())

    def end(self) -> None:
        """Let the learner hear what was said; nothing that it meets ends an answer."""
        learner, self._learner = self._learner, None
        if learner is not None and self.emitted:
            text = self._context.tokens
            start = len(text) - self.emitted
            seen = sum(map(len, self._seen)) - self._led
            learner.hear(text[:start], text[start : start + seen], self._seen)

    def _begin(self, drafted: int) -> None:
        """Count the forward of a round, and tell that the prompt is done, as mlx-lm does with the first token."""
        if self.emitted == 0 and self._options.prompt_progress_callback:
            self._options.prompt_progress_callback(self._prompt_tokens, self._prompt_tokens)
        self.statistics.forward(drafted)

    def _count(self, token: int, source: str | None) -> None:
        self.taken += 1
        self.emitted += 1
        self._cached += 1
        self.text.append(token)
        self._context.tokens.append(token)
        self.statistics.emit(source)

    def _ask(self, pending: int, offered: bool = False) -> tuple[Draft, int]:
        """The next draft, and how many rounds without one come behind it: with no draft now, this one is the first."""
        if self._drafter is None:
            return NOTHING, NO_LIMIT
        limit = self._options.draft_limit(self.emitted, self._cached)
        if limit == 0:
            self.statistics.drafting_off = self._options.ends_drafting(self._cached)
            return NOTHING, NO_LIMIT if self.statistics.drafting_off else 1
        if pending > MAX_PENDING:
            return NOTHING, 1
        start = perf_counter()
        self._show_states()
        draft = checked(self._drafter, self._context, limit, pending, self._vocabulary, offered)
        self.statistics.draft_seconds += perf_counter() - start
        return draft, draft.rest + (not draft.tokens)

    def _show_states(self) -> None:
        """Give the drafter the states of the tokens that came since it was asked last."""
        if self._states:
            seen = np.concatenate([np.array(states, copy=False) for states in self._states])[-MAX_STATES:]
            self._context.states, self._context.state = seen, seen[-1]
            self._states.clear()


def _as_rows(states: Any) -> Any:
    """A block of states as NumPy reads it where it lies."""
    return np.array(states, copy=False)
