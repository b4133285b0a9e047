"""A model whose prompt cache follows a text that somebody else writes.

It reads what is new of the text, may go on by itself, and takes back what the text did not take over: every cache of
mlx-lm, sliding windows and recurrent states included.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import common_prefix_len

from daari_mlx.ground.evaluated import evaluated
from daari_mlx.teacher.judge import greedy
from daari_mlx.teacher.kept import Stamp, stamp
from daari_mlx.teacher.load import PREFILL_STEP_SIZE
from daari_mlx.teacher.quirks import forward_rows
from daari_mlx.teacher.rewind import Checkpoint, can_drop_one, drop_last

BLOCK = 64  # new tokens that are read by one forward with logits; of more, logits of all would cost too much


class Follower:
    """One model and one prompt cache of its own.

    Args:
        model: any model of mlx-lm that takes blocks of rows.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._held: list[int] | None = None  # the tokens that the cache stands for; None where nobody knows
        self._row: mx.array | None = None  # (1, V) logits after the last of them
        self._stamp: Stamp | None = None  # of the model that the cache was filled by

    def renew(self) -> None:
        """Forget what was read where the model has changed since; to be called once an answer, since it takes a ms."""
        now = stamp(self.model)
        if now != self._stamp:
            self._held = self._row = None
            self._stamp = now

    def _begin(self) -> None:
        self._cache = make_prompt_cache(self.model)
        self._checkpoint: Checkpoint | None = None  # before the own tokens, where the cache cannot drop single rows
        self._firm = 0  # how many tokens the cache held there

    def behind(self, text: list[int]) -> int:
        """How many tokens :meth:`read` would have to feed to have read ``text``: 0 where nothing is new."""
        held = self._held or []
        shared = _shared(held, text)
        if shared == len(held) == len(text):
            return 0
        if shared < len(held) and not can_drop_one(self._cache):
            shared = self._firm if self._checkpoint is not None and shared >= self._firm else 0
        return len(text) - min(shared, len(text) - 1)

    @property
    def takes_back(self) -> bool:
        """Whether any number of read tokens can be taken back; until something is read, it is hoped."""
        return self._held is None or can_drop_one(self._cache)

    def look(self, text: list[int], rows: int = 1) -> tuple[list[int], list[float]]:
        """The model's own next token after each of the last ``rows`` tokens of a text, and its probability for it."""
        logits = self.read(text, rows)
        with _stream():
            chosen, logprobs = greedy(logits)
            mx.eval(chosen, best := mx.exp(logprobs.max(axis=-1)).astype(mx.float32))
        return np.array(chosen).tolist(), np.array(best).tolist()

    def read(self, text: list[int], rows: int = 1) -> mx.array:
        """``(rows, V)`` logits, lazy, after each of the last ``rows`` tokens; what the cache holds is not read again.

        Args:
            text: all token ids, at least ``rows`` of them.
        """
        if rows == 1 and self._row is not None and self._held == text:
            return self._row
        if self._held is None:
            self._begin()
        held, self._held, self._row = self._held or [], None, None
        shared = min(_shared(held, text), len(text) - rows)
        if shared < len(held):
            shared = self._take_back(len(held), shared)
        logits = self._feed(text[shared:], rows)
        with _stream():
            mx.async_eval(last := logits[-1:])  # whoever asks for it again may be on another thread
        self._held, self._row = list(text), last
        self._checkpoint, self._firm = None, len(text)
        if not can_drop_one(self._cache):
            self._checkpoint = Checkpoint(self._cache, 1, singly=True)
        return logits

    def steps(self, text: list[int], limit: int) -> Iterator[tuple[int, float]]:
        """Go on after ``text`` greedily, as long as it is asked to.

        Yields:
            At most ``limit`` times a token and the model's own probability for it.
        """
        row = self.read(text)
        for left in range(limit - 1, -1, -1):
            with _stream():
                chosen, logprobs = greedy(row)
                mx.eval(chosen, best := mx.exp(logprobs.max()).astype(mx.float32))
            token = int(np.array(chosen)[0])
            yield token, float(np.array(best))
            if left:
                held = self._held or []
                row = self._step(chosen)
                held.append(token)
                self._held, self._row = held, row

    def block(self, text: list[int], length: int) -> tuple[list[int], list[float]]:
        """``length`` greedy tokens after ``text`` and their probabilities, read back once: for a length that is set."""
        rows, row = [], self.read(text)
        for number in range(length):
            with _stream():
                chosen, logprobs = greedy(row)
                rows.append((chosen, mx.exp(logprobs.max(axis=-1))))
                mx.async_eval(*rows[-1])
            if number + 1 < length:
                row = self._step(chosen)
        with _stream():
            tokens = evaluated(mx.concatenate([r[0] for r in rows])).tolist()
            probabilities = evaluated(mx.concatenate([r[1] for r in rows]).astype(mx.float32)).tolist()
        self._held, self._row = [*text, *tokens[:-1]], row
        return tokens, probabilities

    def _step(self, token: mx.array) -> mx.array:
        """``(1, V)`` logits after one own token, ``(1,)``; the caller says then what the cache holds."""
        self._held = self._row = None
        with _stream():
            logits: mx.array = self.model(token[None], cache=self._cache)
        return logits[0]

    def _take_back(self, held: int, shared: int) -> int:
        """Bring the cache back from ``held`` tokens to at most ``shared``; return how many it holds then."""
        with _stream():
            if can_drop_one(self._cache):
                if drop_last(self._cache, held - shared):
                    return shared
            elif self._checkpoint is not None and shared >= self._firm:
                self._checkpoint.back_to(0)
                return self._firm
        self._begin()
        return 0

    def _feed(self, tokens: list[int], rows: int) -> mx.array:
        new = mx.array([tokens], dtype=mx.uint32)
        done, last = 0, len(tokens) - rows if len(tokens) > BLOCK else 0
        with _stream():
            while done < last:
                after = min(done + PREFILL_STEP_SIZE, last)
                self.model(new[:, done:after], cache=self._cache)
                mx.eval([c.state for c in self._cache])
                mx.clear_cache()
                done = after
            return forward_rows(self.model, new[:, done:], self._cache)[0, -rows:]


def _stream() -> mx.StreamContext:
    """mlx-lm's generation stream, on which the verifier runs too."""
    return mx.stream(importlib.import_module("mlx_lm.generate").generation_stream)


def _shared(held: list[int], text: list[int]) -> int:
    """How many leading tokens are the same; a text that goes on is compared at once."""
    return len(held) if text[: len(held)] == held else int(common_prefix_len(held, text))
