"""What cannot be answered is refused with the right status, by name; null is absent; others go on."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from serving import Running

CHAT, TEXT, NEW, ANTHROPIC = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
HELLO = [{"role": "user", "content": "hello"}]
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HELLO, "max_tokens": 4},
    TEXT: {"prompt": "hello", "max_tokens": 4},
    NEW: {"input": "hello", "max_output_tokens": 4},
    ANTHROPIC: {"messages": HELLO, "max_tokens": 4},
}
UNKNOWN = ["audio", "functions", "web_search_options", "adapters", "draft_model", "guided_regex", "whatever"]
OPENAI_NULLS = (
    "model stream stream_options n seed stop prediction temperature top_p top_k min_p logit_bias presence_penalty "
    "frequency_penalty repetition_penalty user metadata store logprobs"
)
NULLS = {
    CHAT: f"{OPENAI_NULLS} max_completion_tokens top_logprobs tools tool_choice response_format reasoning_effort "
    "modalities chat_template_kwargs parallel_tool_calls service_tier",
    TEXT: f"{OPENAI_NULLS} echo best_of",
    NEW: "model stream instructions temperature top_p tools tool_choice text reasoning include truncation background "
    "store metadata user",
    ANTHROPIC: "model stream system tools tool_choice thinking stop_sequences temperature top_p top_k metadata",
}


def error(response: httpx.Response) -> dict[str, Any]:
    """The error object, after seeing that it has the form of its API."""
    body = response.json()
    found: dict[str, Any] = body["error"]
    assert found["message"].endswith(".") and "\n" not in found["message"]
    if response.request.url.path.startswith(ANTHROPIC):
        assert body["type"] == "error" and set(found) == {"type", "message"}
    else:
        assert set(found) == {"message", "type", "param", "code"}
    return found


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_field_is_refused_by_its_name(server: Running, path: str, name: str) -> None:
    response = server.post(path, **BODIES[path], **{name: {"a": 1}})
    assert response.status_code == 400 and name in error(response)["message"]


@pytest.mark.parametrize("path", BODIES)
def test_null_is_absent(server: Running, path: str) -> None:
    plain = server.post(path, **BODIES[path])
    nulls = server.post(path, **BODIES[path], **dict.fromkeys(NULLS[path].split()))
    assert (plain.status_code, nulls.status_code) == (200, 200)
    keys = {CHAT: "choices", TEXT: "choices", NEW: "output", ANTHROPIC: "content"}
    texts = [str(r.json()[keys[path]]).split("'daari'")[0].split("'id'")[0] for r in (plain, nulls)]
    assert texts[0] == texts[1]


BAD: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"messages": []}, "messages"),
    (CHAT, {"messages": [{"role": "user"}]}, "content"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "text"),
    (CHAT, {"messages": "hello"}, "messages"),
    (CHAT, {"max_tokens": 0}, "max_tokens"),
    (CHAT, {"max_tokens": "4"}, "max_tokens"),
    (CHAT, {"n": 0}, "n"),
    (CHAT, {"n": 1000}, "n"),
    (CHAT, {"temperature": -1}, "temp"),
    (CHAT, {"top_p": 7}, "top_p"),
    (CHAT, {"stop": [""]}, "stop"),
    (CHAT, {"logit_bias": {"9999": 1}}, "logit_bias"),
    (CHAT, {"logit_bias": {"a": 1}}, "logit_bias"),
    (CHAT, {"top_logprobs": 2}, "logprobs"),
    (CHAT, {"response_format": {"type": "xml"}}, "response_format"),
    (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "objekt"}}}}, "schema"),
    (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}}, "not"),
    (CHAT, {"tool_choice": "required"}, "tool_choice"),
    (CHAT, {"tool_choice": "sometimes"}, "tool_choice"),
    (CHAT, {"chat_template_kwargs": {"tokenize": False}}, "tokenize"),
    (CHAT, {"modalities": ["audio"]}, "modalities"),
    (TEXT, {"prompt": []}, "prompt"),
    (TEXT, {"prompt": [99999]}, "prompt"),
    (TEXT, {"echo": True}, "echo"),
    (TEXT, {"suffix": "x"}, "suffix"),
    (NEW, {"previous_response_id": "resp_1"}, "previous_response_id"),
    (NEW, {"background": True}, "background"),
    (NEW, {"tools": [{"type": "web_search"}]}, "web_search"),
    (NEW, {"input": [{"type": "item_reference", "id": "x"}]}, "item_reference"),
    (ANTHROPIC, {"max_tokens": None}, "max_tokens"),
    (ANTHROPIC, {"tools": [{"type": "bash_20250124", "name": "bash"}]}, "bash"),
    (ANTHROPIC, {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "image"),
]


@pytest.mark.parametrize(("path", "wrong", "named"), BAD)
def test_bad_input_is_400_and_named(server: Running, path: str, wrong: dict[str, Any], named: str) -> None:
    response = server.post(path, **{**BODIES[path], **wrong})
    assert response.status_code == 400 and named in error(response)["message"]
    assert server.chat().status_code == 200, "others go on"


@pytest.mark.parametrize("path", BODIES)
def test_the_other_statuses(server: Running, path: str) -> None:
    assert server.http.post(path, content=b"{").status_code == 400
    assert server.http.post(path, content=b"[1]").status_code == 400
    assert server.http.post(path, content=b"\xff\xfe").status_code == 400
    missing = server.post(path, **{**BODIES[path], "model": "/etc/passwd"})
    assert missing.status_code == 404 and "/etc/passwd" in error(missing)["message"]
    words = "word " * 3000
    long = {CHAT: {"messages": [{"role": "user", "content": words}]}, TEXT: {"prompt": words}, NEW: {"input": words}}
    response = server.post(path, **{**BODIES[path], **long.get(path, long[CHAT])})
    assert response.status_code == 413 and "2,048" in error(response)["message"]
    assert server.http.get(path).status_code == 405
    assert server.http.get(f"{path}/nothing").status_code in (404, 405)


def test_a_schema_that_is_too_large_is_413(server: Running) -> None:
    schema = {"enum": [f"value {k}" for k in range(10_000)]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    response = server.chat(response_format=form)
    assert response.status_code == 413 and "schema" in error(response)["message"]


def test_without_a_limit_an_answer_goes_to_its_end_or_the_contexts(server: Running) -> None:
    whole = server.chat("Your card was charged 12.50", max_tokens=None).json()
    assert whole["choices"][0]["finish_reason"] == "stop"
    context = server.service.teacher.context_length
    endless = server.post(TEXT, prompt=[5] * (context - 7), logit_bias={"2": -100}).json()
    assert endless["choices"][0]["finish_reason"] == "length"
    assert endless["usage"]["total_tokens"] == context


def test_models_and_what_is_not_there(server: Running) -> None:
    listed = server.http.get("/v1/models").json()["data"]
    assert len(listed) == 1 and listed[0]["object"] == "model"
    assert server.http.get("/v1/models/tiny_teacher").json()["id"] == "tiny_teacher"
    assert server.http.get("/v1/models/other").status_code == 404
    assert server.http.get("/nothing").json()["error"]["code"] == "not_found"
    text = server.http.get("/metrics").text
    assert 'daari_requests_total{path="/v1/chat/completions",finish="stop"}' in text
    assert "daari_time_to_first_token_seconds_count" in text and 'daari_tokens_total{source="' in text
