"""What all endpoints share: the teacher and its template, the worker, the book, and how a prompt becomes requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from mlx_lm.models.cache import can_trim_prompt_cache, make_prompt_cache

from daari_mlx.batch.request import Request
from daari_mlx.decode.options import Sampling
from daari_mlx.decode.stops import stop_list
from daari_mlx.serve.book import Book
from daari_mlx.serve.errors import ApiError, too_long
from daari_mlx.serve.fields import OpenAIFields
from daari_mlx.serve.options import ServeOptions
from daari_mlx.serve.worker import Worker
from daari_mlx.teacher.load import Teacher
from daari_mlx.teacher.rewind import is_rotating, leaves
from daari_mlx.teacher.tap import vocabulary_of
from daari_mlx.text.template import ChatTemplate

T = TypeVar("T")


@dataclass
class Service:
    """A server's insides.

    Attributes:
        sampling: what counts where a client says nothing.
        template: with the operator's variables.
        whitespace: of JSON under a schema.
    """

    teacher: Teacher
    worker: Worker
    book: Book
    options: ServeOptions
    sampling: Sampling
    template: ChatTemplate
    whitespace: Any = "compact"
    started: int = field(default_factory=lambda: int(time.time()))
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "daari-mlx-prompts"))

    @property
    def tokenizer(self) -> Any:
        """mlx-lm's wrapper."""
        return self.teacher.tokenizer

    @cached_property
    def rewinds(self) -> bool:
        """Whether a kept cache can be cut to what another conversation shares with it, however long it is."""
        cache = make_prompt_cache(self.teacher.model)
        return bool(can_trim_prompt_cache(cache)) and not any(map(is_rotating, leaves(cache)))

    @property
    def names(self) -> list[str]:
        """What the model may be called; the first is its own name."""
        source = self.teacher.source
        own = str(Path(source).resolve()) if Path(source).exists() else source
        return list(
            dict.fromkeys([own, source, Path(own).name, "default_model", *(self.options.served_model_name or [])])
        )

    def check_model(self, name: str | None) -> str:
        """The model's name as the client may call it; nothing is loaded by a client's word.

        Raises:
            ApiError: it is another model.
        """
        known = self.names
        if name is None or name in known:
            return name or known[0]
        raise ApiError(
            404,
            f"There is no model {name!r} here: this server has {known[0]!r} alone (other names for it: "
            f"{', '.join(known[1:])}; --served-model-name adds some).",
            param="model",
            code="model_not_found",
        )

    async def prepare(self, work: Callable[..., T], *args: Any) -> T:
        """Run what takes a while (templates, tokenizers, grammars) beside the loop, one after the other."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)

    def close(self) -> None:
        """End the thread that prepares."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def chat(self, variables: dict[str, Any] | None) -> ChatTemplate:
        """The template with a client's variables.

        Raises:
            DaariError: it cannot have them.
        """
        if not variables:
            return self.template
        return ChatTemplate(self.tokenizer, {**self.template.config, **variables})

    def prediction(self, fields: OpenAIFields) -> list[int]:
        """The tokens of a predicted text."""
        return [] if fields.prediction is None else self.template.ids(fields.prediction.text)

    def requests(
        self, prompt: list[int], fields: OpenAIFields, max_tokens: int | None, processors: list[Any], **more: Any
    ) -> list[Request]:
        """The engine's requests, one an answer.

        Args:
            max_tokens: what the client asked for; None for the server's own limit.
            processors: further ones, behind those of the fields.
            more: further attributes of the requests.

        Raises:
            ApiError: the prompt leaves no room.
            DaariError: see :meth:`OpenAIFields.sampling`.
        """
        context = self.teacher.context_length
        limit = max_tokens or self.options.max_tokens or -1
        if context is not None:
            room = context - len(prompt)
            if room < 1:
                raise too_long(len(prompt), context)
            limit = room if limit < 0 else min(limit, room)
        sampling = fields.sampling(self.sampling)
        return [
            Request(
                prompt,
                max_tokens=limit,
                sampler=sampling.sampler(self.tokenizer) if sampling.temp else None,
                logits_processors=[*fields.processors(vocabulary_of(self.teacher.model)), *processors] or None,
                stop=stop_list(fields.stop),
                seed=None if fields.seed is None else (fields.seed + k) % 2**63,
                **more,
            )
            for k in range(fields.n)
        ]
