"""What was read is read once: the next turn, another conversation with the same beginning, the next start."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from bench_dropin import tokenizer
from graphs import Compiled
from serving import Running, running
from zoo import CONFIGS, build, plain_tokens

from daari_mlx.batch.engine import BatchEngine
from daari_mlx.batch.request import Request
from daari_mlx.serve.cache_files import CacheFiles
from daari_mlx.serve.caches import PromptCaches

BEFORE = [5 + k % 90 for k in range(40)]
TEACHER = {"weights": "these"}


def answer(engine: BatchEngine, caches: PromptCaches, prompt: list[int], count: int = 12) -> tuple[list[int], int]:
    """The tokens of an answer, and how many of its prompt were known; as the worker asks for them."""
    known, cache = caches.fetch("", prompt)
    engine.add(Request(prompt, count, known=known, prompt_cache=cache, keep_cache=True, whole_cache=False))
    said: list[int] = []
    while len(engine):
        for event in engine.step():
            assert event.error is None
            said += [response.token for response in event.responses]
            if event.ended:
                caches.keep("", (prompt + said)[: event.held], event.prompt_cache)
    return said, known


@pytest.mark.parametrize("kind", sorted(CONFIGS))
@pytest.mark.parametrize("on_disk", [False, True])
def test_what_is_reused_says_what_a_fresh_cache_says(kind: str, on_disk: bool, tmp_path: Path) -> None:
    model: Any = build(kind)
    files = CacheFiles(str(tmp_path), TEACHER, 8, 1 << 30) if on_disk else None
    caches = PromptCaches(8, 1 << 30, files)
    engine = BatchEngine(model, tokenizer(()), prefill_step_size=16)
    first, known = answer(engine, caches, BEFORE)
    assert first == plain_tokens(model, BEFORE, 12) and known == 0
    if files is not None:
        caches.write()
        caches = PromptCaches(8, 1 << 30, files)
        caches.load()
        assert len(caches) == 1
    turn = [*BEFORE, *first, 7, 9, 11]
    second, known = answer(engine, caches, turn)
    assert second == plain_tokens(model, turn, 12) and known >= len(BEFORE)
    branch = [*BEFORE[:30], 99, 98, 97]
    third, known = answer(engine, caches, branch)
    assert third == plain_tokens(model, branch, 12) and known in (0, 30)


def test_the_budget_is_kept_and_what_is_larger_is_answered_all_the_same() -> None:
    model: Any = build("llama")
    engine = BatchEngine(model, tokenizer(()), prefill_step_size=16)
    one = PromptCaches(100, 1 << 30)
    answer(engine, one, BEFORE)
    budget = int(one.nbytes * 2.5)
    caches = PromptCaches(100, budget)
    for start in range(6):
        prompt = [50 + start, *BEFORE]
        assert answer(engine, caches, prompt)[0] == plain_tokens(model, prompt, 12)
        assert 0 < caches.nbytes <= budget and len(caches) <= 2
    small = PromptCaches(100, one.nbytes // 2)
    assert answer(engine, small, BEFORE)[0] == plain_tokens(model, BEFORE, 12)
    assert len(small) == 0
    for nothing in (PromptCaches(0, budget), PromptCaches(9, 0)):
        assert answer(engine, nothing, BEFORE)[1] == 0 and not nothing.wanted and len(nothing) == 0


def test_files_of_another_model_and_torn_ones_are_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model: Any = build("llama")
    engine = BatchEngine(model, tokenizer(()), prefill_step_size=16)
    files = CacheFiles(str(tmp_path), TEACHER, 8, 1 << 30)
    caches = PromptCaches(8, 1 << 30, files)
    answer(engine, caches, BEFORE)
    caches.write()
    (path,) = tmp_path.glob("*.safetensors")
    content = path.read_bytes()
    other = PromptCaches(8, 1 << 30, CacheFiles(str(tmp_path), {"weights": "others"}, 8, 1 << 30))
    other.load()
    assert len(other) == 0 and "another model" in caplog.text
    for length in (0, 5, 100, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        torn = PromptCaches(8, 1 << 30, files)
        torn.load()
        assert len(torn) == 0 and str(path) in caplog.text
    path.write_bytes(content)
    caches = PromptCaches(8, 1 << 30, files)
    caches.load()
    assert len(caches) == 1


def test_the_folder_keeps_within_its_budget(tmp_path: Path) -> None:
    model: Any = build("llama")
    engine = BatchEngine(model, tokenizer(()), prefill_step_size=16)
    caches = PromptCaches(8, 1 << 30, CacheFiles(str(tmp_path), TEACHER, 2, 1 << 30))
    for start in range(4):
        answer(engine, caches, [50 + start, *BEFORE])
        caches.write()
        time.sleep(0.01)
    kept = PromptCaches(8, 1 << 30, CacheFiles(str(tmp_path), TEACHER, 2, 1 << 30))
    kept.load()
    assert len(kept) == 2 and kept.fetch("", [53, *BEFORE, 1])[0] > 30 and kept.fetch("", [50, *BEFORE, 1])[0] < 30


def _cached(server: Running, messages: Any) -> tuple[int, str]:
    made = server.post("/v1/chat/completions", messages=messages, max_tokens=30).json()
    usage = made["usage"]
    return usage["prompt_tokens_details"]["cached_tokens"], made["choices"][0]["message"]["content"]


def test_a_server_reads_what_is_new_and_remembers_over_a_restart(compiled: Compiled, tmp_path: Path) -> None:
    chat: Any = [{"role": "system", "content": "Answer in JSON, and be brief about it."}]
    chat += [{"role": "user", "content": "Your card was charged 12.50"}]
    with running(compiled.teacher, compiled.graph, prompt_cache_dir=str(tmp_path)) as server:
        known, first = _cached(server, chat)
        assert known == 0
        turns = [*chat, {"role": "assistant", "content": first}, {"role": "user", "content": "And now?"}]
        template = server.service.template
        prompt = len(template.prompt_ids(chat))
        known, second = _cached(server, turns)
        assert known >= prompt - 1
        other = [chat[0], {"role": "user", "content": "Something else"}]
        assert 10 < _cached(server, other)[0] < prompt
        for _ in range(500):
            if not server.service.worker.caches.unwritten:
                break
            time.sleep(0.02)
        assert list(tmp_path.glob("*.safetensors")), "written while it is idle: a kill loses little"
    with running(compiled.teacher, compiled.graph, prompt_cache_dir=str(tmp_path)) as server:
        known, again = _cached(server, turns)
        assert known >= prompt - 1 and again == second


@pytest.mark.parametrize("kind", ["mamba2", "lfm2", "gemma3_text", "llama"])
def test_a_system_prompt_is_read_once_by_models_that_cannot_go_back(kind: str) -> None:
    """Where a cache cannot be cut, the beginning that the server names is kept by itself."""
    model: Any = build(kind)
    engine = BatchEngine(model, tokenizer(()), prefill_step_size=16)
    for end in (41, 42, 43):
        prompt = [*BEFORE, end, end + 1, end + 2]
        reading: list[tuple[int, int]] = []
        engine.add(Request(prompt, 8, shared=40, prompt_progress_callback=lambda *done, r=reading: r.append(done)))
        said: list[int] = []
        while len(engine):
            said += [r.token for event in engine.step() for r in event.responses]
        assert said == plain_tokens(model, prompt, 8)
        assert reading[0] == (40, 43)


def test_beginnings_are_shared_within_a_salt_only() -> None:
    engine = BatchEngine(build("llama"), tokenizer(()), prefill_step_size=16)
    reading: list[list[int]] = []
    for salt in ("one", "two", "two", "one"):
        reading.append([])
        prompt = [*BEFORE, 41, 42, 43]
        told: Any = lambda done, _, r=reading[-1]: r.append(done)  # noqa: E731
        engine.add(Request(prompt, 2, salt=salt, shared=40, prompt_progress_callback=told))
        while len(engine):
            engine.step()
    assert [len(done) > 1 and done[0] == 40 for done in reading] == [True] * 4
    assert len(engine._prefixes._kept) == 2, "read once for each"
