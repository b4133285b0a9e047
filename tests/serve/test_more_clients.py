"""Further clients, unmodified: the command and library `llm`, and `instructor`, which reads answers into models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from serving import Running
from test_chat_api import plain
from test_clients import HELLO, Verdict

SYSTEM = "Answer in JSON."
TEXT: str = HELLO[0]["content"]


@pytest.fixture
def llm_folder(server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What docs/server.md says to write."""
    model = f'- model_id: local\n  model_name: default_model\n  api_base: "{server.url}/v1"\n  supports_schema: true\n'
    (tmp_path / "extra-openai-models.yaml").write_text(model, encoding="utf-8")
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    return tmp_path


def _llm(*words: str) -> str:
    made = subprocess.run(
        [sys.executable, "-m", "llm", *words], capture_output=True, text=True, stdin=subprocess.DEVNULL, env=os.environ
    )
    assert made.returncode == 0, made.stderr
    return made.stdout.removesuffix("\n")


@pytest.mark.slow
def test_llm_says_what_plain_says_streamed_or_not_and_goes_on(compiled: Any, llm_folder: Path) -> None:
    pytest.importorskip("llm")
    turn = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": TEXT}]
    asked = ["-m", "local", "-o", "max_tokens", "40"]
    _, first, _ = plain(compiled, turn)
    assert _llm(*asked, "-s", SYSTEM, TEXT, "--no-stream") == first
    assert _llm(*asked, "-s", SYSTEM, TEXT) == first
    turns = [*turn, {"role": "assistant", "content": first}, {"role": "user", "content": "And now?"}]
    _, second, _ = plain(compiled, turns)
    assert _llm("-c", *asked[2:], "And now?") == second


def test_llm_holds_an_answer_to_a_schema(llm_folder: Path) -> None:
    llm = pytest.importorskip("llm")
    answer = llm.get_model("local").prompt(TEXT, schema=Verdict, max_tokens=60)
    assert isinstance(Verdict.model_validate(json.loads(answer.text())), Verdict)


@pytest.mark.parametrize("mode", ["TOOLS", "JSON_SCHEMA"])
def test_instructor_reads_answers_into_a_model(openai: Any, mode: str) -> None:
    instructor = pytest.importorskip("instructor")
    client = instructor.from_openai(openai, mode=instructor.Mode[mode])
    asked = {"model": "tiny_teacher", "messages": HELLO, "response_model": Verdict, "max_tokens": 80, "max_retries": 0}
    made = client.chat.completions.create(**asked)
    assert isinstance(made, Verdict)
    if mode == "TOOLS":  # a partial model's schema has no required fields: this teacher never ends such a call
        return
    *_, last = client.chat.completions.create_partial(**asked)
    assert last.model_dump() == made.model_dump()
