"""JSON schemas as logits processors: the teacher can only say what the schema allows, with drafting on or off.

The automaton is llguidance's. Where the answer begins is told, never guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from daari_mlx.decode.answer_grammar import AnswerGrammar, ids_of
from daari_mlx.decode.begun import Begun, split_begun
from daari_mlx.decode.schema import Whitespace, grammar_of, refusal
from daari_mlx.decode.thinking import Thinking, refuse_unknown_block, thinking_of
from daari_mlx.ground.errors import DaariError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

TAIL = 24  # tokens of a prompt's end that are read for a mark that opens a think block


def json_schema_processor(
    tokenizer: Any, schema: dict[str, Any] | str, whitespace: Whitespace = "compact"
) -> GrammarProcessor:
    """A logits processor under which answers are JSON that follows a schema, for mlx-lm's loops and for ours.

    A reasoning model thinks first, and freely: where the prompt leaves a think block open, or the model opens one with
    its first token, the schema holds from behind that block on.

    Args:
        tokenizer: as ``mlx_lm.load`` gives it, or one of transformers' fast tokenizers.
        schema: a JSON schema, or its JSON text.
        whitespace: see :func:`daari_mlx.decode.schema.grammar_of`.

    Raises:
        DaariError: llguidance is missing, the tokenizer has no fast form, the schema is invalid, or llguidance cannot
            follow it.
    """
    try:
        from llguidance import LLMatcher, LLParserLimits
    except ImportError as error:
        raise DaariError(
            "JSON schemas need llguidance, which is not installed: pip install '.[grammar]' in a clone"
        ) from error
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    wrapper = tokenizer if isinstance(tokenizer, TokenizerWrapper) else TokenizerWrapper(tokenizer)
    fast = wrapper._tokenizer
    ends = sorted(wrapper.eos_token_ids, key=lambda end: (end != fast.eos_token_id, end))  # the tokenizer's own first
    vocabulary = _vocabulary(fast, len(fast), tuple(ends))
    grammar = grammar_of(schema, whitespace)
    matcher = LLMatcher(vocabulary, grammar, log_level=0, limits=LLParserLimits(verbose_errors=False))
    matcher.compute_bitmask()  # what no token at all can follow is found here
    if matcher.is_error():
        raise refusal(matcher.get_error())
    return GrammarProcessor(vocabulary, matcher, thinking_of(wrapper))


class GrammarProcessor:
    """A grammar for the answers of one tokenizer; :meth:`for_answer` gives the processor of one answer.

    In mlx-lm's own loop it is an ordinary processor: there the tokens that it is first shown are a prompt, tokens with
    just one more than it was shown last are the next of that answer, and all others are a new prompt.

    Args:
        vocabulary: the tokens' bytes, and which tokens end an answer.
        matcher: the grammar's, at its beginning; it stays there.
        thinking: the marks of the model's think blocks.
    """

    def __init__(self, vocabulary: LLTokenizer, matcher: LLMatcher, thinking: Thinking) -> None:
        self.vocabulary, self.matcher, self.thinking = vocabulary, matcher, thinking
        self._shown: list[int] = []
        self._answer: AnswerGrammar | None = None

    def for_answer(self, prompt: list[int], *, earlier: Sequence[int] = (), begun: Begun = 0) -> AnswerGrammar:
        """The processor of the answer to a prompt: what it does depends on these arguments and the tokens alone.

        Args:
            prompt: what the histories will begin with.
            earlier: what stands before the prompt (in a prompt cache), as far as it is known.
            begun: how much of the prompt's end is the beginning of the answer: so many tokens, or this text.

        Raises:
            DaariError: the prompt does not end so, what was begun does not follow the schema, or it cannot be known
                where thinking ends.
        """
        before, said = split_begun(self.vocabulary, [*earlier, *prompt], begun)
        opening = self.thinking.opening(before)
        text = self.vocabulary.decode_bytes(before[-TAIL:]).decode("utf-8", "replace")
        refuse_unknown_block(text, opening)
        return AnswerGrammar(self.vocabulary, self.matcher.deep_copy(), opening, said, len(prompt))

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        """mlx-lm's call: ``tokens`` is ``(n,)``, ``logits`` ``(1, V)``; forbidden tokens come out at -inf."""
        history = ids_of(tokens)
        if self._answer is None or history[:-1] != self._shown:
            self._answer = self.for_answer(history)
        self._shown = history
        return self._answer.process_rows(history, [], logits)


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
