"""A grammar over one answer: which tokens may come next, and which must.

Where an answer stands in it is read off the tokens that are shown, never counted: rows that were rejected and answers
that were closed need no telling.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np

from daari_mlx.decode.thinking import Opening
from daari_mlx.ground.errors import DaariError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

Bits = np.ndarray[Any, np.dtype[np.bool_]]


class AnswerGrammar:
    """Forbids every token that the grammar does not allow next; an end token is allowed exactly where it accepts.

    It is an ordinary mlx-lm processor and a :class:`daari_mlx.teacher.judge.BlockProcessor`, for one answer.

    Args:
        vocabulary: the tokens' bytes, and which tokens end an answer.
        matcher: a grammar's, at its beginning; it is moved here and by nobody else.
        opening: what may come before the grammar holds.
        begun: the tokens of the answer that the prompt ends with.
        prompt_tokens: how many tokens of a history are the prompt.
    """

    def __init__(
        self, vocabulary: LLTokenizer, matcher: LLMatcher, opening: Opening, begun: list[int], prompt_tokens: int
    ) -> None:
        self.size, self._vocabulary = vocabulary.vocab_size, vocabulary
        self._ends = frozenset(vocabulary.eos_tokens)
        self._fresh, self._matcher = matcher, matcher.deep_copy()
        self._opening, self._begun, self._prompt_tokens = opening, begun, prompt_tokens
        self._taken: list[int] | None = []  # the tokens that the matcher has taken; None while it moves
        self._ended = False  # an end token came behind them
        if not self._seek(begun):
            raise DaariError(
                f"The answer that the prompt begins with, {vocabulary.decode_str(begun)!r}, does not follow the JSON "
                "schema: change one of them (white space counts)."
            )

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        """mlx-lm's call: ``tokens`` is ``(n,)``, ``logits`` ``(1, V)``; forbidden tokens come out at -inf."""
        return self.process_rows(ids_of(tokens), [], logits)

    def allowed(self, history: list[int], draft: list[int]) -> int:
        """How many leading draft tokens may follow ``history``; none that is no token, none behind an end token."""
        answer = self._said(history)
        known = next((row for row, token in enumerate(draft) if not 0 <= token < self.size), len(draft))
        for row, token in enumerate(draft[:known]):
            place = self._opening.place(answer + draft[:row])
            if place.thinking and token in self._ends:
                return row
            if not place.thinking and token not in place.also:
                self._stand(answer + draft[:row])
                return row + self._allowed_json(draft[row:known])
        return known

    def process_rows(self, history: list[int], draft: list[int], logits: mx.array) -> mx.array:
        """``logits`` of shape ``(len(draft) + 1, V)``: row i follows ``history + draft[:i]``; the draft is allowed."""
        answer = self._said(history)
        width = logits.shape[-1]
        rows: list[Bits] = []
        while len(rows) <= len(draft):
            said = answer + draft[: len(rows)]
            place = self._opening.place(said)
            if place.thinking:
                row = np.ones((1, width), np.bool_)
                row[0, [end for end in self._ends if end < width]] = False
            else:
                self._stand(said)
                row = self._masks([] if place.also else draft[len(rows) :], width)
                row[0, list(place.also)] = True
            rows += list(row)
        allowed = mx.array(np.stack(rows))
        return mx.where(allowed, logits, mx.array(-mx.inf, dtype=logits.dtype))

    def forced(self, history: list[int]) -> list[int]:
        """The tokens that the grammar leaves no choice in behind ``history``, as the tokenizer would write them.

        The teacher may cut the same text into other tokens, or end with another of its end tokens: they are a draft, to
        be verified as any other.

        Raises:
            DaariError: llguidance cannot look so far ahead; the answer can still go on.
        """
        answer = self._said(history)
        place = self._opening.place(answer)
        if place.thinking or place.also:
            return []
        self._stand(answer)
        if self._ended:
            return []
        if self._matcher.is_stopped():
            return [self._vocabulary.eos_token]
        text = self._matcher.compute_ff_bytes()  # compute_ff_tokens leaves the last ones out: longer ones might fit
        self._check()
        tokens = self._vocabulary.tokenize_bytes(text) if text else []
        return tokens[: self._matcher.validate_tokens(tokens)]

    def _said(self, history: list[int]) -> list[int]:
        return self._begun + history[self._prompt_tokens :]

    def _stand(self, answer: list[int]) -> None:
        """Bring the matcher behind ``answer``, which is out of its think block and follows the grammar."""
        if not self._seek(answer):
            raise DaariError(
                "The answer so far does not follow the JSON schema: another processor or sampler broke it."
            )

    def _seek(self, answer: list[int]) -> bool:
        """Bring the matcher behind the grammar's part of ``answer``; False where the grammar forbids a token of it."""
        place = self._opening.place(answer)
        return self._follow(answer[place.lead :])

    def _follow(self, tokens: list[int]) -> bool:
        """Bring the matcher behind ``tokens``; False where the grammar forbids one of them."""
        from mlx_lm.utils import common_prefix_len

        length = _first(tokens, self._ends)
        answer, tail = tokens[:length], tokens[length:]
        known, self._taken = self._taken, None  # an interrupt while it moves costs a new matcher, no more
        if known is None:
            self._matcher, known = self._fresh.deep_copy(), []
        shared = common_prefix_len(known, answer)
        if shared < len(known):
            self._matcher.rollback(len(known) - shared)
        inside = next((at for at, token in enumerate(answer) if not 0 <= token < self.size), length)
        taken = shared + self._matcher.try_consume_tokens(answer[shared:inside])
        self._check()
        self._taken, self._ended = answer[:taken], bool(tail)
        return taken == length and (not tail or (self._ends.issuperset(tail) and self._matcher.is_accepting()))

    def _allowed_json(self, draft: list[int]) -> int:
        if self._ended:
            return 0
        length = _first(draft, self._ends)
        count = self._matcher.validate_tokens(draft[:length])
        if count < length or length == len(draft):
            return count
        return length + self._accepts_after(draft[:length])

    def _masks(self, draft: list[int], width: int) -> Bits:
        """``(len(draft) + 1, width)``: which tokens are allowed; the matcher stands afterwards where it stood."""
        from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

        masks = allocate_token_bitmask(len(draft) + 1, self.size)
        length = 0 if self._ended else _first(draft, self._ends)
        rows = 0 if self._ended else length + 1
        known, self._taken = self._taken, None
        for row in range(rows):
            fill_next_token_bitmask(self._matcher, masks, row)
            if row < length and not self._matcher.consume_token(draft[row]):
                raise ValueError(f"The draft's token {row} is forbidden: cut the draft to what allowed() says.")
        if length:
            self._matcher.rollback(length)
        self._taken = known
        self._check()
        bits = np.unpackbits(masks.view(np.uint8), axis=1, count=self.size, bitorder="little").view(np.bool_)
        bits[rows:] = False
        bits[rows:, list(self._ends)] = True
        if not bits.any(axis=1).all():
            raise DaariError(
                "The JSON schema leaves no token to go on with: this tokenizer cannot spell what it asks for."
            )
        # a head may be narrower than the tokenizer, or wider: what is no token is never allowed
        return np.pad(bits[:, :width], ((0, 0), (0, max(0, width - self.size))))

    def _accepts_after(self, tokens: list[int]) -> bool:
        """Whether the answer may end behind these allowed tokens."""
        known, self._taken = self._taken, None
        self._matcher.consume_tokens(tokens)
        accepts = self._matcher.is_accepting()
        if tokens:
            self._matcher.rollback(len(tokens))
        self._taken = known
        self._check()
        return accepts

    def _check(self) -> None:
        """Raise where llguidance gave up, as on a grammar that grows beyond its limits."""
        if self._matcher.is_error():
            self._taken = None
            found = " ".join(self._matcher.get_error().split())[:300]
            raise DaariError(f"The JSON schema cannot be followed any further: {found}. Simplify it.")


def _first(tokens: Sequence[int], ends: frozenset[int]) -> int:
    """Where the first end token lies; the length where there is none."""
    return next((index for index, token in enumerate(tokens) if token in ends), len(tokens))


def ids_of(tokens: mx.array) -> list[int]:
    """Token ids as Python numbers."""
    return [int(token) for token in tokens.tolist()]  # type: ignore[union-attr, arg-type]
