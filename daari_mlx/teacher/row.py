"""One answer's place in a teacher: one owner of its cache, of the rows owed to it, and of its random numbers.

Four verbs: *read* a prompt, *verify* a draft by one forward, *settle* what of it stays, *finish*. Rounds without a
draft run ahead as mlx-lm's own: while one token is on its way to the caller, the next forward is under way.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from daari_mlx.teacher.draws import ids
from daari_mlx.teacher.judge import Judge, Verified
from daari_mlx.teacher.quirks import forward_rows
from daari_mlx.teacher.rewind import Cache, Checkpoint
from daari_mlx.teacher.tap import Tap

# Rows owed to a cache that can only be restored; beyond, one round goes without a draft and settles them.
MAX_PENDING = 8


@dataclass(slots=True)
class Ahead:
    """A single row that was started and may still be running.

    Attributes:
        checkpoint: where the cache stood before it.
        mark: where the random numbers stood before it; None where none are used.
        token: ``(1,)``, the teacher's own token, lazy; None until its forward was started whole.
        logprobs: ``(V,)`` log-probabilities it was chosen from, lazy.
        state: ``(1, H)`` float32, the state it was chosen from, lazy; None untapped.
    """

    checkpoint: Checkpoint
    mark: mx.array | None
    token: mx.array | None = None
    logprobs: mx.array = field(init=False)
    state: mx.array | None = None


class Row:
    """Runs a teacher for one answer and keeps the cache exact.

    Args:
        model: the teacher.
        cache: the prompt cache; its objects are changed in place.
        judge: says the teacher's own tokens.
        tap: where to read states; None when no drafter needs them.
        quantise: called with the cache after each forward (mlx-lm's KV quantisation).
        stream: the MLX stream to run on; None for mlx-lm's generation stream.
        whole: leave the cache as plain does, with prompt and all emitted tokens: the cache is the caller's. Else it
            holds all but the newest token at the end, which saves a forward.
    """

    def __init__(
        self,
        model: nn.Module,
        cache: Cache,
        judge: Judge,
        *,
        tap: Tap | None = None,
        quantise: Callable[[Cache], None] | None = None,
        stream: Any = None,
        whole: bool = False,
    ) -> None:
        self.pending: list[int] = []  # committed tokens whose rows the cache has lost again
        self._model, self._cache, self._judge, self._tap = model, cache, judge, tap
        self._quantise = quantise or (lambda _: None)
        self._stream = importlib.import_module("mlx_lm.generate").generation_stream if stream is None else stream
        self._whole = whole
        self._ahead: list[Ahead] = []  # single rows whose token was not emitted, oldest first
        self._block: list[int] = []
        self._owed = 0  # leading rows of the block that were committed before the round
        self._checkpoint: Checkpoint | None = None  # before the block; None when it is settled
        self._verified: Verified | None = None
        self._complete = False  # the newest token has its row in the cache

    def read(self, tokens: list[int], step: int, report: Callable[[int], None]) -> mx.array | None:
        """Prefill: all of ``tokens`` go into the cache, ``step`` a forward; the ``(H,)`` state at the last one.

        A chunk that fails leaves the cache with the chunks before it. None where no state is tapped, or no token given.
        """
        state: mx.array | None = None
        prompt, done = mx.array([tokens], dtype=mx.uint32), 0
        with mx.stream(self._stream):
            while done < len(tokens):
                chunk = prompt[:, done : done + step]
                checkpoint = Checkpoint(self._cache, chunk.shape[1])
                try:
                    state = self._prefill(chunk)
                except BaseException:
                    checkpoint.back_to(0)  # else some layers would hold the chunk and others not
                    raise
                self._quantise(self._cache)
                done += chunk.shape[1]
                mx.eval([c.state for c in self._cache], state if state is not None and done == len(tokens) else [])
                report(done)
                mx.clear_cache()
        return state

    def verify(self, text: list[int], draft: list[int], *, ahead: bool = False) -> Verified:
        """One forward over the newest token and the draft. Call :meth:`settle` before the next one.

        A draft that cannot be verified (the forward or a processor raises) is dropped: the round goes without it.

        Args:
            text: prompt and emitted tokens.
            draft: draft tokens, possibly none.
            ahead: without a draft, start the forward behind this one too: the next round has no draft either.

        Raises:
            Whatever the teacher, a processor or the sampler raises; the cache is then as it was before the round.
        """
        assert not (draft and self._ahead), "the round before promised that this one has no draft"
        with mx.stream(self._stream):
            if draft:
                with contextlib.suppress(Exception):
                    return self._verify_block(text, draft)
            if self._judge.filters:  # they have to know all tokens before a row
                return self._verify_block(text, [])
            return self._next_row(text[-1], ahead)

    def settle(self, emitted: int) -> None:
        """Keep the rows of the newest token before the round and of the emitted ones; take the others out.

        Args:
            emitted: how many of the verified tokens were emitted. The last of them keeps its row where it has one and
                the cache is to be whole.
        """
        if self._ahead:
            if emitted:
                self._ahead.pop(0)
                self.pending = []
            return
        checkpoint, self._checkpoint = self._checkpoint, None
        if checkpoint is None or self._verified is None:
            return
        verified = self._verified
        newest = emitted - 1
        has_row = newest < 0 or (newest < len(verified.draft) and verified.tokens[newest] == verified.draft[newest])
        self._complete = self._whole and has_row
        self._judge.keep(emitted + self._complete)
        kept = self._owed + emitted + self._complete
        excess = len(self._block) - kept
        dropped = 0
        if excess:
            with mx.stream(self._stream):
                dropped = checkpoint.drop(excess)
        self.pending = self._block[:kept] if dropped > excess else []

    def finish(self, newest: int) -> None:
        """End the answer: what was started is taken out, what the cache is owed is fed.

        Args:
            newest: the newest token of the text. Where the cache is to be whole and lacks its row, that row is run as
                plain runs it, sampler and processors included.
        """
        with mx.stream(self._stream):
            if self._whole and self._ahead and self._ahead[0].token is not None:
                self._ahead.pop(0)
                self.pending, self._complete = [], True
            self._take_out_ahead()
            missing = self._whole and not self._complete
            logits = self._feed([*self.pending, newest] if missing else self.pending)
            self.pending, self._complete = [], True
            if not self._whole:
                self._judge.skip()
            elif not missing:
                self._ask_once_more()
            elif logits is not None:
                with contextlib.suppress(Exception):  # nobody asked for the token behind the last one
                    self._judge.row(logits, mx.array([newest], dtype=mx.uint32))
            mx.eval([c.state for c in self._cache])

    def _feed(self, tokens: list[int]) -> mx.array | None:
        """Rows that are only to be in the cache; the ``(1, V)`` logits at the last one, lazy, None without rows."""
        if not tokens:
            return None
        checkpoint = Checkpoint(self._cache, len(tokens))
        try:
            logits, _ = self._forward(mx.array(tokens, dtype=mx.uint32))
        except BaseException:
            checkpoint.back_to(0)
            raise
        return logits[0, -1:]

    def _ask_once_more(self) -> None:
        """A row that is judged only when asked for is, once, behind the last token, as in plain decoding."""
        if self._verified is not None and self._verified.more is not None:
            with contextlib.suppress(Exception):
                next(self._verified.more, None)

    def _verify_block(self, text: list[int], draft: list[int]) -> Verified:
        draft = self._judge.cut(text, draft)
        self._block, self._owed = [*self.pending, text[-1], *draft], len(self.pending)
        checkpoint = Checkpoint(self._cache, len(self._block))
        mark = self._judge.mark()
        try:
            logits, states = self._forward(mx.array(self._block, dtype=mx.uint32))
            if states is not None:
                states = states[0, self._owed :].astype(mx.float32)
                mx.async_eval(states)
            verified = self._judge.block(logits[0, self._owed :], text, draft)
        except BaseException:
            checkpoint.back_to(0)
            self._judge.back_to(mark)
            raise
        verified.states = states
        self._checkpoint, self._verified, self.pending = checkpoint, verified, []
        return verified

    def _next_row(self, last: int, ahead: bool) -> Verified:
        row = self._ahead[0] if self._ahead else self._start(mx.array([*self.pending, last], dtype=mx.uint32))
        assert row.token is not None
        if ahead:
            self._start(row.token)
        self._verified = Verified([], ids(row.token), [row.logprobs], states=row.state)
        return self._verified

    def _start(self, block: mx.array) -> Ahead:
        """Start the forward over ``(n,)`` tokens, of which only the last is new, and wait for nothing."""
        row = Ahead(Checkpoint(self._cache, block.size), self._judge.mark())
        self._ahead.append(row)
        logits, states = self._forward(block)
        token, row.logprobs = self._judge.row(logits[0, -1:], block[-1:])
        if states is not None:
            row.state = states[0, -1:].astype(mx.float32)
        mx.async_eval(token, row.logprobs, [] if row.state is None else row.state)
        row.token = token
        return row

    def _take_out_ahead(self) -> None:
        """Take out every single row whose token was not emitted, and give its random numbers back."""
        while self._ahead:
            row = self._ahead.pop()
            row.checkpoint.back_to(0)
            self._judge.back_to(row.mark)

    def _prefill(self, chunk: mx.array) -> mx.array | None:
        if self._tap is None:
            self._model(chunk, cache=self._cache)
            return None
        with self._tap.reading() as seen:
            self._model(chunk, cache=self._cache)
        return seen[-1][0, -1].astype(mx.float32)

    def _forward(self, tokens: mx.array) -> tuple[mx.array, mx.array | None]:
        """One forward over ``(m,)`` tokens: ``(1, m, V)`` logits and, where tapped, ``(1, m, H)`` states, lazy."""
        inputs = tokens[None]
        if self._tap is None:
            logits, states = forward_rows(self._model, inputs, self._cache), None
        else:
            with self._tap.reading() as seen:
                logits = forward_rows(self._model, inputs, self._cache)
            states = seen[-1]
        self._quantise(self._cache)
        return logits, states
