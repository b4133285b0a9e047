"""`SpecEngine`: the same answers as a fresh engine gives, with only what is new prefilled."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx_lm
import pytest
from graphs import Compiled, random_graph
from zoo import build

from daari_mlx import SpecEngine
from daari_mlx.graph.artifact import save_graph
from daari_mlx.ground.errors import DaariError

Chat = list[dict[str, str]]
FIRST: Chat = [{"role": "user", "content": "Your parcel from RideLoop comes today between 2 and 4 pm. Track it."}]
OTHER: Chat = [{"role": "user", "content": "mum says dinner at 7, bring the cake pls"}]
OPTIONS: dict[str, Any] = {"max_tokens": 50}


def engine_of(compiled: Compiled, **options: Any) -> SpecEngine:
    given = {"tokenizer": compiled.teacher.tokenizer, "num_draft_tokens": 6, **options}
    return SpecEngine(compiled.teacher.model, compiled.graph, **given)


@pytest.fixture
def engine(compiled: Compiled) -> SpecEngine:
    return engine_of(compiled)


def ids_of(compiled: Compiled, chat: Chat) -> list[int]:
    return compiled.teacher.tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)


PLAIN: dict[tuple[int, ...], str] = {}


def plain(compiled: Compiled, chat: Chat) -> str:
    """What mlx-lm answers, computed once a chat."""
    ids = ids_of(compiled, chat)
    if tuple(ids) not in PLAIN:
        PLAIN[tuple(ids)] = mlx_lm.generate(compiled.teacher.model, compiled.teacher.tokenizer, ids, **OPTIONS)
    return PLAIN[tuple(ids)]


def next_turn(chat: Chat, answer: str, content: str = "and this one? win a free phone now") -> Chat:
    return [*chat, {"role": "assistant", "content": answer}, {"role": "user", "content": content}]


def check_still_right(engine: SpecEngine, compiled: Compiled) -> None:
    """Whatever happened before: the cache is what the engine takes it for."""
    for chat in (FIRST, OTHER, next_turn(FIRST, plain(compiled, FIRST))):
        assert engine.generate_chat(chat, **OPTIONS)[0] == plain(compiled, chat)
        assert engine.cached is not None and engine.cache[0].offset == len(engine.cached)


def test_an_answer_and_its_figures(engine: SpecEngine, compiled: Compiled) -> None:
    text, stats = engine.generate_chat(FIRST, **OPTIONS)
    assert text == plain(compiled, FIRST) and text.startswith('{"label"')
    assert {"tokens", "calls", "tokens_per_call", "acceptance_rate", "drafted", "accepted", "sources"} <= set(stats)
    assert stats["tokens_per_call"] == stats["tokens"] / stats["calls"] > 1
    assert stats["acceptance_rate"] == stats["accepted"] / stats["drafted"]
    assert sum(stats["sources"].values()) == stats["tokens"]
    assert stats["finish_reason"] == "stop" and stats["drafting_off"] is None
    assert stats["prompt_tokens"] == len(ids_of(compiled, FIRST))


def test_a_second_turn_prefills_only_what_is_new(engine: SpecEngine, compiled: Compiled) -> None:
    chat, known = FIRST, 0
    for turn in range(4):
        text, stats = engine.generate_chat(chat, **OPTIONS)
        assert text == plain(compiled, chat)
        assert stats["prompt_tokens"] == len(ids_of(compiled, chat)) - known
        assert turn == 0 or stats["prompt_tokens"] < 40
        known = len(engine.cached or [])
        chat = next_turn(chat, text, f"number {turn}")


def test_the_same_chat_again_takes_one_row(engine: SpecEngine, compiled: Compiled) -> None:
    first, _ = engine.generate_chat(FIRST, **OPTIONS)
    again, stats = engine.generate_chat(FIRST, **OPTIONS)
    assert again == first and stats["prompt_tokens"] == 1


@pytest.mark.parametrize("stop", [1, 2, 7])
@pytest.mark.parametrize("way", ["close", "break", "held", "throw"])
def test_an_abandoned_answer_leaves_it_right(compiled: Compiled, engine: SpecEngine, stop: int, way: str) -> None:
    stream = engine.stream_chat(FIRST, **OPTIONS)
    for _ in range(stop):
        next(stream)
    if way == "close":
        stream.close()
    elif way == "throw":
        with pytest.raises(KeyboardInterrupt):
            stream.throw(KeyboardInterrupt)
    elif way == "break":
        del stream
    if way != "held":
        assert len(engine.cached or []) == len(ids_of(compiled, FIRST)) + stop - 1
    check_still_right(engine, compiled)


def test_an_answer_that_was_never_finished_can_still_be(engine: SpecEngine, compiled: Compiled) -> None:
    """Two answers at once: each has a cache of its own, and the later one's is kept."""
    first, other = engine.stream_chat(FIRST, **OPTIONS), engine.stream_chat(OTHER, **OPTIONS)
    texts = ["", ""]
    for responses in zip(first, other, strict=False):
        texts = [text + response.text for text, response in zip(texts, responses, strict=True)]
    texts[0] += "".join(r.text for r in first)
    texts[1] += "".join(r.text for r in other)
    assert plain(compiled, OTHER).startswith(texts[1]) and plain(compiled, FIRST).startswith(texts[0])
    check_still_right(engine, compiled)


@pytest.mark.parametrize("calls", [1, 2, 7])
def test_an_exception_leaves_it_right(engine: SpecEngine, compiled: Compiled, calls: int) -> None:
    engine.generate_chat(OTHER, **OPTIONS)
    made = 0

    def failing(_: mx.array, logits: mx.array) -> mx.array:
        nonlocal made
        made += 1
        if made == calls:
            raise ZeroDivisionError
        return logits

    with pytest.raises(ZeroDivisionError):
        engine.generate_chat(FIRST, logits_processors=[failing], **OPTIONS)
    check_still_right(engine, compiled)


@pytest.mark.parametrize("options", [{"max_tokens": 0}, {"no_such_option": 1}, {"num_draft_tokens": 3}])
def test_a_refused_option_leaves_it_right(engine: SpecEngine, compiled: Compiled, options: dict[str, Any]) -> None:
    """The engine has its own draft length: giving another one is an error, not a choice."""
    engine.generate_chat(FIRST, **OPTIONS)
    with pytest.raises((DaariError, TypeError)):
        engine.generate_chat(OTHER, **options)
    check_still_right(engine, compiled)


def test_an_interrupted_prefill_leaves_it_right(engine: SpecEngine, compiled: Compiled) -> None:
    def stopping(done: int, _: int) -> None:
        if done >= 32:
            raise KeyboardInterrupt

    engine.generate_chat(OTHER, **OPTIONS)
    with pytest.raises(KeyboardInterrupt):
        engine.generate_chat(FIRST, prefill_step_size=16, prompt_progress_callback=stopping, **OPTIONS)
    check_still_right(engine, compiled)


def test_an_edited_history_is_read_again_from_the_edit_on(engine: SpecEngine, compiled: Compiled) -> None:
    text, _ = engine.generate_chat(FIRST, **OPTIONS)
    engine.generate_chat(next_turn(FIRST, text), **OPTIONS)
    edited = next_turn(FIRST, '{"label":"spam"}')
    answer, stats = engine.generate_chat(edited, **OPTIONS)
    assert answer == plain(compiled, edited)
    assert stats["prompt_tokens"] < len(ids_of(compiled, edited))
    shorter, stats = engine.generate_chat(FIRST, **OPTIONS)
    assert shorter == text and stats["prompt_tokens"] == 1
    check_still_right(engine, compiled)


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "mamba2", "lfm2"])
def test_every_kind_of_cache_goes_on_and_goes_back(name: str, compiled: Compiled) -> None:
    """What cannot be taken out of a cache is read again from the start, and is right."""
    model = build(name)
    engine = SpecEngine(model, tokenizer=compiled.teacher.tokenizer)
    history = [5, 40, 41, 42, 43, 44, 45]
    prompts = [history, [*history, 50, 51], [*history, 60], history[:3], [*history, 50, 51, 52] * 3]
    for prompt in prompts:
        expected = [r.token for r in mlx_lm.stream_generate(model, engine.tokenizer, prompt, max_tokens=12)]
        assert [r.token for r in engine.stream_tokens(prompt, max_tokens=12)] == expected


def test_reset_forgets(engine: SpecEngine, compiled: Compiled) -> None:
    engine.generate_chat(FIRST, **OPTIONS)
    engine.reset()
    assert engine.generate_chat(FIRST, **OPTIONS)[1]["prompt_tokens"] == len(ids_of(compiled, FIRST))


def test_no_messages_and_no_tokens_are_refused(engine: SpecEngine, compiled: Compiled) -> None:
    engine.generate_chat(FIRST, **OPTIONS)
    with pytest.raises(DaariError, match="'messages' is empty"):
        engine.generate_chat([])
    with pytest.raises(DaariError, match="prompt is empty"):
        list(engine.stream_tokens([]))
    check_still_right(engine, compiled)


# --- what it is made of


def test_everything_may_be_given_by_name(compiled: Compiled) -> None:
    engine = SpecEngine(compiled.teacher.source, compiled.path, num_draft_tokens=4)
    assert engine.generate_chat(FIRST, **OPTIONS)[0] == plain(compiled, FIRST)
    assert engine.graph is not None and engine.graph.size == 96


def test_the_tokenizer_of_a_loaded_model_is_found_by_the_graph(compiled: Compiled) -> None:
    engine = SpecEngine(compiled.teacher.model, str(compiled.path), num_draft_tokens=4)
    assert engine.generate_chat(FIRST, **OPTIONS)[0] == plain(compiled, FIRST)


@pytest.mark.parametrize("source", [None, 3, "no/such/folder", "x" * 5000, "nul\0byte", ["a"]])
def test_without_a_tokenizer_it_says_what_to_give(compiled: Compiled, tmp_path: Any, source: Any) -> None:
    graph = save_graph(random_graph(teacher={**compiled.graph.teacher, "source": source}), tmp_path / "graph", {})
    for given in (graph, None):
        with pytest.raises(DaariError, match="give tokenizer="):
            SpecEngine(compiled.teacher.model, given)


def test_a_graph_of_another_teacher_is_refused_when_it_is_made(compiled: Compiled) -> None:
    with pytest.raises(DaariError, match="another teacher"):
        SpecEngine(build("llama"), compiled.graph, tokenizer=compiled.teacher.tokenizer)


def test_without_a_graph_it_decodes_plainly(compiled: Compiled) -> None:
    engine = SpecEngine(compiled.teacher.model, tokenizer=compiled.teacher.tokenizer)
    text, stats = engine.generate_chat(FIRST, **OPTIONS)
    assert text == plain(compiled, FIRST) and stats["drafting_off"] == "no graph was given"
    assert stats["tokens_per_call"] == 1.0
    check_still_right(engine, compiled)
