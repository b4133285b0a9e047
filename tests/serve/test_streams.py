"""What is streamed, joined, is the answer without streaming: text, reasoning, tool calls, log-probabilities, usage."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import ASKED, TOOLS, says, thinking_tokenizer
from serving import Running, running

from daari_mlx.serve.answering import Whole
from daari_mlx.serve.parts import Reader
from daari_mlx.serve.tickets import Figures, News, Token

CALL = '<tool_call>\n{"name": "look_up", "arguments": {"what": "ನಮಸ್ಕಾರ 😀 \\"x\\""}}\n</tool_call>'
ANSWERS = {
    "text": "A word, 漢字 and 😀👩‍👩‍👧 and שלום < and <tool and more",
    "reasoning": "<think>Let me see 😀 </think>\n\nIt is 12.",
    "call": f"I look.{CALL}",
    "calls": f"<think>Two of them</think>{CALL}{CALL}",
    "broken": '<tool_call>\n{"name": "look_up", "argum\n</tool_call> then',
}


@pytest.fixture(scope="module", params=sorted(ANSWERS))
def scripted(request: pytest.FixtureRequest) -> Iterator[tuple[str, Running]]:
    """A server whose teacher says one of the answers."""
    with running(says(ANSWERS[request.param], tools=TOOLS)) as server:
        yield request.param, server


def events(server: Running, path: str, **body: Any) -> list[dict[str, Any]]:
    """All events of a stream."""
    text = server.post(path, stream=True, **body).text
    assert text.endswith("\n\n")
    found = re.findall(r"^data: (.*)$", text, re.MULTILINE)
    return [json.loads(line) for line in found if line != "[DONE]"]


def without_ids(value: Any) -> Any:
    """The same value without ids that are made up anew for each answer, and without what timing decides."""
    if isinstance(value, dict):
        made_up = ("id", "call_id", "item_id", "created", "created_at", "daari", "prompt_tokens_details")
        return {k: without_ids(v) for k, v in value.items() if k not in made_up}
    return [without_ids(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("guess", [None, "same", "other"])
def test_chat(scripted: tuple[str, Running], guess: str | None) -> None:
    """At any chunking: a prediction that is right makes few and long chunks."""
    name, server = scripted
    asked: dict[str, Any] = {"messages": ASKED, "tools": TOOLS, "logprobs": True, "top_logprobs": 1}
    if guess is not None:
        said = ANSWERS[name] if guess == "same" else "".join(reversed(ANSWERS[name]))
        asked["prediction"] = {"type": "content", "content": said}
    whole = server.post("/v1/chat/completions", **asked).json()
    choice, message = whole["choices"][0], whole["choices"][0]["message"]
    chunks = events(server, "/v1/chat/completions", stream_options={"include_usage": True}, **asked)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == (message["content"] or "")
    assert "".join(delta.get("reasoning") or "" for delta in deltas) == message.get("reasoning", "")
    calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert [call.pop("index") for call in calls] == list(range(len(calls)))
    assert without_ids(calls) == without_ids(message.get("tool_calls", []))
    told = [e for c in chunks if c["choices"] for e in (c["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert [entry["id"] for entry in told] == [entry["id"] for entry in choice["logprobs"]["content"]]
    assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"] == len(told)
    reasons = [c["choices"][0]["finish_reason"] for c in chunks if c["choices"]]
    assert [r for r in reasons if r] == [choice["finish_reason"]]
    if guess == "same":
        assert whole["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] > len(told) / 2
    assert "�" not in json.dumps(message, ensure_ascii=False)
    shown = json.dumps(message, ensure_ascii=False)
    expected = {"text": "👩‍👩‍👧", "reasoning": "see 😀", "call": "I look.", "calls": "Two of them", "broken": "argum"}[
        name
    ]
    assert expected in shown and ("tool_calls" in message) == (name in ("call", "calls"))


def test_responses(scripted: tuple[str, Running]) -> None:
    _, server = scripted
    tools = [{"type": "function", **TOOLS[0]["function"]}]  # type: ignore[dict-item]
    asked = {"input": ASKED, "tools": tools}
    whole = server.post("/v1/responses", **asked).json()
    told = events(server, "/v1/responses", **asked)
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    assert told[-1]["type"] == "response.completed"
    assert without_ids(told[-1]["response"]) == without_ids(whole)
    texts = {"message": "response.output_text.delta", "reasoning": "response.reasoning_text.delta"}
    for place, item in enumerate(whole["output"]):
        own = [event for event in told if event.get("output_index") == place]
        assert (own[0]["type"], own[-1]["type"]) == ("response.output_item.added", "response.output_item.done")
        if item["type"] == "function_call":
            deltas = [e["delta"] for e in own if e["type"] == "response.function_call_arguments.delta"]
            assert "".join(deltas) == item["arguments"]
        else:
            deltas = [e["delta"] for e in own if e["type"] == texts[item["type"]]]
            assert "".join(deltas) == item["content"][0]["text"] != ""


def test_messages(scripted: tuple[str, Running]) -> None:
    _, server = scripted
    function = TOOLS[0]["function"]
    asked = {
        "messages": ASKED,
        "max_tokens": 500,
        "tools": [{**{k: function[k] for k in ("name", "description")}, "input_schema": function["parameters"]}],  # type: ignore[index]
    }
    whole = server.post("/v1/messages", **asked).json()
    told = events(server, "/v1/messages", **asked)
    assert (told[0]["type"], told[-1]["type"]) == ("message_start", "message_stop")
    for place, block in enumerate(whole["content"]):
        own = [event for event in told if event.get("index") == place]
        assert (own[0]["type"], own[-1]["type"]) == ("content_block_start", "content_block_stop")
        deltas = [event["delta"] for event in own[1:-1]]
        if block["type"] == "tool_use":
            assert json.loads("".join(d["partial_json"] for d in deltas)) == block["input"]
        else:
            assert "".join(delta[block["type"]] for delta in deltas) == block[block["type"]] != ""
    last = told[-2]
    assert last["delta"]["stop_reason"] == whole["stop_reason"]
    assert last["usage"]["output_tokens"] == whole["usage"]["output_tokens"]


def test_completions(scripted: tuple[str, Running]) -> None:
    name, server = scripted
    prompt = server.service.template.prompt_ids(ASKED, TOOLS)
    whole = server.post("/v1/completions", prompt=prompt).json()
    told = events(server, "/v1/completions", prompt=prompt)
    assert "".join(event["choices"][0]["text"] for event in told) == whole["choices"][0]["text"]
    tokenizer = server.service.tokenizer
    ids = tokenizer.encode(ANSWERS[name], add_special_tokens=False)
    assert whole["choices"][0]["text"] == tokenizer.decode(ids), "bare text, its marks included"


TOKENIZER = thinking_tokenizer()


@given(
    st.lists(
        st.sampled_from(["<think>", "</think>", "<tool_call>", "</tool_call>", CALL, "a ", "<", "😀"]), max_size=9
    ),
    st.lists(st.integers(0, 6), min_size=1, max_size=40),
    st.sampled_from(["stop", "length"]),
)
def test_any_chunking_gives_the_same_pieces(parts: list[str], sizes: list[int], reason: str) -> None:
    text = "".join(parts)
    wholes = []
    for cuts in ([len(text)], sizes):
        reader, answer, at, turn = Reader(TOKENIZER, TOOLS), Whole(), 0, 0
        while at < len(text) or turn == 0:
            size = cuts[turn % len(cuts)] or 1
            pieces = [Token(0, text[at : at + size], None)]
            at, turn = at + size, turn + 1
            answer.add(reader.read(News(0, pieces, reason if at >= len(text) else None, Figures(), 0.0)))
        wholes.append((answer.text, answer.reasoning, [(c.name, c.arguments) for c in answer.calls]))
        assert "".join(shown for _, shown in answer.sources) in (answer.text + answer.reasoning, *permuted(answer))
    assert wholes[0] == wholes[1]


def permuted(answer: Whole) -> list[str]:
    """Text and reasoning may alternate: then as many characters of both are told."""
    told = "".join(shown for _, shown in answer.sources)
    return [told] if sorted(told) == sorted(answer.text + answer.reasoning) else []
