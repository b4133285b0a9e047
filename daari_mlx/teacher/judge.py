"""The teacher's own token at every row of a block: processors, then sampler, each asked as plain decoding asks it.

A draft shows nothing of itself: no row behind the first disagreement reaches a sampler or a processor that could keep
anything, and random numbers that rejected rows used are given back.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import mlx.core as mx

from daari_mlx.ground.accept import count_accepted
from daari_mlx.teacher.draws import Draws, ids

Sampler = Callable[[mx.array], mx.array]
LogitsProcessor = Callable[[mx.array, mx.array], mx.array]


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
    """What the teacher says to one draft; iterating gives one token after another, with its log-probabilities.

    Attributes:
        draft: the draft tokens that the forward carried: fewer than were proposed where a processor forbade one.
        tokens: the teacher's own tokens: accepted draft tokens, then the bonus token. Where rows are judged one at a
            time, only those that were asked for so far.
        logprobs: one ``(V,)`` array of log-probabilities for each of ``tokens``, lazy.
        states: ``(n, H)`` float32, n at least the tokens: row i is the state from which ``tokens[i]`` was chosen,
            a lazy MLX array or a NumPy one; None untapped.
        more: gives the rows that were not judged yet.
    """

    draft: list[int]
    tokens: list[int]
    logprobs: list[mx.array]
    more: Iterator[tuple[int, mx.array]] | None = None
    states: Any = None

    @property
    def accepted(self) -> int:
        """How many draft tokens the teacher agreed with, as far as rows were judged."""
        return count_accepted(self.draft, self.tokens)

    def __iter__(self) -> Iterator[tuple[int, mx.array]]:
        yield from zip(list(self.tokens), list(self.logprobs), strict=True)
        for token, logprobs in self.more or ():
            self.tokens.append(token)
            self.logprobs.append(logprobs)
            yield token, logprobs


def greedy(logits: mx.array) -> tuple[mx.array, mx.array]:
    """The greedy token of each row of ``(m, V)`` logits, and the rows' log-probabilities.

    Every greedy choice is made here: the argmax of log-probabilities in the model's dtype, as mlx-lm takes it. In bf16
    that makes ties which logits lack.
    """
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    return mx.argmax(logprobs, axis=-1), logprobs


class Judge:
    """Chooses the tokens of one answer from the teacher's logits.

    Args:
        sampler: from ``(1, V)`` log-probabilities to a ``(1,)`` token; None for greedy. mlx-lm's own samplers keep
            nothing but MLX's random numbers, so all rows of a block are drawn at once; any other is asked row by row,
            as it may remember what it was asked.
        processors: mlx-lm's logits processors, or None. Where all of them are :class:`BlockProcessor`, they process a
            block at once; else rows are judged one at a time, the next one when it is asked for.
        history: token ids before the first row: what processors are shown.
        stream: the MLX stream that rows are judged on when they are asked for.
        random: where random numbers come from; None for MLX's own of this thread, as in mlx-lm.
    """

    def __init__(
        self,
        sampler: Sampler | None = None,
        processors: list[LogitsProcessor] | None = None,
        history: list[int] | None = None,
        stream: Any = None,
        random: Draws | None = None,
    ) -> None:
        self.sampler, self.processors = sampler, processors or []
        self.filters = [p for p in self.processors if isinstance(p, BlockProcessor)]
        self._blockwise = len(self.filters) == len(self.processors)
        self._knows_rows = self._blockwise and (sampler is None or _is_free_of_state(sampler))
        self._shown = mx.array(history, dtype=mx.uint32) if processors and history else None
        self._stream = stream
        self._random = Draws() if random is None else random
        self._marks: list[mx.array] = []  # random numbers before the block, and after the draw of each of its rows
        self._newest: mx.array | None = None  # (1, V) log-probabilities of the newest drawn row

    def cut(self, text: list[int], draft: list[int]) -> list[int]:
        """The draft up to the first token that a block processor would never let through."""
        for processor in self.filters:
            draft = draft[: processor.allowed(text, draft)] if draft else draft
        return draft

    @property
    def is_plain(self) -> bool:
        """Greedy, and nothing but the logits counts: many answers can be judged at once, by :func:`greedy`."""
        return self.sampler is None and not self.processors

    @property
    def is_known_at_once(self) -> bool:
        """A block's tokens can be had lazily by :meth:`begin`, before anybody reads them."""
        return self._knows_rows

    def block(self, logits: mx.array, text: list[int], draft: list[int]) -> Verified:
        """Judge the rows of a block and read them.

        Args:
            logits: ``(len(draft) + 1, V)``; row i follows ``text + draft[:i]``.
            text: prompt and emitted tokens.
            draft: the draft tokens, after :meth:`cut`.
        """
        return self.begin(logits, text, draft)[1]()

    def begin(
        self, logits: mx.array, text: list[int], draft: list[int]
    ) -> tuple[list[mx.array], Callable[[], Verified]]:
        """The same in two steps: what is to be computed, and what reads it. Many answers are then computed at once."""
        self._marks = []
        if self.processors and self._blockwise:
            mx.async_eval(logits)  # it runs while the processors think
            for processor in self.filters:
                logits = processor.process_rows(list(text), draft, logits)
        if not self._knows_rows:
            return [logits], lambda: Verified(draft, [], [], self._one_by_one(logits, text[-1], draft))
        if self.sampler is None:
            chosen, logprobs = greedy(logits)
            return [chosen], lambda: Verified(draft, *agreeing(draft, ids(chosen), list(logprobs)))
        tokens, drawn = self._drawn(logits)
        return [tokens], lambda: self._read(tokens, drawn, draft)

    def row(self, logits: mx.array, newest: mx.array) -> tuple[mx.array, mx.array]:
        """Judge a single row that nobody reads yet: its ``(1,)`` token and ``(V,)`` log-probabilities, lazy.

        Args:
            logits: ``(1, V)``.
            newest: ``(1,)``, the token before it, which may be lazy.
        """
        processed = self._processed(logits, newest) if self.processors else logits
        if self.sampler is None:
            token, logprobs = greedy(processed)
            return token.reshape(1), logprobs.squeeze(0)
        self._newest = processed - mx.logsumexp(processed, keepdims=True)
        with self._random.used():
            token = self.sampler(self._newest)
        return token.reshape(1), self._newest.squeeze(0)

    def keep(self, rows: int) -> None:
        """Give back the random numbers of all but the first ``rows`` rows of the newest block."""
        if rows + 1 < len(self._marks):
            del self._marks[rows + 1 :]
            self._random.back_to(self._marks[-1])

    def skip(self) -> None:
        """Draw as often as plain has when an answer ends: once more than it has emitted tokens."""
        if self._newest is not None and self.sampler is not None and _is_free_of_state(self.sampler):
            with self._random.used():
                self.sampler(self._newest)

    def mark(self) -> mx.array | None:
        """Where the random numbers stand; None where none are used."""
        return None if self.sampler is None else self._random.mark()

    def back_to(self, mark: mx.array | None) -> None:
        """Make the random numbers available again that were drawn since ``mark``."""
        if mark is not None:
            self._random.back_to(mark)

    def _drawn(self, logits: mx.array) -> tuple[mx.array, list[mx.array]]:
        """Draw every row: ``(n,)`` tokens, and the log-probabilities of each."""
        assert self.sampler is not None
        tokens, logprobs = [], []
        with self._random.used():
            self._marks = [self._random.mark()]
            for row in range(len(logits)):
                self._newest = logits[row : row + 1] - mx.logsumexp(logits[row : row + 1], keepdims=True)
                logprobs.append(self._newest.squeeze(0))
                tokens.append(self.sampler(self._newest).reshape(1))
                self._marks.append(self._random.mark())
        return mx.concatenate(tokens), logprobs

    def _read(self, tokens: mx.array, logprobs: list[mx.array], draft: list[int]) -> Verified:
        """The random numbers that rejected rows used are given back, so that draws equal plain's."""
        said, kept = agreeing(draft, ids(tokens), logprobs)
        self.keep(len(said))
        return Verified(draft, said, kept)

    def _one_by_one(self, logits: mx.array, last: int, draft: list[int]) -> Iterator[tuple[int, mx.array]]:
        """Each row once the one before it was agreed with and used, so that nobody is asked about another."""
        for row, newest in enumerate([last, *draft]):
            with contextlib.nullcontext() if self._stream is None else mx.stream(self._stream):
                given = logits[row : row + 1]
                if not self._blockwise:
                    given = self._processed(given, mx.array([newest], dtype=mx.uint32))
                logprobs = given - mx.logsumexp(given, keepdims=True)
                self._newest = logprobs
                with self._random.used():
                    drawn = mx.argmax(logprobs, axis=-1) if self.sampler is None else self.sampler(logprobs)
                token = ids(drawn.reshape(1))[0]
            yield token, logprobs.squeeze(0)
            if row == len(draft) or token != draft[row]:
                return

    def _processed(self, logits: mx.array, newest: mx.array) -> mx.array:
        """One row through all processors, which see prompt + emitted tokens, ``newest`` the last of them."""
        self._shown = newest if self._shown is None else mx.concatenate([self._shown, newest])
        for processor in self.processors:
            logits = processor(self._shown, logits)
        return logits


def agreeing(draft: list[int], own: list[int], logprobs: list[mx.array]) -> tuple[list[int], list[mx.array]]:
    """The teacher's tokens up to the first that is not the draft's, with their log-probabilities."""
    said = count_accepted(draft, own) + 1
    return own[:said], logprobs[:said]


def _is_free_of_state(sampler: Any) -> bool:
    """Whether a sampler is mlx-lm's own: those keep nothing but MLX's random numbers."""
    while isinstance(sampler, functools.partial):
        sampler = sampler.func
    return getattr(sampler, "__module__", None) == "mlx_lm.sample_utils"
