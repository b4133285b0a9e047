"""Unmodified clients: OpenAI's and Anthropic's own packages, with tools, schemas and streams."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field
from scripted import TOOLS, says
from serving import Running, running
from test_chat_api import plain

pytest.importorskip("openai")
pytest.importorskip("anthropic")
HELLO: Any = [{"role": "user", "content": "Your card was charged 12.50"}]
CALL = 'I look. <tool_call>\n{"name": "look_up", "arguments": {"what": "it"}}\n</tool_call>'


class Verdict(BaseModel):
    """What an answer has to be."""

    label: Literal["ham", "spam"]
    risk: int = Field(ge=0, le=9)


def _anthropic(server: Running) -> Any:
    from anthropic import Anthropic

    return Anthropic(base_url=server.url, api_key="none", max_retries=0)


def _openai(server: Running) -> Any:
    from openai import OpenAI

    return OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@pytest.fixture
def anthropic(server: Running) -> Iterator[Any]:
    with _anthropic(server) as client:
        yield client


def test_openai_responses(openai: Any, compiled: Any) -> None:
    _, text, _ = plain(compiled, HELLO)
    asked = {"model": "tiny_teacher", "input": HELLO, "max_output_tokens": 40}
    whole = openai.responses.create(**asked)
    assert whole.output_text == text and whole.usage.output_tokens > 10
    with openai.responses.stream(**{**asked, "max_output_tokens": 1000}) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(deltas) == final.output_text and final.output_text.startswith(text[:20])


def test_openai_completions(openai: Any) -> None:
    asked = {"model": "tiny_teacher", "prompt": ["Hello", "Your card"], "max_tokens": 9, "logprobs": 2, "n": 2}
    whole = openai.completions.create(**asked)
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    texts = [""] * 4
    for chunk in openai.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices] and texts[0] == texts[1] != texts[2]
    assert all(len(choice.logprobs.tokens) == 9 for choice in whole.choices)


def test_openai_parses_schemas(openai: Any) -> None:
    asked = {"model": "tiny_teacher", "max_tokens": 60}
    made = openai.chat.completions.parse(**asked, messages=HELLO, response_format=Verdict)
    assert isinstance(made.choices[0].message.parsed, Verdict)
    made = openai.responses.parse(model="tiny_teacher", input=HELLO, max_output_tokens=60, text_format=Verdict)
    assert isinstance(made.output_parsed, Verdict)
    made = openai.chat.completions.create(**asked, messages=HELLO, response_format={"type": "json_object"})
    assert isinstance(json.loads(made.choices[0].message.content), dict)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look_up"}}])
def test_openai_forces_a_tool(openai: Any, choice: Any) -> None:
    empty = {"type": "object", "properties": {}, "additionalProperties": False}
    other = {"type": "function", "function": {"name": "other", "parameters": empty}}
    tools = [json.loads(json.dumps(TOOLS[0]))]
    what = {"what": {"enum": ["it", "that"]}}
    tools[0]["function"]["parameters"].update(properties=what, additionalProperties=False)
    made = openai.chat.completions.create(
        model="tiny_teacher", messages=HELLO, tools=[*tools, other], tool_choice=choice, max_tokens=80
    )
    call = made.choices[0].message.tool_calls[0].function
    assert made.choices[0].finish_reason == "tool_calls"
    assert call.name in (("look_up", "other") if choice == "required" else ("look_up",))
    assert isinstance(json.loads(call.arguments), dict)


def test_anthropic_messages(anthropic: Any, compiled: Any) -> None:
    system = [{"role": "system", "content": "Answer in JSON."}]
    _, text, reason = plain(compiled, [*system, *HELLO])
    asked = {"model": "tiny_teacher", "max_tokens": 40, "messages": HELLO, "system": "Answer in JSON."}
    whole = anthropic.messages.create(**asked)
    assert whole.content[0].text == text
    assert whole.stop_reason == {"length": "max_tokens", "stop": "end_turn"}[reason]
    with anthropic.messages.stream(**asked) as stream:
        assert "".join(stream.text_stream) == text
        assert stream.get_final_message().usage.output_tokens == whole.usage.output_tokens
    counted = anthropic.messages.count_tokens(model="tiny_teacher", messages=HELLO, system="Answer in JSON.")
    assert counted.input_tokens == whole.usage.input_tokens + whole.usage.cache_read_input_tokens


def test_anthropic_goes_on_from_a_beginning_and_ends_at_a_stop(anthropic: Any) -> None:
    begun = [*HELLO, {"role": "assistant", "content": '{"label":"ham'}]
    made = anthropic.messages.create(
        model="tiny_teacher", max_tokens=40, messages=begun, stop_sequences=["nowhere", "category"]
    )
    assert (made.stop_reason, made.stop_sequence) == ("stop_sequence", "category")
    assert made.content[0].text == '","'


def test_anthropic_uses_a_tool_and_hears_what_it_found() -> None:
    tool = {"name": "look_up", "description": "Looks.", "input_schema": TOOLS[0]["function"]["parameters"]}  # type: ignore[index]
    shown = [{"type": "function", "function": {"name": "look_up", "parameters": tool["input_schema"]}}]
    shown[0]["function"]["description"] = "Looks."  # type: ignore[index]
    with running(says(CALL, messages=HELLO, tools=shown)) as server, _anthropic(server) as client:
        asked = {"model": "scripted", "max_tokens": 200, "tools": [tool]}
        with client.messages.stream(**asked, messages=HELLO) as stream:
            made = stream.get_final_message()
        assert (made.stop_reason, made.content[0].text, made.content[1].input) == (
            "tool_use",
            "I look. ",
            {"what": "it"},
        )
        result = {"type": "tool_result", "tool_use_id": made.content[1].id, "content": "42"}
        turns = [*HELLO, {"role": "assistant", "content": made.content}, {"role": "user", "content": [result]}]
        counted = client.messages.count_tokens(model="scripted", tools=[tool], messages=turns)
        template = server.service.template
        call = {"function": {"name": "look_up", "arguments": {"what": "it"}}}
        expected = template.prompt_ids(
            [
                *HELLO,
                {"role": "assistant", "content": "I look. ", "tool_calls": [call]},
                {"role": "tool", "content": "42"},
            ],
            shown,
        )
        assert counted.input_tokens == len(expected)


def test_openai_streams_a_tool_call_and_goes_on_behind_it() -> None:
    with running(says(CALL, messages=HELLO, tools=TOOLS)) as server, _openai(server) as client:
        with client.chat.completions.stream(model="scripted", messages=HELLO, tools=TOOLS) as stream:
            made = stream.get_final_completion().choices[0]
        assert made.finish_reason == "tool_calls"
        function = made.message.tool_calls[0].function
        assert (function.name, json.loads(function.arguments)) == ("look_up", {"what": "it"})
        responded = client.responses.create(
            model="scripted", input=HELLO, tools=[{"type": "function", **TOOLS[0]["function"]}]
        )  # type: ignore[dict-item]
        assert [item.type for item in responded.output] == ["message", "function_call"]
        again = [*HELLO, *responded.output, {"type": "function_call_output", "call_id": "x", "output": "42"}]
        assert client.responses.create(model="scripted", input=again, max_output_tokens=2).usage.input_tokens > 20
