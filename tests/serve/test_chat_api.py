"""`/v1/chat/completions` by OpenAI's own client: the same words as mlx-lm's, streamed or not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from graphs import Compiled
from mlx_lm import stream_generate
from serving import Running

from daari_mlx.serve import worker
from daari_mlx.text.template import ChatTemplate

TOKENS = 40
CHATS = [
    [{"role": "user", "content": "Your card was charged 12.50 at the station"}],
    [{"role": "system", "content": "Answer in JSON."}, {"role": "user", "content": "ನಮಸ್ಕಾರ 😀 12"}],
    [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": [{"type": "text", "text": "three"}]},
    ],
]


def plain(compiled: Compiled, messages: Any, tokens: int = TOKENS, **options: Any) -> tuple[list[int], str, str]:
    """The ids, the text and the reason of mlx-lm's own answer."""
    teacher = compiled.teacher
    prompt = ChatTemplate(teacher.tokenizer).prompt_ids(messages)
    found = list(stream_generate(teacher.model, teacher.tokenizer, prompt, max_tokens=tokens, **options))
    return [r.token for r in found], "".join(r.text for r in found), str(found[-1].finish_reason)


@pytest.mark.parametrize("messages", CHATS)
def test_answers_are_those_of_plain(openai: Any, compiled: Compiled, messages: Any) -> None:
    ids, text, reason = plain(compiled, messages)
    made = openai.chat.completions.create(model="tiny_teacher", messages=messages, max_tokens=TOKENS, logprobs=True)
    choice = made.choices[0]
    assert [entry.id for entry in choice.logprobs.content] == ids
    assert (choice.message.content, choice.finish_reason) == (text, reason)
    prompt = ChatTemplate(compiled.teacher.tokenizer).prompt_ids(messages)
    assert (made.usage.prompt_tokens, made.usage.completion_tokens) == (len(prompt), len(ids))


@pytest.mark.parametrize("messages", CHATS)
@pytest.mark.parametrize("more", [{}, {"n": 3}, {"logprobs": True, "top_logprobs": 3}])
def test_a_stream_joined_is_the_answer_without_streaming(openai: Any, messages: Any, more: Any) -> None:
    asked = {"model": "tiny_teacher", "messages": messages, "max_tokens": TOKENS, **more}
    whole = openai.chat.completions.create(**asked)
    stream = list(openai.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert stream[-1].choices == [] and stream[-1].usage.completion_tokens == whole.usage.completion_tokens
    for index, choice in enumerate(whole.choices):
        own = [c for chunk in stream for c in chunk.choices if c.index == index]
        assert own[0].delta.role == "assistant"
        text = "".join(c.delta.content or "" for c in own)
        assert text == choice.message.content
        assert "".join(t for c in own if hasattr(c, "daari") for _, t in c.daari["sources"]) == text
        assert [c.finish_reason for c in own if c.finish_reason] == [choice.finish_reason]
        if more.get("logprobs"):
            told = [entry for c in own if c.logprobs for entry in c.logprobs.content]
            assert [entry.id for entry in told] == [entry.id for entry in choice.logprobs.content]
            expected = [entry.logprob for entry in choice.logprobs.content]
            assert [entry.logprob for entry in told] == pytest.approx(expected, abs=1e-3), "but for float rounding"
            assert len(told) == whole.usage.completion_tokens
            assert all(len(entry.top_logprobs) == 3 for entry in told)
            assert all(entry.top_logprobs[0].id == entry.id for entry in told), "greedy says the likeliest"


def test_drafting_is_told(server: Running) -> None:
    made = server.chat("Your card was charged 12.50 at the station", max_tokens=60).json()
    told, usage = made["choices"][0]["daari"], made["usage"]
    assert told["tokens"] == usage["completion_tokens"] == len(told["sources"])
    accepted = sum(source is not None for source, _ in told["sources"])
    details = usage["completion_tokens_details"]
    assert accepted == told["accepted"] == details["accepted_prediction_tokens"] > 0
    assert details["rejected_prediction_tokens"] == told["drafted"] - told["accepted"]
    assert told["tokens_per_forward"] > 1
    newest = server.http.get("/daari/requests").json()["requests"][0]
    assert newest["tokens"] == told["tokens"] and newest["prompt"] is None
    assert sum(newest["sources"].values()) == told["tokens"]


def test_an_idle_server_holds_no_wired_memory(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []

    @contextmanager
    def wired(*_: Any) -> Iterator[None]:
        held.append(1)
        yield
        held.append(-1)

    monkeypatch.setattr(worker, "wired", wired)
    assert server.chat(max_tokens=3).status_code == 200
    deadline = time.monotonic() + 30
    while held != [1, -1] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert held == [1, -1]
