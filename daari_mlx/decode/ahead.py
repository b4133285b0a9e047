"""Rounds without a draft, as mlx-lm runs its own: each forward is started on a token that nobody has read yet.

While one token is on its way to the caller, the row that follows on it is already being computed. However this ends,
that row leaves the cache again, and the random numbers it used are given back.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import mlx.core as mx

from daari_mlx.teacher.rewind import Checkpoint
from daari_mlx.teacher.verify import Draws, Verifier, greedy


@dataclass(slots=True)
class Row:
    """A forward that was started, and may still be running.

    Attributes:
        checkpoint: where the cache stood before it.
        draws: where the random numbers stood before it; None where none are used.
        token: ``(1,)``, the teacher's own token, lazy.
        logprobs: ``(V,)`` log-probabilities it was chosen from, lazy.
        state: ``(1, H)`` float32, the state it was chosen from, lazy; None untapped.
    """

    checkpoint: Checkpoint
    draws: Draws | None
    token: mx.array = field(init=False)
    logprobs: mx.array = field(init=False)
    state: mx.array | None = None


class Runner:
    """Starts rows on a verifier's cache between its verify rounds.

    Args:
        verifier: whose teacher, cache, sampler, processors and pending rows these are.
    """

    def __init__(self, verifier: Verifier) -> None:
        self.verifier = verifier
        self._open: list[Row] = []  # rows whose token was not emitted, oldest first

    def start(self, last: int | mx.array) -> Row:
        """Start the forward over ``[*pending, last]`` and wait for nothing.

        Not where the verifier has ``filters``: they have to know all tokens before a row.

        Args:
            last: the newest token, or the ``token`` of the row before this one.
        """
        verifier = self.verifier
        block = mx.array([*verifier.pending, last], dtype=mx.uint32) if isinstance(last, int) else last
        row = Row(Checkpoint(verifier.cache, block.size), None if verifier.sampler is None else Draws())
        self._open.append(row)
        logits, states = verifier.forward(block)
        processed = logits[:, -1]
        if verifier.processors:
            newest = block[-1:]
            verifier.history = newest if verifier.history is None else mx.concatenate([verifier.history, newest])
            for processor in verifier.processors:
                processed = processor(verifier.history, processed)
        if verifier.sampler is None:
            token, logprobs = greedy(processed)
        else:
            logprobs = processed - mx.logsumexp(processed, keepdims=True)
            token = verifier.sampler(logprobs)
        row.token, row.logprobs = token.reshape(1), logprobs.squeeze(0)
        if states is not None:
            row.state = states[0, -1:].astype(mx.float32)
        mx.async_eval(row.token, row.logprobs, [] if row.state is None else row.state)
        return row

    def commit(self) -> None:
        """The oldest row stays in the cache, with the rows owed before it: its token was emitted."""
        self._open.pop(0)
        self.verifier.pending = []

    def stop(self) -> None:
        """Take out every row whose token was not emitted."""
        while self._open:
            row = self._open.pop()
            row.checkpoint.back_to(0)
            if row.draws is not None:
                row.draws.give_back()
