"""Teachers whose head has more rows than their tokenizer has tokens, and drafters that propose such rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx_lm
import numpy as np
from graphs import Scripted
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import load_tokenizer

from daari_mlx import stream_generate
from daari_mlx.draft.drafter import Context, Draft

TOKENS, ROWS = 640, 704  # of the tiny teacher's tokenizer, and of the wide heads
TINY = Path(__file__).resolve().parents[1] / "tiny_teacher"


def tokenizer_with(*tokens: str) -> TokenizerWrapper:
    """The tiny teacher's tokenizer with these tokens more, from 640 on."""
    tokenizer = load_tokenizer(TINY)
    fast = tokenizer._tokenizer
    if tokens:
        fast.add_tokens(list(tokens))
    return TokenizerWrapper(fast, type(tokenizer._detokenizer), tokenizer.eos_token_ids)


def encode(tokenizer: TokenizerWrapper, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


def scripted(prompt: list[int], answer: list[int]) -> Scripted:
    """A teacher with a wide head that would say this answer, were it free."""
    return Scripted([*prompt, *answer], vocabulary=ROWS)


class Outside:
    """Drafts the true answer in blocks, with a token that the tokenizer does not have at some places.

    Args:
        truth: prompt and answer.
        block: tokens a draft.
        wrong: what is drafted at the wrong places.
        share: how many places are wrong.
    """

    def __init__(self, truth: list[int], block: int, wrong: int = 650, share: float = 0.3) -> None:
        self.truth, self.block, self.wrong, self.share = truth, block, wrong, share
        self.random = np.random.default_rng(block)

    def draft(self, context: Context, limit: int, pending: int = 0) -> Draft:
        start = len(context.tokens)
        true = (self.truth[start:] + [self.wrong] * self.block)[: min(self.block, limit)]
        drafted = [self.wrong if self.random.random() < self.share else token for token in true]
        return Draft(drafted, [0.5] * len(drafted))


def plain_ids(model: Any, tokenizer: Any, prompt: list[int], longest: int, **options: Any) -> list[int]:
    """What mlx-lm itself says."""
    return [r.token for r in mlx_lm.stream_generate(model, tokenizer, prompt, max_tokens=longest, **options)]


def own(model: Any, tokenizer: Any, prompt: list[int], longest: int, **options: Any) -> tuple[list[int], str, Any]:
    """What we say: ids, text, and the last response."""
    responses = list(stream_generate(model, tokenizer, prompt, longest, **options))
    return [r.token for r in responses], "".join(r.text for r in responses), responses[-1]
