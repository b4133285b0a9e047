"""A server that learns says the same words; what one key's answers taught is drafted to no other key."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
from graphs import Compiled
from serving import Running, process, running

from daari_mlx.learn.scopes import Apart, Together
from daari_mlx.learn.start import learner_for

TEXT = "Your card was charged 12.50 at the station, call 555 to stop it"


def asked(server: Running, key: str) -> tuple[Any, int]:
    """What is said to the text, and how many of its tokens were drafted in vain or not."""
    body = {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 40}
    made = server.http.post("/v1/chat/completions", json=body, headers={"x-api-key": key}).json()["choices"][0]
    return made["message"]["content"], made["daari"]["accepted"]


def test_words_stay_and_memories_are_apart(compiled: Compiled) -> None:
    model, tokenizer = compiled.teacher.model, compiled.teacher.tokenizer
    learners = Apart(lambda: learner_for(model, tokenizer))
    with running(compiled.teacher, draft=4, learners=learners, api_key=["one", "two"]) as server:
        expected, first = asked(server, "one")
        for learner in learners._learners.values():
            learner.wait()
        again, second = asked(server, "one")
        other, fresh = asked(server, "two")
        assert expected == again == other
        assert fresh == first < second
    learners.close()


def test_where_all_may_share_they_do(compiled: Compiled) -> None:
    learner = learner_for(compiled.teacher.model, compiled.teacher.tokenizer)
    learners = Together(learner)
    with running(compiled.teacher, draft=4, learners=learners, api_key=["one", "two"]) as server:
        expected, first = asked(server, "one")
        learner.wait()
        assert asked(server, "two")[0] == expected
        learner.wait()
        assert asked(server, "two")[1] > first
    learners.close()


@pytest.mark.slow
def test_a_hangup_ends_no_server_that_learns(tiny_teacher_path: Path, tmp_path: Path) -> None:
    server, url = process("--model", tiny_teacher_path, "--learn", tmp_path / "graph", "--share-learning")
    try:
        server.send_signal(signal.SIGHUP)
        body = {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 8}
        assert httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).status_code == 200
        server.terminate()
        assert server.wait(60) == 0
    finally:
        server.kill()
        server.wait()
