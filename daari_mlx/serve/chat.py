"""`/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Literal

from pydantic import Field
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from daari_mlx.serve.answering import Answering, Totals, Whole, at_once, daari, stream, wholes
from daari_mlx.serve.asking import MOST_TOP, Chat, ask, choice_of
from daari_mlx.serve.errors import ApiError, Json
from daari_mlx.serve.fields import Fields, Loose, OpenAIFields, read
from daari_mlx.serve.formats import ResponseFormat
from daari_mlx.serve.parts import Call, Chunk, Piece
from daari_mlx.serve.service import Service
from daari_mlx.serve.spelling import Spelling
from daari_mlx.serve.streaming import event


class Named(Loose):
    """``{"name": ...}``."""

    name: str


class Chosen(Fields):
    """``{"type": "function", "function": {"name": ...}}``."""

    type: Literal["function"]
    function: Named


class ChatFields(OpenAIFields):
    """What a client may send."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0, le=MOST_TOP)
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | Chosen | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: str | None = None
    modalities: list[str] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def chat(self) -> Chat:
        """The chat that is asked for.

        Raises:
            ApiError: fields that do not go together.
        """
        if self.modalities not in (None, ["text"]):
            raise ApiError(400, f"modalities is {self.modalities}: this model has text only.", param="modalities")
        if self.top_logprobs and not self.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs: true.", param="top_logprobs")
        effort = {} if self.reasoning_effort is None else {"reasoning_effort": self.reasoning_effort}
        named = self.tool_choice.function.name if isinstance(self.tool_choice, Chosen) else None
        return Chat(
            self.messages,
            self,
            self.max_completion_tokens or self.max_tokens,
            tools=None if self.tool_choice == "none" else self.tools,
            choice=choice_of(self.tool_choice, named),
            format=self.response_format,
            variables={**effort, **(self.chat_template_kwargs or {})},
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
        )


async def chat(service: Service, http: HttpRequest, body: bytes, salt: str) -> Response:
    """Answer a chat."""
    fields = read(ChatFields, body)
    asked = await service.prepare(ask, service, fields.chat())
    answering = Answering(service, asked, http.scope["path"], salt, "chatcmpl-")
    writer = Writer(answering, fields, Spelling(service.tokenizer))
    if fields.stream:
        return await stream(http, answering, writer.events(), lambda error: event(error.body()))
    return Json(writer.whole(await at_once(http, answering, wholes(answering))))


class Writer:
    """Writes answers in OpenAI's shape."""

    def __init__(self, answering: Answering, fields: ChatFields, spelling: Spelling) -> None:
        self._answering, self._fields, self._spelling = answering, fields, spelling
        self._calls = [0] * fields.n  # of each answer, told so far

    def whole(self, answers: list[Whole]) -> dict[str, Any]:
        """The answer without streaming."""
        choices = []
        for index, answer in enumerate(answers):
            assert answer.last is not None
            message: dict[str, Any] = {"role": "assistant", "content": answer.text or None, "refusal": None}
            if not answer.calls and message["content"] is None:
                message["content"] = ""
            if answer.reasoning:
                message["reasoning"] = answer.reasoning
            if answer.calls:
                message["tool_calls"] = [_call(call) for call in answer.calls]
            choices.append(
                {
                    "index": index,
                    "message": message,
                    "finish_reason": answer.last.finish_reason,
                    "logprobs": self._logprobs(answer.tokens),
                    "daari": daari(answer.last, answer.sources),
                }
            )
        return {**self._head("chat.completion"), "choices": choices, "usage": usage(self._answering.totals)}

    async def events(self) -> AsyncIterator[str | None]:
        """The events of a stream."""
        for index in range(self._fields.n):
            yield event(self._chunk(index, {"role": "assistant", "content": ""}))
        async for chunk in self._answering.chunks():
            if chunk is None:
                yield None
                continue
            for made in self._chunks(chunk):
                yield event(made)
        if self._fields.stream_options.include_usage:
            head = self._head("chat.completion.chunk")
            yield event({**head, "choices": [], "usage": usage(self._answering.totals)})
        yield "data: [DONE]\n\n"

    def _chunks(self, chunk: Chunk) -> list[dict[str, Any]]:
        """One for each piece; the tokens' log-probabilities go with the first."""
        pieces: list[Piece] = chunk.pieces or [Piece("text")]
        made, tokens = [], chunk.tokens
        for place, piece in enumerate(pieces):
            delta: dict[str, Any] = {}
            if piece.call is not None:
                delta["tool_calls"] = [{"index": self._calls[chunk.index], **_call(piece.call)}]
                self._calls[chunk.index] += 1
            elif piece.text:
                delta["content" if piece.kind == "text" else "reasoning"] = piece.text
            reason = chunk.finish_reason if place == len(pieces) - 1 else None
            made.append(self._chunk(chunk.index, delta, reason, self._logprobs(tokens), daari(chunk, piece.sources)))
            tokens = []
        return made

    def _chunk(
        self, index: int, delta: dict[str, Any], reason: str | None = None, logprobs: Any = None, told: Any = None
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "finish_reason": reason, "logprobs": logprobs}
        if told is not None:
            choice["daari"] = told
        made = {**self._head("chat.completion.chunk"), "choices": [choice]}
        if self._fields.stream_options.include_usage:
            made["usage"] = None
        return made

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self._answering.id,
            "object": kind,
            "created": self._answering.created,
            "model": self._answering.asked.model,
        }

    def _logprobs(self, tokens: list[Any]) -> dict[str, Any] | None:
        if not self._fields.logprobs:
            return None
        return {"content": [self._spelling.logprob(token) for token in tokens], "refusal": None}


def _call(call: Call) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def usage(totals: Totals) -> dict[str, Any]:
    """OpenAI's counts; what was drafted and not accepted is a rejected prediction."""
    return {
        "prompt_tokens": totals.prompt,
        "completion_tokens": totals.completion,
        "total_tokens": totals.prompt + totals.completion,
        "prompt_tokens_details": {"cached_tokens": totals.cached},
        "completion_tokens_details": {
            "reasoning_tokens": totals.reasoning,
            "accepted_prediction_tokens": totals.accepted,
            "rejected_prediction_tokens": totals.drafted - totals.accepted,
        },
    }
