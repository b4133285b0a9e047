"""Stage 8, verify: one teacher forward over ``[last, *draft]``, the teacher's own token at every row, and the rewind.

Nothing is kept that the teacher did not say: rows it disagreed with leave the cache before the next round.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from daari_mlx.ground.accept import accept_block, count_accepted
from daari_mlx.ground.types import FloatArray
from daari_mlx.teacher.quirks import forward_rows
from daari_mlx.teacher.rewind import Cache, Checkpoint
from daari_mlx.teacher.tap import Tap

Sampler = Callable[[mx.array], mx.array]
LogitsProcessor = Callable[[mx.array, mx.array], mx.array]

MAX_PENDING = (
    8  # rows owed to a cache that can only be restored; beyond, one round goes without a draft and settles them
)


@runtime_checkable
class BlockProcessor(Protocol):
    """A logits processor that can answer for a whole block: constrained rounds then have one read-back, as others do.

    ``history`` is what mlx-lm would show at the block's first row: the prompt and all committed tokens. Nothing but
    it may move the processor's state: a draft is no news until it comes back within a history.
    """

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        """mlx-lm's call, for one row; it gives what :meth:`process_rows` gives for that row."""

    def allowed(self, history: list[int], draft: list[int]) -> int:
        """How many leading draft tokens could be drawn at all; the draft is cut there before it is verified."""

    def process_rows(self, history: list[int], draft: list[int], logits: mx.array) -> mx.array:
        """``(len(draft) + 1, V)`` logits, row i of which follows ``history + draft[:i]``, to such processed ones."""


@dataclass(slots=True)
class Verified:
    """What the teacher said to one draft.

    Attributes:
        drafted: how many draft tokens the forward carried: fewer than were given where a processor forbade one.
        tokens: the tokens to emit: accepted draft tokens, then the bonus token; at least one.
        accepted: how many of them were drafted.
        logprobs: one ``(V,)`` array of log-probabilities for each of ``tokens``, lazy.
        states: ``(len(tokens), H)`` float32: row i is the state from which ``tokens[i]`` was chosen; None untapped.
    """

    drafted: int
    tokens: list[int]
    accepted: int
    logprobs: list[mx.array]
    states: FloatArray | None


def greedy(logits: mx.array) -> tuple[mx.array, mx.array]:
    """The greedy token of each row of ``(m, V)`` logits, and the rows' log-probabilities.

    Every greedy choice is made here: the argmax of log-probabilities in the model's dtype, as mlx-lm takes it. In bf16
    that makes ties which logits lack.
    """
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    return mx.argmax(logprobs, axis=-1), logprobs


class Verifier:
    """Runs verify forwards against one cache and keeps the cache exact.

    Args:
        model: the teacher.
        cache: the caller's prompt cache; its objects are changed in place.
        tap: where to read states; None when no drafter needs them.
        sampler: from ``(1, V)`` log-probabilities to a ``(1,)`` token; None for greedy.
        logits_processors: mlx-lm's processors, or None. Where all of them are :class:`BlockProcessor`, they process a
            block at once; else every row in turn, as each may depend on calls.
        history: ``(n,)`` token ids before ``last``: what processors are shown before the rows of the first block.
        quantise: called with the cache after each forward (mlx-lm's KV quantisation).
    """

    def __init__(
        self,
        model: nn.Module,
        cache: Cache,
        *,
        tap: Tap | None = None,
        sampler: Sampler | None = None,
        logits_processors: list[LogitsProcessor] | None = None,
        history: mx.array | None = None,
        quantise: Callable[[Cache], None] | None = None,
    ) -> None:
        self.model, self.cache, self.tap = model, cache, tap
        self.sampler, self.processors = sampler, logits_processors or []
        self.pending: list[int] = []
        self.history = history
        self.filters = [p for p in self.processors if isinstance(p, BlockProcessor)]
        self._blockwise = len(self.filters) == len(self.processors)
        self._committed = [] if history is None or not self.filters else _ids(history)
        self._quantise = quantise or (lambda _: None)
        self._block: list[int] = []
        self._owed = 0  # leading rows of the block that were committed before the round
        self._checkpoint: Checkpoint | None = None
        self._draws: list[Draws] = []  # before the block, and after the draw of each of its rows

    def verify(self, last: int, draft: list[int]) -> Verified:
        """One forward over ``[*pending, last, *draft]``. Call :meth:`settle` before the next one.

        Raises:
            Whatever the teacher, a processor or the sampler raises; the cache is then as it was before the round.
        """
        history = [*self._committed, last] if self.filters else []
        for processor in self.filters:
            draft = draft[: processor.allowed(history, draft)]
        self._block, self._owed = [*self.pending, last, *draft], len(self.pending)
        self._checkpoint = Checkpoint(self.cache, len(self._block))
        self._draws = [] if self.sampler is None else [Draws()]
        try:
            logits, states = self.forward(mx.array(self._block, dtype=mx.uint32))
            verified = self._judge(logits[:, self._owed :], draft, history, last, states)
        except BaseException:
            self._checkpoint.back_to(0)
            self._checkpoint = None
            self._keep_draws(0)
            raise
        self.pending = []
        if self.filters:
            self._committed = history + draft[: verified.accepted]
        return verified

    def settle(self, emitted: int) -> None:
        """Keep the rows of ``last`` and of all emitted tokens but the newest; take the others out.

        Args:
            emitted: how many of the verified tokens were emitted; with none of them, ``last`` is the newest still.
        """
        checkpoint, self._checkpoint = self._checkpoint, None
        kept = self._owed + emitted
        excess = len(self._block) - kept
        if checkpoint is None or not excess:
            return
        self._keep_draws(emitted)
        dropped = checkpoint.drop(excess)
        self.pending = self._block[:kept] if dropped > excess else []

    def finish(self) -> None:
        """Give the cache the rows it is still owed, so that it holds all but the newest token."""
        if self.pending:
            self.forward(mx.array(self.pending, dtype=mx.uint32))
            mx.eval([c.state for c in self.cache])
            self.pending = []

    def forward(self, tokens: mx.array) -> tuple[mx.array, mx.array | None]:
        """One forward over ``(m,)`` tokens: ``(1, m, V)`` logits and, where tapped, ``(1, m, H)`` states, lazy."""
        inputs = tokens[None]
        if self.tap is None:
            logits, states = forward_rows(self.model, inputs, self.cache), None
        else:
            with self.tap.reading() as seen:
                logits = forward_rows(self.model, inputs, self.cache)
            states = seen[-1]
        self._quantise(self.cache)
        return logits, states

    def _judge(
        self, logits: mx.array, draft: list[int], history: list[int], last: int, states: mx.array | None
    ) -> Verified:
        """The teacher's own token at each row: ``logits`` is ``(1, γ+1, V)``."""
        if states is not None:
            states = states[0, self._owed :].astype(mx.float32)
        if self.processors and self._blockwise:
            mx.async_eval(logits, [] if states is None else states)  # it runs while the processors think
            for processor in self.filters:
                logits = processor.process_rows(history, draft, logits[0])[None]
        if not self._blockwise:
            tokens, logprobs = self._row_by_row(logits, draft, last)
        elif self.sampler is None:
            tokens, logprobs = self._greedy(logits, states)
        else:
            tokens, logprobs = self._sample(logits, draft)
        accepted = count_accepted(draft, tokens)
        emitted = accept_block(draft, tokens)
        kept = None if states is None else np.array(states[: len(emitted)], copy=False)
        return Verified(len(draft), emitted, accepted, logprobs[: len(emitted)], kept)

    def _greedy(self, logits: mx.array, states: mx.array | None) -> tuple[list[int], list[mx.array]]:
        tokens, logprobs = greedy(logits[0])
        mx.eval(tokens, [] if states is None else states)
        return _ids(tokens), list(logprobs)

    def _sample(self, logits: mx.array, draft: list[int]) -> tuple[list[int], list[mx.array]]:
        """Draw every row; then give back the random numbers that rejected rows used, so that draws equal plain's."""
        assert self.sampler is not None
        tokens, logprobs = [], []
        for row in range(logits.shape[1]):
            logprobs.append(logits[:, row] - mx.logsumexp(logits[:, row], keepdims=True))
            tokens.append(self.sampler(logprobs[-1]))
            self._draws.append(Draws())
        drawn = _ids(mx.concatenate(tokens))
        self._keep_draws(count_accepted(draft, drawn) + 1)
        return drawn, [row.squeeze(0) for row in logprobs]

    def _keep_draws(self, rows: int) -> None:
        """Give back the random numbers of all but the first ``rows`` rows."""
        if rows + 1 < len(self._draws):
            del self._draws[rows + 1 :]
            self._draws[-1].give_back()

    def _row_by_row(self, logits: mx.array, draft: list[int], last: int) -> tuple[list[int], list[mx.array]]:
        """Processors see, at row i, prompt + emitted + draft[:i]; no row that is not emitted is shown to them."""
        tokens: list[int] = []
        logprobs = []
        history = self.history
        for row, token in enumerate([last, *draft]):
            newest = mx.array([token], dtype=mx.uint32)
            history = newest if history is None else mx.concatenate([history, newest])
            processed = logits[:, row]
            for processor in self.processors:
                processed = processor(history, processed)
            logprobs.append(processed - mx.logsumexp(processed, keepdims=True))
            drawn = mx.argmax(logprobs[-1], axis=-1) if self.sampler is None else self.sampler(logprobs[-1])
            tokens.extend(_ids(drawn.reshape(1)))
            if self.sampler is not None:
                self._draws.append(Draws())
            if row == len(draft) or tokens[row] != draft[row]:
                break
        self.history = history
        return tokens, [row.squeeze(0) for row in logprobs]


class Draws:
    """Where this thread's random numbers stand now."""

    def __init__(self) -> None:
        state: Any = mx.random.state
        self._key: mx.array = state[0]
        self._thread = threading.get_ident()

    def give_back(self) -> None:
        """Make those that were drawn since available again; not from another thread, which has numbers of its own."""
        if threading.get_ident() == self._thread:
            high, low = _ids(self._key)
            mx.random.seed(high << 32 | low)  # a key is its seed's two halves: this restores it


def _ids(array: mx.array) -> list[int]:
    """A one-dimensional integer array as a list."""
    return [int(x) for x in array.tolist()]  # type: ignore[union-attr, arg-type]
