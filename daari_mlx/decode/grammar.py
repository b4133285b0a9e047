"""JSON schemas as logits processors: the teacher can only say what the schema allows, with drafting on or off.

The automaton is llguidance's. Where an answer stands in it is read off the tokens that the processor is shown, never
counted: rows that were rejected, answers that were closed and the next prompt need no telling.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np

from daari_mlx.ground.errors import DaariError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

# llguidance allows white space without end between two words, and small teachers like to go on with it
WHITESPACE = r"[\x20\x0A\x0D\x09]{1,40}"


def json_schema_processor(tokenizer: Any, schema: dict[str, Any] | str) -> GrammarProcessor:
    """A logits processor under which answers are JSON that follows a schema, for mlx-lm's loops and for ours.

    Args:
        tokenizer: as ``mlx_lm.load`` gives it, or one of transformers' fast tokenizers.
        schema: a JSON schema, or its JSON text.

    Raises:
        DaariError: llguidance is missing, the tokenizer has no fast form, or the schema is invalid or uses what
            llguidance does not know.
    """
    try:
        from llguidance import LLMatcher
    except ImportError as error:
        raise DaariError(
            "JSON schemas need llguidance, which is not installed: pip install 'daari-mlx[grammar]'"
        ) from error
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    text = schema if isinstance(schema, str) else json.dumps(schema)
    wrapper = tokenizer if isinstance(tokenizer, TokenizerWrapper) else TokenizerWrapper(tokenizer)
    fast = wrapper._tokenizer
    vocabulary = _vocabulary(fast, len(fast), tuple(sorted(wrapper.eos_token_ids)))
    try:
        grammar = LLMatcher.grammar_from_json_schema(text, overrides={"whitespace_pattern": WHITESPACE})
        matcher = LLMatcher(vocabulary, grammar, log_level=0)
        wrong = matcher.get_error() if matcher.is_error() else ""
    except ValueError as error:
        wrong = str(error)
    if wrong:
        raise DaariError(
            f"Answers cannot be held to this JSON schema: {' '.join(wrong.split())[:300]}. Change the schema."
        )
    return GrammarProcessor(vocabulary, grammar)


class GrammarProcessor:
    """Forbids every token that the grammar does not allow next; an end token is allowed exactly where it accepts.

    It is an ordinary mlx-lm processor and a :class:`daari_mlx.teacher.judge.BlockProcessor`. The first tokens that it
    is shown are a prompt; tokens that begin with that prompt and go on with a beginning of an answer stand within that
    answer; all others are a new prompt. One processor serves one answer at a time.

    Args:
        vocabulary: the tokens' bytes, and which tokens end an answer.
        grammar: in llguidance's own form.
    """

    def __init__(self, vocabulary: LLTokenizer, grammar: str) -> None:
        self._vocabulary, self._grammar = vocabulary, grammar
        self._ends = frozenset(vocabulary.eos_tokens)
        self._matcher = self._new_matcher()
        self._prompt: list[int] | None = None
        self._answer: list[int] | None = []  # the tokens that the matcher has taken; None while it moves
        self._ended = False  # an end token came behind them

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        """mlx-lm's call: ``tokens`` is ``(n,)``, ``logits`` ``(1, V)``; forbidden tokens come out at -inf."""
        return self.process_rows([int(t) for t in tokens.tolist()], [], logits)  # type: ignore[union-attr, arg-type]

    def allowed(self, history: list[int], draft: list[int]) -> int:
        """How many leading draft tokens may follow ``history``, none behind an end token."""
        self._seek(history)
        if self._ended:
            return 0
        length = _first(draft, self._ends)
        count = self._matcher.validate_tokens(draft[:length])
        if count < length or length == len(draft):
            return count
        return length + self._accepts_after(draft[:length])

    def process_rows(self, history: list[int], draft: list[int], logits: mx.array) -> mx.array:
        """``logits`` of shape ``(len(draft) + 1, V)``: row i follows ``history + draft[:i]``; the draft is allowed."""
        self._seek(history)
        masks = self._masks(draft)
        width = logits.shape[-1]
        bits = np.unpackbits(masks.view(np.uint8), axis=1, count=min(width, masks.shape[1] * 32), bitorder="little")
        if bits.shape[1] < width:  # a head wider than the tokenizer
            bits = np.pad(bits, ((0, 0), (0, width - bits.shape[1])))
        return mx.where(mx.array(bits.view(np.bool_)), logits, mx.array(-mx.inf, dtype=logits.dtype))

    def _seek(self, history: list[int]) -> None:
        """Bring the matcher to where ``history`` ends."""
        length = -1 if self._prompt is None else len(self._prompt)
        if length < 0 or history[:length] != self._prompt or not self._follow(history[length:]):
            self._prompt = list(history)
            self._follow([])

    def _follow(self, tokens: list[int]) -> bool:
        """Bring the matcher behind ``tokens`` of an answer; False where the grammar forbids one of them."""
        from mlx_lm.utils import common_prefix_len

        length = _first(tokens, self._ends)
        answer, tail = tokens[:length], tokens[length:]
        known, self._answer = self._answer, None  # an interrupt while it moves costs a new matcher, no more
        if known is None:
            self._matcher, known = self._new_matcher(), []
        shared = common_prefix_len(known, answer)
        if shared < len(known):
            self._matcher.rollback(len(known) - shared)
        taken = shared + self._matcher.try_consume_tokens(answer[shared:])
        self._check()
        self._answer, self._ended = answer[:taken], bool(tail)
        return taken == length and (not tail or (self._ends.issuperset(tail) and self._matcher.is_accepting()))

    def _masks(self, draft: list[int]) -> np.ndarray[Any, np.dtype[np.int32]]:
        """``(len(draft) + 1, words)`` bits of the allowed tokens; the matcher stands afterwards where it stood."""
        from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

        masks = allocate_token_bitmask(len(draft) + 1, self._vocabulary.vocab_size)
        length = 0 if self._ended else _first(draft, self._ends)
        rows = 0 if self._ended else length + 1
        known, self._answer = self._answer, None
        for row in range(rows):
            fill_next_token_bitmask(self._matcher, masks, row)
            if row < length and not self._matcher.consume_token(draft[row]):
                raise ValueError(f"The draft's token {row} is forbidden: cut the draft to what allowed() says.")
        if length:
            self._matcher.rollback(length)
        self._answer = known
        self._check()
        masks[rows:] = self._end_mask()
        if not masks.any(axis=1).all():
            raise DaariError(
                "The JSON schema leaves no token to go on with: this tokenizer cannot spell what it asks for."
            )
        return masks

    def _end_mask(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        bits = np.zeros((self._vocabulary.vocab_size + 31) // 32 * 32, np.uint8)
        bits[list(self._ends)] = 1
        return np.packbits(bits, bitorder="little").view(np.int32)

    def _accepts_after(self, tokens: list[int]) -> bool:
        """Whether the answer may end behind these allowed tokens."""
        known, self._answer = self._answer, None
        self._matcher.consume_tokens(tokens)
        accepts = self._matcher.is_accepting()
        if tokens:
            self._matcher.rollback(len(tokens))
        self._answer = known
        self._check()
        return accepts

    def _new_matcher(self) -> LLMatcher:
        from llguidance import LLMatcher

        return LLMatcher(self._vocabulary, self._grammar, log_level=0)

    def _check(self) -> None:
        """Raise where llguidance gave up, as on a grammar that grows beyond its limits."""
        if self._matcher.is_error():
            self._answer = None
            found = " ".join(self._matcher.get_error().split())[:300]
            raise DaariError(f"The JSON schema cannot be followed any further: {found}. Simplify it.")


@lru_cache(maxsize=4)
def _vocabulary(tokenizer: Any, size: int, ends: tuple[int, ...]) -> LLTokenizer:
    """llguidance's view of a tokenizer, a second's work for a large one; ``size`` tells when tokens were added."""
    from llguidance.hf import from_tokenizer

    try:
        return from_tokenizer(tokenizer, eos_token=list(ends))
    except ValueError as error:
        raise DaariError(
            f"JSON schemas need a fast tokenizer (tokenizer.json), {type(tokenizer).__name__} will not do: {error}"
        ) from error


def _first(tokens: Sequence[int], ends: frozenset[int]) -> int:
    """Where the first end token lies; the length where there is none."""
    return next((index for index, token in enumerate(tokens) if token in ends), len(tokens))
