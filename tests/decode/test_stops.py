"""Stop strings: nothing behind the first is shown, counted or cached, however tokens and rounds cut the text."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import mlx_lm
import pytest
from graphs import Compiled, Scripted
from hypothesis import assume, given
from hypothesis import strategies as st
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.tokenizer_utils import NaiveStreamingDetokenizer, TokenizerWrapper
from zoo import Oracle

from daari_mlx import SpecEngine, generate, stream_generate
from daari_mlx.decode.stops import StopText
from daari_mlx.ground.errors import DaariError

PROMPT = [1, 40, 41, 42]
EOS = 2
TEXT = 'ok 👍🏽 done.\n\nUser: שלום "ನಮಸ್ಕಾರ"  two  spaces ;; {"a": 12}\n###\nEnd of the text. 你好 '


def expected_cut(tokenizer: Any, tokens: list[int], stops: list[str]) -> tuple[int, str] | None:
    """By looking at every beginning of the answer: how many tokens there are with the stop, and the text before it."""
    for count in range(1, len(tokens) + 1):
        text = tokenizer.decode(tokens[:count])
        places = [text.find(stop) for stop in stops if stop in text]
        if places:
            return count, text[: min(places)]
    return None


def fake(tokens: list[int], reason: str, log: list[Any]) -> Iterator[SimpleNamespace]:
    """Responses without a teacher; ``log`` tells which were asked for, and when they were closed."""
    try:
        for place, token in enumerate(tokens):
            log.append(token)
            yield SimpleNamespace(token=token, text="?", finish_reason=reason if place == len(tokens) - 1 else None)
    finally:
        log.append("closed")


def until_stop(responses: Iterator[Any], tokenizer: Any, stops: list[str]) -> Iterator[Any]:
    """The responses up to the token with which the text first holds one of ``stops``."""
    text = StopText(tokenizer.detokenizer, stops)
    for response in responses:
        ended = response.token in tokenizer.eos_token_ids
        response.text, stopped = text.take(None if ended else response.token, response.finish_reason is not None)
        if stopped:
            response.finish_reason = "stop"
            responses.close()  # type: ignore[attr-defined]
        yield response
        if stopped:
            return


PIECES = st.integers(0, len(TEXT) - 1).flatmap(
    lambda a: st.integers(a + 1, min(a + 12, len(TEXT))).map(lambda b: TEXT[a:b])
)


@given(
    stops=st.lists(PIECES | st.sampled_from(["never", "User;", "\n\n\n", " ", "👍🏻"]), min_size=1, max_size=3),
    naive=st.booleans(),
    start=st.integers(0, 40),
    ends=st.booleans(),
)
def test_it_stops_where_a_look_at_every_beginning_says(
    tiny_teacher: tuple[Any, Any], stops: list[str], naive: bool, start: int, ends: bool
) -> None:
    wrapper = tiny_teacher[1]
    tokenizer = TokenizerWrapper(wrapper._tokenizer, NaiveStreamingDetokenizer) if naive else wrapper
    answer = tokenizer.encode(TEXT, add_special_tokens=False)[start:]
    assume(tokenizer.decode(answer)[0] not in " \ufffd")  # mlx-lm drops a space there, and half a character
    log: list[Any] = []
    given_tokens = [*answer, EOS] if ends else answer
    found = list(until_stop(fake(given_tokens, "stop" if ends else "length", log), tokenizer, stops))
    text, cut = "".join(r.text for r in found), expected_cut(tokenizer, answer, stops)
    assert log[-1] == "closed" and [r.token for r in found] == log[:-1], "one response a token, none asked for behind"
    assert all(r.finish_reason is None for r in found[:-1])
    if cut is None:
        assert text == tokenizer.decode(answer) and len(found) == len(given_tokens)
        assert found[-1].finish_reason == ("stop" if ends else "length")
    else:
        assert (len(found), text) == cut and found[-1].finish_reason == "stop"


def test_text_that_may_begin_a_stop_is_held_back_until_that_is_decided(tiny_teacher: tuple[Any, Any]) -> None:
    tokenizer = tiny_teacher[1]
    tokens = [tokenizer.encode(c, add_special_tokens=False)[0] for c in "ab#c##d###"]
    shown = [r.text for r in until_stop(fake(tokens, "length", []), tokenizer, ["###"])]
    assert shown == ["a", "b", "", "#c", "", "", "##d", "", "", ""]


# --- behind a teacher


@pytest.mark.parametrize("block", [0, 1, 3, 8, 32])
@pytest.mark.parametrize("stop", ["User:", ["###", " two "], ["}\n##", "nothing"], "👍🏽", "."])
def test_an_accepted_block_ends_at_the_stop(tiny_teacher: tuple[Any, Any], stop: Any, block: int) -> None:
    tokenizer = tiny_teacher[1]
    answer = tokenizer.encode(TEXT, add_special_tokens=False)
    count, text = expected_cut(tokenizer, answer, [stop] if isinstance(stop, str) else stop)  # type: ignore[misc]
    truth = [*PROMPT, *answer, EOS]
    model = Scripted(truth)
    cache = make_prompt_cache(model)
    drafter = Oracle(truth, block=block, right=1.0) if block else None
    responses = stream_generate(model, tokenizer, PROMPT, -1, drafter=drafter, prompt_cache=cache, stop=stop)
    found = []
    for response in responses:
        found.append(copy.copy(response))
        if response.finish_reason is not None:
            assert cache[0].offset == len(PROMPT) + count, "exact before the last response is out"
    assert [r.token for r in found] == answer[:count] and "".join(r.text for r in found) == text
    assert [r.finish_reason for r in found] == [None] * (count - 1) + ["stop"]
    statistics = found[-1].statistics
    assert statistics.tokens == count == sum(statistics.sources.values()) == found[-1].generation_tokens
    assert sum(r.source is not None for r in found) == statistics.accepted
    assert cache[0].offset == len(PROMPT) + count
    rest = list(mlx_lm.stream_generate(model, tokenizer, answer[count : count + 1], max_tokens=3, prompt_cache=cache))
    assert [r.token for r in rest] == answer[count + 1 : count + 4], "the cache goes on from there"


@pytest.mark.parametrize("block", [0, 4])
def test_a_stop_at_the_budget_is_a_stop_and_one_beyond_it_is_not(tiny_teacher: tuple[Any, Any], block: int) -> None:
    tokenizer = tiny_teacher[1]
    answer = tokenizer.encode(TEXT, add_special_tokens=False)
    count, text = expected_cut(tokenizer, answer, ["User:"])  # type: ignore[misc]
    truth = [*PROMPT, *answer, EOS]
    for budget in range(1, count + 3):
        drafter = Oracle(truth, block=block, right=1.0) if block else None
        found = list(stream_generate(Scripted(truth), tokenizer, PROMPT, budget, drafter=drafter, stop="User:"))
        assert len(found) == min(budget, count)
        assert found[-1].finish_reason == ("length" if budget < count else "stop")
        said = "".join(r.text for r in found)
        assert said == (text if budget >= count else tokenizer.decode(answer[:budget]))


@pytest.mark.parametrize("length", [3, 20])
def test_closing_midway_leaves_an_exact_cache(tiny_teacher: tuple[Any, Any], length: int) -> None:
    tokenizer = tiny_teacher[1]
    answer = tokenizer.encode(TEXT, add_special_tokens=False)
    truth = [*PROMPT, *answer, EOS]
    model = Scripted(truth)
    cache = make_prompt_cache(model)
    responses = stream_generate(
        model, tokenizer, PROMPT, -1, drafter=Oracle(truth, block=6, right=1.0), prompt_cache=cache, stop="###"
    )
    for _ in range(length):
        next(responses)
    responses.close()
    assert cache[0].offset == len(PROMPT) + length


def test_a_graph_an_engine_and_the_next_turn(compiled: Compiled) -> None:
    model, tokenizer = compiled.teacher.model, compiled.teacher.tokenizer
    chat = [{"role": "user", "content": "Your parcel from RideLoop comes today between 2 and 4 pm. Track it."}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    whole = mlx_lm.generate(model, tokenizer, ids, max_tokens=60)
    stop = '"risk"'
    assert stop in whole
    options: dict[str, Any] = {"graph": compiled.graph, "num_draft_tokens": 8, "stop": [stop], "max_tokens": 60}
    assert generate(model, tokenizer, ids, **options) == whole[: whole.index(stop)]
    engine = SpecEngine(model, compiled.graph, tokenizer=tokenizer, num_draft_tokens=8)
    text, stats = engine.generate_chat(chat, stop=stop, max_tokens=60)
    assert text == whole[: whole.index(stop)] and stats["finish_reason"] == "stop" and stats["accepted"] > 0
    assert engine.cached is not None and engine.cache[0].offset == len(engine.cached)
    assert engine.generate_chat(chat, max_tokens=60)[0] == whole


@pytest.mark.parametrize("stop", ["", [""], ["a", ""], [None], 3, [7], {"a": 1}])
def test_a_stop_that_is_none_is_refused(tiny_teacher: tuple[Any, Any], stop: Any) -> None:
    with pytest.raises(DaariError, match=r"stop is .*none of them empty"):
        list(stream_generate(*tiny_teacher, PROMPT, 3, stop=stop))


@pytest.mark.parametrize("stop", [None, []])
def test_no_stop_is_no_stop(tiny_teacher: tuple[Any, Any], stop: Any) -> None:
    plain = [r.text for r in mlx_lm.stream_generate(*tiny_teacher, PROMPT, max_tokens=5)]
    assert [r.text for r in stream_generate(*tiny_teacher, PROMPT, 5, stop=stop)] == plain
