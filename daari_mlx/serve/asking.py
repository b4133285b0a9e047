"""From a chat, whatever API it came by, to requests of the engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mlx_lm.utils import common_prefix_len

from daari_mlx.ground.errors import DaariError
from daari_mlx.serve.answering import Asked
from daari_mlx.serve.errors import ApiError
from daari_mlx.serve.fields import OpenAIFields
from daari_mlx.serve.formats import ForcedChoice, ResponseFormat, forced_call, format_processors
from daari_mlx.serve.parts import Reader, initial_state
from daari_mlx.serve.service import Service
from daari_mlx.text.template import ChatTemplate

MOST_TOP = 20  # likeliest tokens that may be asked for


@dataclass
class Chat:
    """A chat in the one form that all APIs come to.

    Attributes:
        messages, tools: in the form of OpenAI's chat API.
        fields: how tokens are chosen.
        max_tokens: of an answer; None for the server's own limit.
        choice: what has to be called: None for what the model likes, ``""`` for any tool, or the name of one.
        format: of the answer, or None.
        variables: of the chat template.
        logprobs: likeliest tokens that are told beside each token's own log-probability; None for neither.
        begun: the last message is the beginning of the answer.
    """

    messages: list[dict[str, Any]]
    fields: OpenAIFields
    max_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    choice: ForcedChoice = None
    format: ResponseFormat | None = None
    variables: dict[str, Any] = field(default_factory=dict)
    logprobs: int | None = None
    begun: bool = False


def ask(service: Service, chat: Chat) -> Asked:
    """The requests of a chat.

    Raises:
        ApiError, DaariError: what cannot be answered.
    """
    model = service.check_model(chat.fields.model)
    prompt = prompt_of(service, chat)
    if chat.choice is None:
        processors = format_processors(service, chat.format)
    else:
        processors = [forced_call(service, chat.tools, chat.choice)]
    requests = service.requests(prompt, chat.fields, chat.max_tokens, processors)
    shared = 0 if service.rewinds else _system_tokens(service, chat, prompt)
    for request in requests:
        request.shared = shared
        request.begun = chat.messages[-1]["content"] if chat.begun else 0
    state = initial_state(service.tokenizer, prompt)
    forced = chat.choice is not None
    readers = [Reader(service.tokenizer, chat.tools, state, forced) for _ in requests]
    shown = chat.messages[-1].get("content")
    return Asked(
        requests,
        readers,
        model,
        logprobs=chat.logprobs,
        shown=shown if isinstance(shown, str) else "",
        prediction=service.prediction(chat.fields),
    )


def prompt_of(service: Service, chat: Chat) -> list[int]:
    """The token ids of a chat's prompt."""
    template = service.chat(chat.variables)
    messages = messages_for(chat.messages, template)
    render = template.begun if chat.begun else template.prompt
    return template.ids(render(messages, chat.tools))


def _system_tokens(service: Service, chat: Chat, prompt: list[int]) -> int:
    """How many first tokens are those of the system prompt and tools, as far as the template lets tell."""
    first = next((k for k, m in enumerate(chat.messages) if m.get("role") not in ("system", "developer")), 0)
    if not first and not chat.tools:
        return 0
    template = service.chat(chat.variables)
    try:
        other = template.prompt_ids(
            messages_for([*chat.messages[:first], {"role": "user", "content": ""}], template), chat.tools
        )
    except DaariError:  # a template that wants more of a chat
        return 0
    return int(common_prefix_len(prompt, other))


def messages_for(messages: list[dict[str, Any]], template: ChatTemplate) -> list[dict[str, Any]]:
    """Messages as chat templates know them: few know developers, and reasoning is read under another name."""
    made = []
    for message in messages:
        message = dict(message)
        if message.get("role") == "developer" and "developer" not in template.source:
            message["role"] = "system"
        if message.get("reasoning") and not message.get("reasoning_content"):
            message["reasoning_content"] = message.pop("reasoning")
        made.append(message)
    return made


def choice_of(value: Any, named: str | None) -> ForcedChoice:
    """``tool_choice`` of OpenAI's APIs.

    Args:
        value: as it was given, or None.
        named: the function's name, where one was given.

    Raises:
        ApiError: it is none of the known ones.
    """
    if named is not None:
        return named
    if value in (None, "auto", "none"):
        return None
    if value == "required":
        return ""
    raise ApiError(400, f"tool_choice is {value!r}: give auto, none, required or a function.", param="tool_choice")
