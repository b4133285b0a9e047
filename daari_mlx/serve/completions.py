"""`/v1/completions`: text is gone on with, without a chat template."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from pydantic import Field
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from daari_mlx.serve.answering import Answering, Asked, Whole, at_once, daari, stream, wholes
from daari_mlx.serve.chat import usage
from daari_mlx.serve.errors import ApiError, Json
from daari_mlx.serve.fields import MOST_ANSWERS, OpenAIFields, read
from daari_mlx.serve.parts import Reader
from daari_mlx.serve.service import Service
from daari_mlx.serve.spelling import Spelling
from daari_mlx.serve.streaming import event
from daari_mlx.serve.tickets import Token
from daari_mlx.teacher.tap import vocabulary_of
from daari_mlx.text.prompt import encode_prompt


class CompletionFields(OpenAIFields):
    """What a client may send."""

    prompt: str | list[str] | list[int] | list[list[int]]
    logprobs: int | None = Field(default=None, ge=0, le=20)
    echo: bool = False
    best_of: int | None = None

    def prompts(self) -> list[str | list[int]]:
        """One or several.

        Raises:
            ApiError: there are none, or too many.
        """
        given: Any = self.prompt
        found = given if isinstance(given, list) and given and isinstance(given[0], (str, list)) else [given]
        if not all(found) or len(found) * self.n > MOST_ANSWERS:
            raise ApiError(
                400,
                f"prompt: give 1 to {MOST_ANSWERS} prompts, counted n times each, none of them empty.",
                param="prompt",
            )
        return list(found)


async def completions(service: Service, http: HttpRequest, body: bytes, salt: str) -> Response:
    """Go on with a text."""
    fields = read(CompletionFields, body)
    asked = await service.prepare(ask, service, fields)
    answering = Answering(service, asked, http.scope["path"], salt, "cmpl-")
    writer = Writer(answering, fields, Spelling(service.tokenizer))
    if fields.stream:
        return await stream(http, answering, writer.events(), lambda error: event(error.body()))
    return Json(writer.whole(await at_once(http, answering, wholes(answering))))


def ask(service: Service, fields: CompletionFields) -> Asked:
    """From fields to requests of the engine.

    Raises:
        ApiError, DaariError: what cannot be answered.
    """
    model = service.check_model(fields.model)
    if fields.echo:
        raise ApiError(400, "echo is not supported here: leave it out.", param="echo")
    if fields.best_of not in (None, fields.n):
        raise ApiError(400, "best_of is supported only where it equals n: leave it out.", param="best_of")
    prompts, vocabulary = fields.prompts(), vocabulary_of(service.teacher.model)
    ids = [encode_prompt(service.tokenizer, prompt) for prompt in prompts]
    if any(not 0 <= token < vocabulary for prompt in ids for token in prompt):
        raise ApiError(400, f"prompt has ids that are no tokens: they go from 0 to {vocabulary - 1}.", param="prompt")
    requests = [r for prompt in ids for r in service.requests(prompt, fields, fields.max_tokens, [])]
    readers = [Reader(service.tokenizer, state=None) for _ in requests]
    shown = prompts[0] if isinstance(prompts[0], str) else ""
    return Asked(requests, readers, model, fields.logprobs, shown, service.prediction(fields), fields.n)


class Writer:
    """Writes answers in OpenAI's shape."""

    def __init__(self, answering: Answering, fields: CompletionFields, spelling: Spelling) -> None:
        self._answering, self._fields, self._spelling = answering, fields, spelling
        self._offsets = [0] * len(answering.asked.requests)

    def whole(self, answers: list[Whole]) -> dict[str, Any]:
        """The answer without streaming."""
        choices = [
            self._choice(
                index, answer.text, answer.tokens, answer.last.finish_reason, daari(answer.last, answer.sources)
            )
            for index, answer in enumerate(answers)
            if answer.last is not None
        ]
        return {**self._head(), "choices": choices, "usage": usage(self._answering.totals)}

    async def events(self) -> AsyncIterator[str | None]:
        """The events of a stream."""
        told = self._fields.stream_options.include_usage
        async for chunk in self._answering.chunks():
            if chunk is None:
                yield None
                continue
            text = "".join(piece.text for piece in chunk.pieces)
            sources = [pair for piece in chunk.pieces for pair in piece.sources]
            choice = self._choice(chunk.index, text, chunk.tokens, chunk.finish_reason, daari(chunk, sources))
            yield event({**self._head(), "choices": [choice], **({"usage": None} if told else {})})
        if told:
            yield event({**self._head(), "choices": [], "usage": usage(self._answering.totals)})
        yield "data: [DONE]\n\n"

    def _choice(self, index: int, text: str, tokens: list[Token], reason: str | None, told: Any) -> dict[str, Any]:
        return {
            "index": index,
            "text": text,
            "finish_reason": reason,
            "logprobs": self._logprobs(index, tokens),
            "daari": told,
        }

    def _head(self) -> dict[str, Any]:
        answering = self._answering
        head = {"id": answering.id, "object": "text_completion", "created": answering.created}
        return {**head, "model": answering.asked.model}

    def _logprobs(self, index: int, tokens: list[Token]) -> dict[str, Any] | None:
        if self._fields.logprobs is None:
            return None
        entries = [self._spelling.logprob(token) for token in tokens]
        offsets = []
        for entry in entries:
            offsets.append(self._offsets[index])
            self._offsets[index] += len(entry["token"])
        return {
            "tokens": [entry["token"] for entry in entries],
            "token_ids": [entry["id"] for entry in entries],
            "token_logprobs": [entry["logprob"] for entry in entries],
            "top_logprobs": [{top["token"]: top["logprob"] for top in entry["top_logprobs"]} for entry in entries],
            "text_offset": offsets,
        }
