"""Loaded here, used there: MLX's streams belong to threads, and several answers may be under way."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from typing import Any

import mlx_lm
import pytest
from graphs import Compiled

from daari_mlx import SpecEngine, generate, stream_generate

TOKENS = 40


@pytest.fixture(scope="module")
def prompts(compiled: Compiled) -> list[list[int]]:
    return [s.tokens[: s.answer_start] for s in compiled.sequences[:4]]


@pytest.fixture(scope="module")
def expected(compiled: Compiled, prompts: list[list[int]]) -> list[str]:
    model, tokenizer = compiled.teacher.model, compiled.teacher.tokenizer
    return [mlx_lm.generate(model, tokenizer, p, max_tokens=TOKENS) for p in prompts]


def start(compiled: Compiled, prompt: list[int], **options: Any) -> Any:
    given = {"graph": compiled.graph, "num_draft_tokens": 5, "max_tokens": TOKENS, **options}
    return stream_generate(compiled.teacher.model, compiled.teacher.tokenizer, prompt, **given)


def text_of(stream: Any) -> str:
    return "".join(response.text for response in stream)


@pytest.mark.parametrize("drafts", [True, False])
def test_on_a_worker_thread(compiled: Compiled, prompts: list[list[int]], expected: list[str], drafts: bool) -> None:
    options = {} if drafts else {"graph": None}
    with ThreadPoolExecutor(1) as pool:
        for prompt, text in zip(prompts, expected, strict=True):
            assert pool.submit(lambda p=prompt: text_of(start(compiled, p, **options))).result() == text


def test_from_asyncio(compiled: Compiled, prompts: list[list[int]], expected: list[str]) -> None:
    async def run() -> list[str]:
        return [
            await asyncio.to_thread(
                generate,
                compiled.teacher.model,
                compiled.teacher.tokenizer,
                prompt,
                graph=compiled.path,
                num_draft_tokens=5,
                max_tokens=TOKENS,
            )
            for prompt in prompts
        ]

    assert asyncio.run(run()) == expected


def test_each_step_on_another_thread(compiled: Compiled, prompts: list[list[int]], expected: list[str]) -> None:
    """As a server does that pulls an answer through a pool."""
    stream = start(compiled, prompts[0])
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:
        text, pools = "", [one, two]
        while (response := pools[0].submit(next, stream, None).result()) is not None:
            text += response.text
            pools.reverse()
    assert text == expected[0]


@pytest.mark.parametrize("drafts", [True, False])
def test_answers_interleaved_in_one_thread(
    compiled: Compiled, prompts: list[list[int]], expected: list[str], drafts: bool
) -> None:
    options = {} if drafts else {"graph": None}
    texts = [""] * len(prompts)
    for responses in zip_longest(*(start(compiled, p, **options) for p in prompts)):
        texts = [t + (r.text if r is not None else "") for t, r in zip(texts, responses, strict=True)]
    assert texts == expected


def test_answers_in_two_threads_at_once(compiled: Compiled, prompts: list[list[int]], expected: list[str]) -> None:
    with ThreadPoolExecutor(2) as pool:
        for _ in range(3):
            assert list(pool.map(lambda p: text_of(start(compiled, p)), prompts)) == expected


def test_a_stopped_answer_does_not_disturb_the_others(
    compiled: Compiled, prompts: list[list[int]], expected: list[str]
) -> None:
    stopped, other = start(compiled, prompts[0]), start(compiled, prompts[1])
    text = next(other).text
    next(stopped)
    stopped.close()
    assert text + text_of(other) == expected[1]


def test_an_engine_made_here_answers_there(compiled: Compiled, expected: list[str]) -> None:
    engine = SpecEngine(
        compiled.teacher.model, compiled.graph, tokenizer=compiled.teacher.tokenizer, num_draft_tokens=5
    )
    chat = [{"role": "user", "content": "your code is 4711, do not tell anybody"}]
    ids = compiled.teacher.tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    plain = mlx_lm.generate(compiled.teacher.model, compiled.teacher.tokenizer, ids, max_tokens=TOKENS)
    for _ in range(2):
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(engine.generate_chat, chat, max_tokens=TOKENS).result()[0] == plain
        assert engine.generate_chat(chat, max_tokens=TOKENS)[0] == plain
