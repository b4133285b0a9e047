"""Nobody gets in who should not, and nothing is told that was said by another."""

from __future__ import annotations

import json
import socket
from contextlib import closing
from inspect import signature
from typing import Any, cast

import pytest
from graphs import Compiled
from serving import Running, running

from daari_mlx.cli.server import server
from daari_mlx.serve import run
from daari_mlx.serve.options import ServeOptions

HELLO = {"messages": [{"role": "user", "content": "a secret of mine, quite long, with words"}], "max_tokens": 20}
PATHS = ["/v1/models", "/metrics", "/daari/requests", "/v1/models/x"]


def test_only_this_machine_is_answered_unless_told() -> None:
    assert ServeOptions().host == "127.0.0.1" and ServeOptions().allowed_origins is None


def test_a_key_is_wanted_everywhere_but_at_the_page_and_health(compiled: Compiled) -> None:
    with running(compiled.teacher, draft=0, api_key=["one", "two"]) as server:
        for path in PATHS:
            assert server.http.get(path).status_code == 401
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"):
            answer = server.post(path, **HELLO)
            assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
            assert "authentication_error" in answer.text or "invalid_api_key" in answer.text
        assert server.http.get("/health").status_code == server.http.get("/").status_code == 200
        ways = {"one": {"Authorization": "Bearer one"}, "two": {"x-api-key": "two"}}
        cached = []
        for headers in (ways["one"], ways["two"], ways["two"]):
            answer = server.http.post("/v1/chat/completions", json=HELLO, headers=headers)
            cached.append(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
        assert cached[0] == cached[1] == 0 < cached[2], "no key has another's caches, whose speed would tell"
        assert server.http.get("/v1/models", headers={"Authorization": "Bearer three"}).status_code == 401


@pytest.mark.parametrize(
    ("allowed", "origin", "status"),
    [
        (None, "http://localhost:3000", 200),
        (None, "http://127.0.0.1:8080", 200),
        (None, "https://example.com", 403),
        (None, "http://localhost.example.com", 403),
        (None, "null", 403),
        ("https://example.com", "https://example.com", 200),
        ("https://example.com", "http://localhost:3000", 403),
        ("*", "https://example.com", 200),
    ],
)
def test_pages_of_others_may_not_ask(compiled: Compiled, allowed: str | None, origin: str, status: int) -> None:
    with running(compiled.teacher, draft=0, allowed_origins=allowed) as server:
        answer = server.http.post("/v1/chat/completions", json=HELLO, headers={"Origin": origin})
        assert answer.status_code == status
        shown = answer.headers.get("access-control-allow-origin")
        assert (shown in (origin, "*")) == (status == 200)
        asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        before = server.http.options("/v1/chat/completions", headers=asked)
        assert (before.status_code == 200) == (status == 200)


def test_a_name_that_leads_to_this_machine_is_no_way_in(server: Running) -> None:
    assert server.http.get("/daari/requests", headers={"Host": "evil.example:80"}).status_code == 403
    assert server.http.get("/daari/requests", headers={"Host": "localhost:80"}).status_code == 200


def test_bodies_are_bounded(compiled: Compiled) -> None:
    with running(compiled.teacher, draft=0, max_body_bytes=1000) as server:
        answer = server.chat("x" * 1000)
        assert answer.status_code == 413 and "1,000 bytes" in answer.json()["error"]["message"]
        assert server.chat("x").status_code == 200


@pytest.mark.parametrize("shown", [False, True])
def test_what_was_said_is_listed_by_the_operators_word_only(compiled: Compiled, shown: bool) -> None:
    with running(compiled.teacher, draft=0, show_prompts=shown) as server:
        words: Any = server.post("/v1/chat/completions", **HELLO).json()["choices"][0]["message"]["content"]
        told = server.http.get("/daari/requests").text + server.http.get("/metrics").text
        assert ("a secret of mine" in told) == shown and words not in told
        assert json.loads(server.http.get("/daari/requests").text)["requests"][0]["tokens"] == 20


class Idle:
    """A server that ends at once."""

    force_exit = False

    def __init__(self, *_: Any) -> None: ...

    def run(self, sockets: list[socket.socket]) -> None: ...


def test_where_it_listens_is_an_information_and_shown_by_default(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(run, "Server", Idle)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    shown = signature(server).parameters["log_level"].default
    with caplog.at_level(shown, "daari_mlx.server"), closing(run.listen(ServeOptions(port=0))) as sock:
        run.serve(cast(Any, None), sock)
        port = sock.getsockname()[1]
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("INFO", f"listening on http://127.0.0.1:{port}")
    ]
