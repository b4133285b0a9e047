"""Many answers one after another and at once: no memory is kept, and what the system lends is given back."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import pytest
from graphs import Compiled

from daari_mlx import SpecEngine, stream_generate


def test_memory_does_not_grow_with_requests(compiled: Compiled) -> None:
    """Finished, closed and failed answers in turn; ``scripts/bench/bench_requests.py`` does it a thousand times."""
    engine = SpecEngine(
        compiled.teacher.model, compiled.graph, tokenizer=compiled.teacher.tokenizer, num_draft_tokens=4
    )
    prompts = [s.tokens[: s.answer_start] for s in compiled.sequences[:5]]

    def failing(tokens: mx.array, logits: mx.array) -> mx.array:
        raise ZeroDivisionError

    def serve(count: int) -> int:
        for number in range(count):
            options = {"logits_processors": [failing]} if number % 5 == 4 else {"stop": "never"}
            stream = engine.stream_tokens(prompts[number % 5], max_tokens=12, **options)
            try:
                for place, _ in enumerate(stream):
                    if number % 5 == 3 and place == 4:
                        break
            except ZeroDivisionError:
                assert number % 5 == 4
            stream.close()
        engine.reset()
        gc.collect()
        return mx.get_active_memory()

    after_ten = serve(10)
    assert serve(40) <= after_ten * 1.02


@pytest.mark.parametrize("drafts", [True, False])
def test_wired_limits_are_put_back_however_answers_end(
    compiled: Compiled, drafts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []

    @contextmanager
    def wired_limit(*_args: Any, **_options: Any) -> Iterator[None]:
        held.append(1)
        try:
            yield
        finally:
            held.pop()

    monkeypatch.setattr(importlib.import_module("mlx_lm.generate"), "wired_limit", wired_limit)
    calls = 0

    def failing(tokens: mx.array, logits: mx.array) -> mx.array:
        nonlocal calls
        calls += 1
        if calls > 3:
            raise ZeroDivisionError
        return logits

    def start(**options: Any) -> Any:
        prompt = compiled.sequences[0].tokens[: compiled.sequences[0].answer_start]
        graph = {"graph": compiled.graph, "num_draft_tokens": 4} if drafts else {}
        return stream_generate(
            compiled.teacher.model, compiled.teacher.tokenizer, prompt, max_tokens=8, **graph, **options
        )

    for response in start():
        assert response.finish_reason is not None or held == [1]
    assert held == []
    stream = start(stop="never")
    next(stream)
    assert held == [1]
    stream.close()
    assert held == []
    with pytest.raises(ZeroDivisionError):
        list(start(logits_processors=[failing]))
    assert held == []
