"""What prompts share (a system prompt, its examples) is read once and copied for each of them."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import common_prefix_len

from daari_mlx.teacher.kept import Stamp, stamp
from daari_mlx.teacher.rewind import Cache

LEAST = 32  # shared tokens that are worth a copy
KEPT = 4  # prefixes that are kept


class Prefixes:
    """The prompt caches of beginnings that several prompts had.

    Args:
        model: the teacher.
        step: tokens that a forward reads.
        stream: the MLX stream to run on.
    """

    def __init__(self, model: nn.Module, step: int, stream: Any) -> None:
        self._model, self._step, self._stream = model, step, stream
        self._kept: list[tuple[str, list[int], Cache]] = []  # the one used last at the end
        self._stamp: Stamp | None = None  # of the model that read them

    @property
    def nbytes(self) -> int:
        """Bytes of their caches."""
        return sum(part.nbytes for *_, cache in self._kept for part in cache)

    def forget(self) -> None:
        """Let all of them go."""
        self._kept = []

    def renew(self) -> None:
        """Forget all of them where the model has changed since they were read."""
        now = stamp(self._model)
        if now != self._stamp:
            self._kept, self._stamp = [], now

    def find(self, prompt: list[int], salt: str) -> tuple[int, Cache | None]:
        """How many first tokens of a prompt are kept, and their cache, which is to be copied and not changed.

        Args:
            salt: see :class:`daari_mlx.batch.request.Request`.
        """
        own = [(k, tokens) for k, (of, tokens, _) in enumerate(self._kept) if of == salt]
        fitting = [k for k, tokens in own if prompt[: len(tokens)] == tokens]
        fitting = [k for k in fitting if len(self._kept[k][1]) <= len(prompt) - 2]  # a token is left to read
        found = max(fitting, key=lambda k: len(self._kept[k][1]), default=None)
        if found is None:
            return 0, None
        _, tokens, cache = self._kept[found]
        self._kept.append(self._kept.pop(found))
        return len(tokens), cache

    def shared(self, prompt: list[int], others: Sequence[list[int]], salt: str, told: int = 0) -> int:
        """How many first tokens are worth keeping for others; 0 for none but those that are kept already.

        Args:
            others: prompts that wait and have the same salt.
            salt, told: see ``salt`` and ``shared`` of :class:`daari_mlx.batch.request.Request`.
        """
        known, _ = self.find(prompt, salt)
        common = max((int(common_prefix_len(prompt[:-2], other)) for other in others), default=0)
        common = max(common, min(told, len(prompt) - 2))
        return common if common >= known + LEAST else 0

    def read(self, tokens: list[int], salt: str) -> Iterator[int]:
        """Read a prefix, one forward for each item that comes: how many tokens are done. At the end it is kept."""
        known, cache = self.find(tokens, salt)
        own = make_prompt_cache(self._model) if cache is None else copy.deepcopy(cache)
        while known < len(tokens):
            with mx.stream(self._stream):
                self._model(mx.array([tokens[known : known + self._step]], dtype=mx.uint32), cache=own)
                mx.eval([c.state for c in own])
            known = min(known + self._step, len(tokens))
            if known == len(tokens):
                self._kept = [*self._kept, (salt, tokens, own)][-KEPT:]
            yield known
