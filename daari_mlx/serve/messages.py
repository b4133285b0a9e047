"""`/v1/messages` and `/v1/messages/count_tokens`: Anthropic's API."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, Literal

from pydantic import Field
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from daari_mlx.serve.answering import Answering, all_of, at_once, daari, stream
from daari_mlx.serve.anthropic_input import chat_messages, chat_tools
from daari_mlx.serve.asking import Chat, ask, prompt_of
from daari_mlx.serve.errors import ApiError, Json
from daari_mlx.serve.fields import Fields, Loose, OpenAIFields, read
from daari_mlx.serve.formats import JsonSchema, ResponseFormat
from daari_mlx.serve.parts import Chunk, Piece
from daari_mlx.serve.service import Service
from daari_mlx.serve.streaming import event

EDITS = ("clear_thinking",)  # of a context that chat templates make anyway: they leave earlier thinking out


class ToolChoice(Fields):
    """Anthropic's ``tool_choice``."""

    harmless = frozenset({"disable_parallel_tool_use"})
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None


class Thinking(Fields):
    """Anthropic's ``thinking``; the budget is not kept, since local models know none."""

    harmless = frozenset({"budget_tokens", "display"})
    type: Literal["enabled", "disabled", "adaptive"]


class OutputFormat(Fields):
    """Anthropic's structured outputs."""

    type: Literal["json_schema"]
    schema_: dict[str, Any]

    model_config = Fields.model_config | {"alias_generator": lambda name: name.rstrip("_")}


class OutputConfig(Fields):
    """Anthropic's ``output_config``."""

    format: OutputFormat | None = None
    effort: str | None = None


class ContextManagement(Loose):
    """Anthropic's ``context_management``."""

    edits: list[dict[str, Any]] = Field(default_factory=list)


class CountFields(Fields):
    """What a client may send to have its tokens counted."""

    harmless = frozenset({"metadata", "service_tier", "betas", "cache_control", "inference_geo"})
    model: str | None = None
    messages: list[dict[str, Any]] = Field(min_length=1)
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    context_management: ContextManagement = ContextManagement()

    def chat(self) -> Chat:
        """The chat that is asked for.

        Raises:
            ApiError: what cannot be taken.
        """
        for edit in self.context_management.edits:
            if not str(edit.get("type", "")).startswith(EDITS):
                raise ApiError(400, f"context_management: {edit.get('type')} is not supported here: leave it out.")
        messages, begun = chat_messages(self.system, self.messages)
        kind = "auto" if self.tool_choice is None else self.tool_choice.type
        variables: dict[str, Any] = {}
        if self.thinking is not None:
            variables["enable_thinking"] = self.thinking.type != "disabled"
        config = self.output_config or OutputConfig()
        if config.effort is not None:
            variables["reasoning_effort"] = config.effort
        form = self.output_format or config.format
        schema = None if form is None else JsonSchema.model_validate({"schema": form.schema_})
        return Chat(
            messages,
            self.sampling_fields(),
            tools=None if kind == "none" else chat_tools(self.tools),
            choice="" if kind == "any" else self.tool_choice.name if self.tool_choice and kind == "tool" else None,
            format=None if schema is None else ResponseFormat(type="json_schema", json_schema=schema),
            variables=variables,
            begun=begun,
        )

    def sampling_fields(self) -> OpenAIFields:
        """How tokens are chosen."""
        return OpenAIFields(model=self.model)


class MessageFields(CountFields):
    """What a client may send."""

    max_tokens: int = Field(ge=1)
    stream: bool = False
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None

    def sampling_fields(self) -> OpenAIFields:
        """How tokens are chosen."""
        names = ("model", "temperature", "top_p", "top_k")
        return OpenAIFields(stop=self.stop_sequences, **{name: getattr(self, name) for name in names})


async def messages(service: Service, http: HttpRequest, body: bytes, salt: str) -> Response:
    """Answer a chat."""
    fields = read(MessageFields, body)
    chat = fields.chat()
    chat.max_tokens = fields.max_tokens
    answering = Answering(service, await service.prepare(ask, service, chat), http.scope["path"], salt, "msg_")
    writer = Writer(answering, fields.stop_sequences or [])
    if fields.stream:
        return await stream(http, answering, writer.stream(), _failed)
    await at_once(http, answering, all_of(writer.events()))
    return Json({**writer.message, "daari": writer.told})


async def count_tokens(service: Service, http: HttpRequest, body: bytes, salt: str) -> Response:
    """Count the tokens of a prompt."""
    fields = read(CountFields, body)
    service.check_model(fields.model)
    prompt = await service.prepare(prompt_of, service, fields.chat())
    return Json({"input_tokens": len(prompt)})


def _failed(error: ApiError) -> str:
    return event(error.body(anthropic=True), "error")


class Writer:
    """Writes an answer in Anthropic's shape: events, and the message that they add up to."""

    def __init__(self, answering: Answering, stops: list[str]) -> None:
        self._answering, self._stops = answering, stops
        self._tokenizer = answering.service.tokenizer
        self._ids: list[int] = []
        self._sources: list[tuple[str | None, str]] = []
        self._kind: str | None = None  # of the block that is open
        self.told: dict[str, Any] = {}
        self.message: dict[str, Any] = {
            "id": answering.id,
            "type": "message",
            "role": "assistant",
            "model": answering.asked.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(),
        }

    async def stream(self) -> AsyncIterator[str | None]:
        """The events as text."""
        async for made in self.events():
            yield event({"type": "ping"}, "ping") if made is None else event(made, made["type"])

    async def events(self) -> AsyncIterator[dict[str, Any] | None]:
        """The events; None where nothing came for a while."""
        yield {"type": "message_start", "message": {**self.message, "content": []}}
        async for chunk in self._answering.chunks():
            if chunk is None:
                yield None
                continue
            for made in self._read(chunk):
                yield made
        for made in self._close():
            yield made
        reason = {"stop_reason": self.message["stop_reason"], "stop_sequence": self.message["stop_sequence"]}
        yield {"type": "message_delta", "delta": reason, "usage": self._usage(), "daari": self.told}
        yield {"type": "message_stop"}

    def _read(self, chunk: Chunk) -> list[dict[str, Any]]:
        self._ids += [token.id for token in chunk.tokens]
        made: list[dict[str, Any]] = []
        for piece in chunk.pieces:
            self._sources += piece.sources
            made += self._piece(piece, chunk)
        self.told = daari(chunk, self._sources)
        if chunk.finish_reason is not None:
            self._end(chunk.finish_reason)
        self.message["usage"] = self._usage()
        return made

    def _piece(self, piece: Piece, chunk: Chunk) -> list[dict[str, Any]]:
        content = self.message["content"]
        if piece.call is not None:
            made = self._close()
            call = {"type": "tool_use", "id": piece.call.id, "name": piece.call.name, "input": {}}
            made += self._open("tool_use", call)
            content[-1] = {**call, "input": json.loads(piece.call.arguments or "{}")}
            delta = {"type": "input_json_delta", "partial_json": piece.call.arguments}
            return [*made, self._delta(delta), *self._close()]
        if not piece.text:
            return []
        kind, field = ("text", "text") if piece.kind == "text" else ("thinking", "thinking")
        made = []
        if self._kind != kind:
            start = {"type": kind, field: "", **({} if kind == "text" else {"signature": ""})}
            made = [*self._close(), *self._open(kind, start)]
        content[-1][field] += piece.text
        delta = {"type": f"{kind}_delta", field: piece.text}
        return [*made, {**self._delta(delta), "daari": daari(chunk, piece.sources)}]

    def _open(self, kind: str, block: dict[str, Any]) -> list[dict[str, Any]]:
        self._kind = kind
        self.message["content"].append(dict(block))
        return [{"type": "content_block_start", "index": self._place, "content_block": block}]

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": self._place, "delta": delta}

    def _close(self) -> list[dict[str, Any]]:
        if self._kind is None:
            return []
        self._kind = None
        return [{"type": "content_block_stop", "index": self._place}]

    @property
    def _place(self) -> int:
        return len(self.message["content"]) - 1

    def _end(self, reason: str) -> None:
        message = self.message
        message["stop_reason"] = {"length": "max_tokens", "tool_calls": "tool_use"}.get(reason, "end_turn")
        if reason == "stop" and self._ids[-1] not in self._tokenizer.eos_token_ids:
            text = self._tokenizer.decode(self._ids)
            found = {stop: place for stop in self._stops if (place := text.find(stop)) >= 0}
            message["stop_reason"] = "stop_sequence"
            message["stop_sequence"] = min(found, key=found.__getitem__, default=None)

    def _usage(self) -> dict[str, Any]:
        totals = self._answering.totals
        return {
            "input_tokens": totals.prompt - totals.cached,
            "cache_read_input_tokens": totals.cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": totals.completion,
        }
