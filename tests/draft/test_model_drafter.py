"""A model as drafter: its cache follows the text whatever is rejected, its lengths follow chances and costs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import make_prompt_cache
from zoo import CONFIGS, VOCABULARY, WINDOW, build, plain_tokens

from daari_mlx.cost.length import CALIBRATION_EDGES, Calibration, Cost
from daari_mlx.draft.drafter import Context
from daari_mlx.draft.model import (
    FIRST_REST,
    LONGEST_REST,
    TIER,
    ModelDrafter,
    check_tokenizers,
    measure_draft_cost,
    read_tier,
)
from daari_mlx.ground.errors import DaariError
from daari_mlx.teacher.follower import BLOCK, Follower

FLAT = Cost((1, 64), (1.0, 1.0))
MODELS: dict[str, nn.Module] = {}


def model_of(name: str) -> nn.Module:
    if name not in MODELS:
        MODELS[name] = build(name)
    return MODELS[name]


def fresh_logits(model: nn.Module, text: list[int], rows: int) -> np.ndarray:
    return np.array(model(mx.array([text]), cache=make_prompt_cache(model))[0, -rows:])


def random_tokens(seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCABULARY, count).tolist()


# --- the cache that follows


@settings(max_examples=30)
@given(
    st.sampled_from(sorted(CONFIGS)),
    st.integers(1, 2 * WINDOW),
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(1, 4), st.booleans(), st.booleans()),
        min_size=1,
        max_size=7,
    ),
)
def test_what_is_read_next_is_what_a_fresh_cache_reads(
    name: str, start: int, turns: list[tuple[int, int, int, bool, bool]]
) -> None:
    """Own tokens are taken over in part, in whole or not at all; now and then the text itself is another one."""
    model = model_of(name)
    follower, text = Follower(model), random_tokens(0, start)
    for number, (own, taken, new, other, together) in enumerate(turns):
        if own:
            found = follower.block(text, own)[0] if together else [t for t, _ in follower.steps(text, own)]
            assert found == plain_tokens(model, text, own)
            text = text + found[:taken]
        if other:
            text = text[: len(text) // 2]
        text = text + random_tokens(number + 1, new)
        np.testing.assert_allclose(
            np.array(follower.read(text, min(new, 3))), fresh_logits(model, text, min(new, 3)), rtol=2e-3, atol=2e-3
        )


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_a_long_text_is_read_in_two_parts(name: str) -> None:
    model, text = model_of(name), random_tokens(3, BLOCK + 30)
    follower = Follower(model)
    np.testing.assert_allclose(np.array(follower.read(text, 2)), fresh_logits(model, text, 2), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "lfm2"])
def test_only_what_is_new_is_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second turn and a partly accepted draft cost their new rows; nothing is read again without need."""
    model = model_of(name)
    fed: list[int] = []
    monkeypatch.setattr(type(model), "__call__", counted(type(model).__call__, fed))
    follower, text = Follower(model), random_tokens(0, 40)
    own = follower.block(text, 5)[0]
    assert fed == [40, 1, 1, 1, 1]
    fed.clear()
    text = [*text, *own, 9]
    own = follower.block(text, 3)[0]
    assert fed == [2, 1, 1], "all was taken over"
    fed.clear()
    text = [*text, own[0], 9, 8]
    follower.read(text)
    assert fed == ([2] if name == "llama" else [3]), (
        "what cannot be trimmed is fed again from where it went its own way"
    )
    fed.clear()
    follower.read(text + random_tokens(1, 30))
    assert fed == [30]


def counted(call: Any, fed: list[int]) -> Any:
    def counting(self: nn.Module, inputs: mx.array, *args: Any, **kwargs: Any) -> Any:
        fed.append(inputs.shape[1])
        return call(self, inputs, *args, **kwargs)

    return counting


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_an_interrupted_forward_costs_a_new_cache_and_nothing_else(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, text = model_of(name), random_tokens(0, 20)
    follower = Follower(model)
    follower.read(text)
    steps = follower.steps([*text, 5], 6)
    next(steps)
    with monkeypatch.context() as patch:
        patch.setattr(type(model.layers[-1]), "__call__", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            next(steps)
    longer = [*text, 5, 6, 7]
    np.testing.assert_allclose(np.array(follower.read(longer)), fresh_logits(model, longer, 1), rtol=2e-3, atol=2e-3)


# --- the drafter


class Said:
    """A text that grows as the teacher would say it."""

    def __init__(self, model: nn.Module, prompt: list[int], count: int) -> None:
        self.truth = prompt + plain_tokens(model, prompt, count)
        self.context = Context(list(prompt), None)

    def says(self, count: int, *, wrong: bool = False) -> None:
        place = len(self.context.tokens)
        self.context.tokens += self.truth[place : place + count]
        if wrong:
            self.context.tokens[-1] = (self.context.tokens[-1] + 1) % VOCABULARY


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_a_model_that_drafts_for_itself_is_always_right(name: str) -> None:
    model = model_of(name)
    said, drafter = Said(model, [1, 5, 9], 60), ModelDrafter(model, num_draft_tokens=5)
    for taken in [1, 6, 3, 6, 2, 4] * 2:
        draft = drafter.draft(said.context, 30)
        place = len(said.context.tokens)
        assert draft.tokens == said.truth[place : place + 5]
        assert len(draft.probabilities) == 5 and all(0 < p <= 1 for p in draft.probabilities)
        assert {draft.source_of(k) for k in range(5)} == {"model"}
        said.says(taken)


def test_limits_are_kept_and_nothing_is_drafted_behind_an_end_or_out_of_the_vocabulary() -> None:
    model = model_of("llama")
    said = Said(model, [1, 5, 9], 20)
    answer = said.truth[3:]
    assert len(ModelDrafter(model, num_draft_tokens=8).draft(said.context, 3).tokens) == 3
    end = answer[4]
    first = answer.index(end)
    for options in ({"num_draft_tokens": 8}, {"cost": FLAT, "draft_cost": 0.0}):
        ended = ModelDrafter(model, ends=[end], **options).draft(said.context, 12)
        assert ended.tokens == answer[: first + 1][: len(ended.tokens)] and len(ended.tokens) <= first + 1
        strange = ModelDrafter(model, vocab_size=max(answer[:8]), **options).draft(said.context, 8)
        assert all(token < max(answer[:8]) for token in strange.tokens)


def test_the_context_of_the_drafting_model_is_kept() -> None:
    model = build("qwen3")
    model.args.max_position_embeddings = 12
    drafter = ModelDrafter(model, num_draft_tokens=8)
    assert len(drafter.draft(Context(random_tokens(0, 9), None), 8).tokens) == 3
    assert drafter.draft(Context(random_tokens(0, 12), None), 8).tokens == []


def test_without_a_length_the_costs_are_needed() -> None:
    model = model_of("llama")
    for options in ({}, {"cost": FLAT}, {"draft_cost": 0.1}):
        with pytest.raises(ValueError, match="needs"):
            ModelDrafter(model, **options)


def free_model_drafter(**options: Any) -> ModelDrafter:
    return ModelDrafter(model_of("llama"), **{"cost": FLAT, "draft_cost": 0.05, **options})


def rounds(drafter: ModelDrafter, right: bool, count: int) -> Iterator[int]:
    """The drafted length of each of ``count`` rounds, in which all is kept or nothing."""
    context = Context([1, 5, 9], None)
    for _ in range(count):
        draft = drafter.draft(context, 8)
        yield len(draft.tokens)
        if right:
            context.tokens += [*draft.tokens, *plain_tokens(drafter.model, context.tokens + draft.tokens, 1)]
        else:
            own = draft.tokens[0] if draft.tokens else 3
            context.tokens.append((own + 1) % VOCABULARY)


def test_drafts_grow_while_they_come_true_and_stop_while_they_do_not() -> None:
    good = list(rounds(free_model_drafter(), True, 12))
    assert sum(good[-3:]) > sum(good[:3]) and good[-1] >= 6
    bad = list(rounds(free_model_drafter(draft_cost=0.4), False, 120))
    assert bad[0] >= 0 and sum(bad) <= 20, "a drafter that is always wrong costs some tokens, not one a round"
    assert 0 in bad


def test_a_costly_drafter_drafts_less_and_one_that_cannot_pay_says_so() -> None:
    cheap, dear = (sum(rounds(free_model_drafter(draft_cost=c), True, 12)) for c in (0.02, 0.5))
    assert dear < cheap
    assert "costs 1.20" in str(free_model_drafter(draft_cost=1.2).off)
    assert free_model_drafter().off is None
    assert ModelDrafter(model_of("llama"), num_draft_tokens=2).off is None


def test_a_rest_is_announced_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = free_model_drafter()
    drafter._kept, drafter._judged = 0.0, 20.0
    context, announced = Context([1, 2, 3], None), []
    while len(announced) < 2 + FIRST_REST:
        announced.append(drafter.draft(context, 8))
        context.tokens.append(4)
    assert [draft.rest for draft in announced[: FIRST_REST + 1]] == list(range(FIRST_REST, -1, -1))
    assert all(not draft.tokens for draft in announced[: FIRST_REST + 1])
    assert drafter._rest <= LONGEST_REST
    other = Context([7, 7, 7], None)
    drafter._kept = drafter._judged = 20.0
    assert drafter.draft(other, 8).tokens, "a rest belongs to its answer"


def test_another_answer_teaches_nothing_about_the_draft_before() -> None:
    drafter = free_model_drafter()
    drafter.draft(Context([1, 5, 9], None), 8)
    before = drafter.hope
    drafter.draft(Context(random_tokens(5, 30), None), 8)
    assert drafter.hope == before


def test_a_model_that_takes_no_blocks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("daari_mlx.draft.model.refuses_blocks", lambda _: "odd: its blocks differ")
    with pytest.raises(DaariError, match="cannot draft: odd"):
        ModelDrafter(model_of("llama"), num_draft_tokens=3)


def test_the_cost_of_a_drafted_token_is_measured_against_the_teacher() -> None:
    assert measure_draft_cost(model_of("llama"), model_of("llama"), repeats=3) > 0
    short = build("qwen3")
    short.args.max_position_embeddings = 20
    assert measure_draft_cost(short, model_of("llama"), repeats=3) > 0


def test_measuring_the_cost_of_a_drafted_token_ends_with_its_time() -> None:
    model, forwards = model_of("llama"), 0

    class Counting(type(model)):  # type: ignore[misc]
        def __call__(self, *args: Any, **options: Any) -> Any:
            nonlocal forwards
            forwards += 1
            return super().__call__(*args, **options)

    model.__class__ = Counting
    assert measure_draft_cost(model, model_of("llama"), repeats=10_000, seconds=0.0) > 0
    assert forwards < 10


# --- what is checked when it is loaded


def test_tokenizers_are_compared_by_their_vocabulary(tiny_teacher: tuple[Any, Any]) -> None:
    tokenizer = tiny_teacher[1]
    check_tokenizers(tokenizer, tokenizer)

    class Swapped:
        """The same size, two words changed places."""

        def get_vocab(self) -> dict[str, int]:
            vocabulary = dict(tokenizer.get_vocab())
            first, second = list(vocabulary)[:2]
            vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
            return vocabulary

    with pytest.raises(DaariError, match=r"small-model has.*Swapped.*tiny_teacher") as found:
        check_tokenizers(Swapped(), tokenizer, "small-model")
    assert str(found.value).count("vocabulary ") == 2, "both are named"


def test_a_tier_brings_its_calibration(tmp_path: Path) -> None:
    assert read_tier(tmp_path)[0](0.9) == Calibration()(0.9)
    bins = len(CALIBRATION_EDGES) + 1
    counts = {"kept": [10.0] * bins, "judged": [20.0] * bins}
    (tmp_path / TIER).write_text(json.dumps({"calibration": counts}))
    assert read_tier(tmp_path)[0](0.99) == pytest.approx(0.58, abs=0.03)
    for damage in ({}, {"calibration": {"kept": [1], "judged": [1]}}, {"calibration": 3}):
        (tmp_path / TIER).write_text(json.dumps(damage))
        with pytest.raises(DaariError, match="damaged"):
            read_tier(tmp_path)
