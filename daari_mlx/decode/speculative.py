"""`SpeculativeModel`: two tiers of one model family as a pair; the cheap one drafts, the good one has the word.

The pair has no loop of its own: it is the ordinary one with a :class:`daari_mlx.draft.model.ModelDrafter`, and what
is kept of a block is decided by :func:`daari_mlx.ground.accept.accept_block`, as everywhere.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daari_mlx.decode.generate import stream_generate
from daari_mlx.decode.responses import GenerationResponse
from daari_mlx.draft.drafter import Context
from daari_mlx.draft.model import ModelDrafter, check_tokenizers
from daari_mlx.ground.accept import Statistics, accept_block
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.evaluated import evaluated
from daari_mlx.ground.given import check_whole
from daari_mlx.teacher.follower import Follower
from daari_mlx.teacher.judge import greedy
from daari_mlx.teacher.load import Teacher, load_teacher
from daari_mlx.teacher.quirks import refuses_blocks
from daari_mlx.text.prompt import Prompt, encode_prompt, token_ids
from daari_mlx.text.template import ChatTemplate

Text = Prompt | list[dict[str, Any]]


@dataclass(frozen=True)
class Answer:
    """What :meth:`SpeculativeModel.generate` returns.

    Attributes:
        text: the answer.
        tokens: its token ids, the end token included.
        finish_reason: ``"stop"`` or ``"length"``.
        statistics: acceptance, tokens per verifier pass (``tokens_per_forward``) and the rest.
    """

    text: str
    tokens: list[int]
    finish_reason: str | None
    statistics: Statistics


class SpeculativeModel:
    """A drafter and a verifier: the answers are the verifier's own, whatever the drafter says.

    Args:
        drafter, verifier: loaded teachers, or a folder or Hub repository of each.
        block_size: how many tokens are drafted for each verifier pass.

    Raises:
        DaariError: the tokenizers differ, or one of the models cannot take blocks of rows.
    """

    def __init__(self, drafter: Teacher | str | Path, verifier: Teacher | str | Path, block_size: int = 8) -> None:
        check_whole("block_size", block_size, 1)
        self.verifier = verifier if isinstance(verifier, Teacher) else load_teacher(str(verifier))
        self.drafter = drafter if isinstance(drafter, Teacher) else load_teacher(str(drafter))
        self.block_size = block_size
        self.tokenizer = self.verifier.tokenizer
        check_tokenizers(self.drafter.tokenizer, self.tokenizer, self.drafter.source)
        reason = refuses_blocks(self.verifier.model)
        if reason is not None:
            raise DaariError(f"This model cannot verify drafts: {reason}.")
        self._model_drafter = ModelDrafter(
            self.drafter.model,
            num_draft_tokens=block_size,
            ends=self.tokenizer.eos_token_ids,
            vocab_size=max(self.tokenizer.get_vocab().values()) + 1,
        )
        self._reader = Follower(self.verifier.model)

    accept_block = staticmethod(accept_block)

    def encode(self, text: Text) -> list[int]:
        """The one way to token ids, for both models: text as mlx-lm encodes it, a chat through its template.

        Args:
            text: a string, ``[{"role": ..., "content": ...}, ...]``, or token ids in a list or an array, which stay as
                they are.

        Raises:
            DaariError: it is empty, or the template rejects the messages.
        """
        first = text[0] if isinstance(text, (list, tuple)) and text else None
        if isinstance(first, Mapping) or hasattr(first, "role"):
            return ChatTemplate(self.tokenizer).prompt_ids(text)
        return encode_prompt(self.tokenizer, text)

    def draft(self, prefix: Prompt) -> list[int]:
        """The drafter's greedy continuation of ``prefix``: ``block_size`` tokens, fewer where it ends the answer."""
        return self._model_drafter.draft(Context(token_ids(prefix), None), self.block_size).tokens

    def review(self, prefix: Prompt, draft: Prompt) -> list[int]:
        """The verifier's own token at each position of a block, by one pass.

        Args:
            prefix: what stands before the block, at least one token.
            draft: the γ draft tokens.

        Returns:
            γ+1 verdicts: the first follows ``prefix``, the last follows the whole draft. ``accept_block(draft,
            verdicts)`` is what the block gives.
        """
        drafted = token_ids(draft)
        self._reader.renew()
        rows = self._reader.read([*token_ids(prefix), *drafted], len(drafted) + 1)
        return [int(token) for token in evaluated(greedy(rows)[0])]

    def stream(self, text: Text, max_tokens: int = 256, **options: Any) -> Generator[GenerationResponse, None, None]:
        """Stream an answer; ``options`` are those of :func:`daari_mlx.stream_generate` but graph and drafter."""
        return stream_generate(
            self.verifier.model,
            self.tokenizer,
            self.encode(text),
            max_tokens,
            drafter=self._model_drafter,
            num_draft_tokens=self.block_size,
            **options,
        )

    def generate(self, text: Text, max_tokens: int = 256, **options: Any) -> Answer:
        """The whole answer: token for token what the verifier alone would say."""
        responses = list(self.stream(text, max_tokens, **options))
        return Answer(
            "".join(r.text for r in responses),
            [r.token for r in responses],
            responses[-1].finish_reason,
            responses[-1].statistics,
        )
