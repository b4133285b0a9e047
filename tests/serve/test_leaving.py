"""A client that leaves, wherever its request is, frees its place; an error ends one request; SIGTERM ends well."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from graphs import Compiled
from serving import Running, running
from serving import process as server_process

ENDLESS = {"prompt": [5] * 20, "logit_bias": {"2": -100}}  # until the context is full


@pytest.fixture(scope="module")
def busy(compiled: Compiled) -> Iterator[Running]:
    """A server with room for one answer at a time."""
    with running(compiled.teacher, draft=0, decode_concurrency=1, queue_limit=2, prefill_step_size=8) as server:
        yield server


def until(true: Callable[[], bool], what: str) -> None:
    for _ in range(3000):
        if true():
            return
        time.sleep(0.01)
    raise AssertionError(f"{what} never came true")


def send(server: Running, path: str, **body: Any) -> socket.socket:
    """A request whose answer nobody has read yet."""
    text = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(text)}\r\n\r\n"
    made = socket.create_connection(("127.0.0.1", int(server.url.rsplit(":", 1)[1])))
    made.sendall(head.encode() + text)
    return made


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stage", ["queued", "prefill", "decoding"])
def test_who_leaves_frees_its_place(busy: Running, path: str, stream: bool, stage: str) -> None:
    worker = busy.service.worker
    until(lambda: not worker.running + worker.queued, "an idle server")
    words = "word " * (400 if stage == "prefill" else 5)
    messages = [{"role": "user", "content": words}]
    body: dict[str, Any] = {"max_tokens": 1000, "messages": messages}
    if path == "/v1/completions":
        body = {**ENDLESS, "prompt": [5] * (1500 if stage == "prefill" else 9)}
    elif path == "/v1/responses":
        body = {"input": messages}
    first = send(busy, "/v1/completions", **ENDLESS) if stage == "queued" else None
    if first is not None:
        until(lambda: worker.running == 1, "the one before")
    connection = send(busy, path, stream=stream, **body)
    if stage == "queued":
        until(lambda: worker.queued == 1, "a place in the queue")
    else:
        until(lambda: worker.running == 1, "a place")
    if stage == "decoding" and stream:
        connection.recv(64)
    connection.close()
    if first is not None:
        until(lambda: worker.queued == 0, "the queue without it")
        assert worker.running == 1, "the other one goes on"
        first.close()
    until(lambda: not worker.running + worker.queued, "a free place")
    assert busy.chat(max_tokens=2).status_code == 200
    assert all(record.finish is not None for record in busy.service.book.newest)


def test_a_full_queue_is_told_with_the_time_to_come_again(busy: Running) -> None:
    worker = busy.service.worker
    until(lambda: not worker.running + worker.queued, "an idle server")
    held = [send(busy, "/v1/completions", **ENDLESS)]
    until(lambda: worker.running == 1, "a row")
    for count in (1, 2):
        held.append(send(busy, "/v1/completions", **ENDLESS))
        until(lambda count=count: worker.queued == count, "a queue")
    for path, body in (
        ("/v1/completions", ENDLESS),
        ("/v1/messages", {"max_tokens": 2, "messages": [{"role": "user", "content": "x"}]}),
    ):
        response = busy.post(path, **body)
        assert response.status_code == 429 and int(response.headers["retry-after"]) >= 1
        assert "2 answers wait" in response.json()["error"]["message"]
    assert busy.http.get("/health").json() == {"status": "ok", "failure": None, "running": 1, "queued": 2}
    for one in held:
        one.close()
    until(lambda: not worker.running + worker.queued, "an idle server")


def test_a_time_limit_ends_an_answer(compiled: Compiled) -> None:
    with running(compiled.teacher, draft=0, timeout=0.05) as server:
        whole = server.post("/v1/completions", **ENDLESS)
        assert whole.status_code == 503 and "0.05 seconds" in whole.json()["error"]["message"]
        streamed = server.post("/v1/completions", stream=True, **ENDLESS).text
        assert "0.05 seconds" in streamed.splitlines()[-2]
        until(lambda: not server.service.worker.running, "a free place")


def test_an_error_of_one_request_is_its_own(compiled: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    from daari_mlx.decode.options import Sampling

    class Broken(Exception):
        pass

    def broken(logprobs: Any) -> Any:
        raise Broken("this row's own")

    monkeypatch.setattr(Sampling, "sampler", lambda self, tokenizer: broken)
    with running(compiled.teacher, draft=0) as server:
        expected = server.chat(max_tokens=60).json()["choices"][0]["message"]
        answers: list[httpx.Response] = []
        threads = [
            threading.Thread(
                target=lambda t=t: answers.append(
                    httpx.post(
                        f"{server.url}/v1/chat/completions",
                        json={"messages": [{"role": "user", "content": "hello"}], "max_tokens": 60, "temperature": t},
                        timeout=60,
                    )
                )
            )
            for t in (0.0, 1.0, 0.0)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(answer.status_code for answer in answers) == [200, 200, 500]
        failed = next(answer for answer in answers if answer.status_code == 500)
        assert "Broken" in failed.json()["error"]["message"]
        good = [answer.json()["choices"][0]["message"] for answer in answers if answer.status_code == 200]
        assert good == [expected, expected]


def test_a_failing_engine_is_made_anew_and_health_tells_the_truth(compiled: Compiled) -> None:
    with running(compiled.teacher, draft=0) as server:
        expected = server.chat().json()["choices"][0]["message"]
        worker = server.service.worker
        engine = worker._engine
        assert engine is not None

        def fails() -> Any:
            raise RuntimeError("all of it")

        engine.step = fails  # type: ignore[method-assign]
        assert server.chat().status_code == 500
        until(lambda: worker._engine is not engine, "another engine")
        assert server.http.get("/health").status_code == 200
        assert server.chat().json()["choices"][0]["message"] == expected
        worker._make_engine = fails
        worker._engine.step = fails  # type: ignore[method-assign, union-attr]
        assert server.chat().status_code == 500
        until(lambda: not worker.healthy, "a broken engine")
        told = server.http.get("/health")
        assert told.status_code == 503 and "all of it" in told.json()["failure"]
        assert server.chat().status_code == 503


def test_a_new_graph_takes_over_between_answers(compiled: Compiled) -> None:
    from daari_mlx.serve.run import drafting

    with running(compiled.teacher, draft=3) as server:
        before = server.chat("Your card was charged", max_tokens=40).json()["choices"][0]
        assert before["daari"]["accepted"] == 0
        service = server.service
        service.worker.renew(*drafting(service.teacher, compiled.graph, service.options, 3))
        after = server.chat("Your card was charged", max_tokens=40).json()["choices"][0]
        assert after["daari"]["accepted"] > 0 and after["message"] == before["message"]


def test_sigterm_finishes_what_runs_and_refuses_what_comes(tiny_teacher_path: Path) -> None:
    process, url = server_process("--model", tiny_teacher_path, "--num-draft-tokens", 0)
    with httpx.stream(
        "POST", f"{url}/v1/completions", json={**ENDLESS, "max_tokens": 300, "stream": True}, timeout=60
    ) as response:
        lines = response.iter_lines()
        next(lines)
        process.send_signal(signal.SIGTERM)
        until(lambda: _refused(url), "a server that takes nothing")
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]" and '"finish_reason":"length"' in rest[-2]
    assert process.wait(60) == 0


def _refused(url: str) -> bool:
    try:
        return httpx.post(f"{url}/v1/completions", json={"prompt": "x", "max_tokens": 1}).status_code == 503
    except httpx.HTTPError:
        return True


def test_many_clients_with_leavers_and_bad_ones(compiled: Compiled) -> None:
    with running(compiled.teacher, compiled.graph, draft=3) as server:
        expected = {text: server.chat(text, max_tokens=24).json()["choices"][0]["message"] for text in "abcd"}
        threads_before = threading.active_count()
        found: list[tuple[str, Any]] = []

        def client(number: int) -> None:
            for k in range(10):
                text = "abcd"[(number + k) % 4]
                if k % 5 == 3:
                    connection = send(
                        server, "/v1/chat/completions", stream=True, messages=[{"role": "user", "content": text}]
                    )
                    connection.close()
                elif k % 5 == 4:
                    found.append(("bad", server.chat(text, whatever=1).status_code))
                else:
                    found.append((text, server.chat(text, max_tokens=24).json()["choices"][0]["message"]))

        clients = [threading.Thread(target=client, args=(number,)) for number in range(6)]
        for one in clients:
            one.start()
        for one in clients:
            one.join()
        assert len(found) == 6 * 8
        assert all(value == (400 if text == "bad" else expected[text]) for text, value in found)
        worker = server.service.worker
        until(lambda: not worker.running + worker.queued, "an idle server")
        assert threading.active_count() <= threads_before + 1
