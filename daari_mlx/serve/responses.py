"""`/v1/responses`: OpenAI's newer API, without stored state."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any, ClassVar, Literal

from pydantic import Field
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from daari_mlx.serve.answering import Answering, all_of, at_once, daari, stream
from daari_mlx.serve.asking import MOST_TOP, Chat, ask, choice_of
from daari_mlx.serve.errors import ApiError, Json
from daari_mlx.serve.fields import Fields, OpenAIFields, read
from daari_mlx.serve.formats import JsonSchema, ResponseFormat
from daari_mlx.serve.parts import Call, Chunk, Piece
from daari_mlx.serve.responses_input import chat_messages, chat_tools
from daari_mlx.serve.service import Service
from daari_mlx.serve.spelling import Spelling
from daari_mlx.serve.streaming import event

LOGPROBS = "message.output_text.logprobs"
INCLUDED = {LOGPROBS, "reasoning.encrypted_content"}  # of which the second is nothing that a local model has
Event = dict[str, Any]


class TextFormat(Fields):
    """``text.format``."""

    harmless = frozenset({"strict", "description"})
    type: Literal["text", "json_object", "json_schema"]
    name: str = "answer"
    schema_: dict[str, Any] | None = None

    model_config = Fields.model_config | {"alias_generator": lambda name: name.rstrip("_")}


class TextFields(Fields):
    """``text``."""

    harmless = frozenset({"verbosity"})
    format: TextFormat | None = None


class Reasoning(Fields):
    """``reasoning``."""

    harmless = frozenset({"summary", "generate_summary"})
    effort: str | None = None


class Chosen(Fields):
    """``{"type": "function", "name": ...}``."""

    type: Literal["function"]
    name: str


class ResponseFields(OpenAIFields):
    """What a client may send."""

    harmless: ClassVar[frozenset[str]] = OpenAIFields.harmless | {"max_tool_calls"}
    n: Literal[1] = 1
    input: str | list[dict[str, Any]] = Field(min_length=1)
    instructions: str | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | Chosen | None = None
    text: TextFields = TextFields()
    reasoning: Reasoning = Reasoning()
    include: list[str] = Field(default_factory=list)
    top_logprobs: int | None = Field(default=None, ge=0, le=MOST_TOP)
    truncation: Literal["disabled"] = "disabled"
    background: Literal[False] = False
    chat_template_kwargs: dict[str, Any] | None = None

    def chat(self) -> Chat:
        """The chat that is asked for.

        Raises:
            ApiError: what cannot be taken.
        """
        if unknown := set(self.include) - INCLUDED:
            raise ApiError(400, f"include has {', '.join(sorted(unknown))}, which is not supported.", param="include")
        effort = {} if self.reasoning.effort is None else {"reasoning_effort": self.reasoning.effort}
        form = self.text.format
        schema = None if form is None or form.schema_ is None else JsonSchema.model_validate({"schema": form.schema_})
        named = self.tool_choice.name if isinstance(self.tool_choice, Chosen) else None
        return Chat(
            chat_messages(self.instructions, self.input),
            self,
            self.max_output_tokens or self.max_tokens,
            tools=None if self.tool_choice == "none" else chat_tools(self.tools),
            choice=choice_of(self.tool_choice, named),
            format=None if form is None else ResponseFormat(type=form.type, json_schema=schema),
            variables={**effort, **(self.chat_template_kwargs or {})},
            logprobs=(self.top_logprobs or 0) if LOGPROBS in self.include else None,
        )


async def responses(service: Service, http: HttpRequest, body: bytes, salt: str) -> Response:
    """Answer a chat."""
    fields = read(ResponseFields, body)
    chat = fields.chat()
    answering = Answering(service, await service.prepare(ask, service, chat), http.scope["path"], salt, "resp_")
    writer = Writer(answering, fields, chat, Spelling(service.tokenizer))
    if fields.stream:
        return await stream(http, answering, writer.stream(), writer.failed)
    await at_once(http, answering, all_of(writer.events()))
    return Json(writer.response)


class Writer:
    """Writes events, and the response that they add up to."""

    def __init__(self, answering: Answering, fields: ResponseFields, chat: Chat, spelling: Spelling) -> None:
        self._answering, self._fields, self._chat, self._spelling = answering, fields, chat, spelling
        self._open: Event | None = None  # the item that is open
        self._number = 0
        self._sources: list[tuple[str | None, str]] = []
        form = fields.text.format
        choice = fields.tool_choice
        self.response: Event = {
            "id": answering.id,
            "object": "response",
            "created_at": answering.created,
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "instructions": fields.instructions,
            "max_output_tokens": fields.max_output_tokens,
            "model": answering.asked.model,
            "output": [],
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "reasoning": {"effort": fields.reasoning.effort, "summary": None},
            "store": False,
            "temperature": fields.temperature,
            "text": {"format": {"type": "text"} if form is None else _given(form)},
            "tool_choice": _given(choice) if isinstance(choice, Chosen) else choice or "auto",
            "tools": fields.tools or [],
            "top_p": fields.top_p,
            "truncation": "disabled",
            "usage": None,
            "metadata": {},
        }

    async def stream(self) -> AsyncIterator[str | None]:
        """The events as text."""
        async for made in self.events():
            yield None if made is None else event(made, made["type"])

    async def events(self) -> AsyncIterator[Event | None]:
        """The events; None where nothing came for a while."""
        for kind in ("created", "in_progress"):
            yield self._event(f"response.{kind}", response={**self.response, "output": []})
        reason = None
        async for chunk in self._answering.chunks():
            if chunk is None:
                yield None
                continue
            reason = chunk.finish_reason
            for made in self._read(chunk):
                yield made
        for made in self._close():
            yield made
        whole = reason != "length"
        self.response["status"] = "completed" if whole else "incomplete"
        self.response["incomplete_details"] = None if whole else {"reason": "max_output_tokens"}
        self.response["usage"] = self._usage()
        yield self._event(f"response.{self.response['status']}", response=self.response)

    def failed(self, error: ApiError) -> str:
        """The event that tells of an error."""
        told = {"code": error.code or error.kind, "message": error.message}
        self.response.update(status="failed", error=told)
        return event(self._event("response.failed", response=self.response), "response.failed")

    def _read(self, chunk: Chunk) -> list[Event]:
        made: list[Event] = []
        for piece in chunk.pieces:
            self._sources += piece.sources
            made += self._piece(piece, chunk)
        if self._open is not None and self._open["type"] == "message" and self._chat.logprobs is not None:
            entries = [self._spelling.logprob(token) for token in chunk.tokens]
            self._open["content"][0]["logprobs"] += entries
            if made and "logprobs" in made[-1]:
                made[-1]["logprobs"] = entries
        self.response["daari"] = daari(chunk, self._sources)
        return made

    def _piece(self, piece: Piece, chunk: Chunk) -> list[Event]:
        if piece.call is not None:
            return [*self._close(), *self._call(piece.call)]
        if not piece.text:
            return []
        kind = "message" if piece.kind == "text" else "reasoning"
        made: list[Event] = []
        if self._open is None or self._open["type"] != kind:
            made = [*self._close(), *self._begin(kind)]
        assert self._open is not None
        self._open["content"][0]["text"] += piece.text
        told = {"daari": daari(chunk, piece.sources)}
        if kind == "reasoning":
            return [*made, self._within("response.reasoning_text.delta", delta=piece.text, **told)]
        return [*made, self._within("response.output_text.delta", delta=piece.text, logprobs=[], **told)]

    def _begin(self, kind: str) -> list[Event]:
        if kind == "reasoning":
            part: Event = {"type": "reasoning_text", "text": ""}
            item: Event = {"type": kind, "id": _id("rs"), "summary": [], "content": [part], "status": "in_progress"}
        else:
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            item = {"type": kind, "id": _id("msg"), "role": "assistant", "content": [part], "status": "in_progress"}
        self._open = item
        self.response["output"].append(item)
        return [
            self._item("added", {**item, "content": []}),
            self._within("response.content_part.added", part=dict(part)),
        ]

    def _close(self) -> list[Event]:
        item = self._open
        if item is None:
            return []
        item["status"] = "completed"
        part = item["content"][0]
        done = (
            {"text": part["text"]}
            if item["type"] == "reasoning"
            else {"text": part["text"], "logprobs": part["logprobs"]}
        )
        name = "reasoning_text" if item["type"] == "reasoning" else "output_text"
        made = [
            self._within(f"response.{name}.done", **done),
            self._within("response.content_part.done", part=part),
            self._item("done", item),
        ]
        self._open = None
        return made

    def _call(self, call: Call) -> list[Event]:
        item = {"type": "function_call", "id": _id("fc"), "call_id": call.id, "name": call.name, "arguments": ""}
        item["status"] = "in_progress"
        self.response["output"].append(item)
        where = {"item_id": item["id"], "output_index": len(self.response["output"]) - 1}
        name = "response.function_call_arguments"
        made = [
            self._item("added", dict(item)),
            self._event(f"{name}.delta", delta=call.arguments, **where),
            self._event(f"{name}.done", arguments=call.arguments, name=call.name, **where),
        ]
        item.update(arguments=call.arguments, status="completed")
        return [*made, self._item("done", dict(item))]

    def _item(self, what: str, item: Event) -> Event:
        return self._event(f"response.output_item.{what}", output_index=len(self.response["output"]) - 1, item=item)

    def _within(self, kind: str, **more: Any) -> Event:
        """An event within the item that is open."""
        assert self._open is not None
        where = {"item_id": self._open["id"], "output_index": len(self.response["output"]) - 1, "content_index": 0}
        return self._event(kind, **where, **more)

    def _event(self, kind: str, **more: Any) -> Event:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1, **more}

    def _usage(self) -> Event:
        totals = self._answering.totals
        return {
            "input_tokens": totals.prompt,
            "input_tokens_details": {"cached_tokens": totals.cached, "cache_write_tokens": 0},
            "output_tokens": totals.completion,
            "output_tokens_details": {
                "reasoning_tokens": totals.reasoning,
                "accepted_prediction_tokens": totals.accepted,
                "rejected_prediction_tokens": totals.drafted - totals.accepted,
            },
            "total_tokens": totals.prompt + totals.completion,
        }


def _given(fields: Fields) -> Event:
    return fields.model_dump(by_alias=True, exclude_none=True)


def _id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"
