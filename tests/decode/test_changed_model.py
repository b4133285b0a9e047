"""A model that is changed between two answers: what the engine, drafters and taps kept is no longer used."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
import pytest
from graphs import Compiled
from mlx.utils import tree_flatten
from mlx_lm.tuner.utils import linear_to_lora_layers, remove_lora_layers
from zoo import build

from daari_mlx import SpecEngine
from daari_mlx.decode.refusals import check_kv_quantisation
from daari_mlx.decode.speculative import SpeculativeModel
from daari_mlx.draft.drafter import Context
from daari_mlx.draft.lookup import LookupDrafter
from daari_mlx.draft.model import ModelDrafter
from daari_mlx.teacher.load import Teacher

FIRST = [{"role": "user", "content": "Your parcel from RideLoop comes today between 2 and 4 pm. Track it."}]
OPTIONS: dict[str, Any] = {"max_tokens": 24}


def adapt(model: Any, seed: int = 1) -> None:
    mx.random.seed(seed)
    linear_to_lora_layers(model, 3, {"rank": 4, "scale": 20.0, "dropout": 0.0})
    for _, module in model.named_modules():
        if "lora_b" in module:
            module.lora_b = mx.random.normal(module.lora_b.shape) * 0.05
    model.eval()
    mx.eval(model.parameters())


def scale(model: Any, value: float) -> None:
    for _, module in model.named_modules():
        if "lora_b" in module:
            module.scale = value


def swap(model: Any) -> None:
    other = copy.deepcopy(model)
    remove_lora_layers(other)
    adapt(other, seed=2)
    model.load_weights([(k, v) for k, v in tree_flatten(other.parameters()) if "lora_" in k], strict=False)


def shrink(model: Any) -> None:
    for _, module in model.named_modules():
        if "lora_b" in module:
            module.lora_b *= 0.2


CHANGES: dict[str, Callable[[Any], Any]] = {
    "switched off": lambda m: scale(m, 0.0),
    "another adapter": swap,
    "changed in place": shrink,
    "removed": remove_lora_layers,
    "quantised": lambda m: nn.quantize(m, group_size=32, bits=4),
}


@pytest.fixture
def model(compiled: Compiled) -> Any:
    return copy.deepcopy(compiled.teacher.model)


def context(tokens: list[int]) -> Context:
    return Context(list(tokens), None)


def plain(model: Any, compiled: Compiled) -> str:
    tokenizer = compiled.teacher.tokenizer
    ids = tokenizer.apply_chat_template(FIRST, add_generation_prompt=True, return_dict=False)
    return str(mlx_lm.generate(model, tokenizer, ids, **OPTIONS))


@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize("name", CHANGES)
def test_an_engine_answers_as_the_model_is_now(name: str, drafts: bool, model: Any, compiled: Compiled) -> None:
    adapt(model)
    drafter = LookupDrafter(num_draft_tokens=4) if drafts else None
    engine = SpecEngine(model, tokenizer=compiled.teacher.tokenizer, drafter=drafter, num_draft_tokens=4)
    before = plain(model, compiled)
    for _ in range(2):
        text, stats = engine.generate_chat(FIRST, **OPTIONS)
        assert text == before
    assert stats["prompt_tokens"] == 1, "what did not change is kept"
    CHANGES[name](model)
    now = plain(model, compiled)
    assert now != before, "the change shows in the answer, else this test shows nothing"
    assert engine.generate_chat(FIRST, **OPTIONS)[0] == now


def test_a_graph_drafts_for_its_own_teacher_only(model: Any, compiled: Compiled) -> None:
    """The words are right in any case; that drafting is off, and why, is told until the teacher is itself again."""
    engine = SpecEngine(model, compiled.graph, tokenizer=compiled.teacher.tokenizer, num_draft_tokens=4)
    own = plain(model, compiled)
    text, stats = engine.generate_chat(FIRST, **OPTIONS)
    assert text == own and stats["drafted"] > 0
    adapt(model)
    text, stats = engine.generate_chat(FIRST, **OPTIONS)
    assert text == plain(model, compiled) != own and stats["drafted"] == 0
    assert "another teacher" in stats["drafting_off"] and "adapter" in stats["drafting_off"]
    remove_lora_layers(model)
    text, stats = engine.generate_chat(FIRST, **OPTIONS)
    assert text == own and stats["drafted"] > 0 and stats["drafting_off"] is None


@pytest.mark.parametrize("length", [0, 4])
def test_tokens_that_were_added_to_the_tokenizer_end_drafts(
    length: int, model: Any, compiled: Compiled, tiny_teacher_path: Path
) -> None:
    tokenizer = mlx_lm.load(str(tiny_teacher_path))[1]
    engine = SpecEngine(model, compiled.graph, tokenizer=tokenizer, num_draft_tokens=length)
    expected = engine.generate_chat(FIRST, **OPTIONS)[0]
    tokenizer.add_tokens(["<one more>"])
    text, stats = engine.generate_chat(FIRST, **OPTIONS)
    assert text == expected and stats["drafted"] == 0
    assert ("num_draft_tokens is 0" if length == 0 else "tokenizer") in stats["drafting_off"]


def test_a_model_that_drafts_says_what_it_would_say_now(compiled: Compiled) -> None:
    """As one that is made anew, block for block."""
    text = [1, 5, 9, 33, 2, 7]
    for drafts in (1, 5):
        model: Any = build("llama")
        drafter = ModelDrafter(model, num_draft_tokens=drafts)
        first = drafter.draft(context(text), drafts).tokens
        model.load_weights([(k, v + 0) for k, v in tree_flatten(build("llama", seed=3).parameters())])
        fresh = ModelDrafter(model, num_draft_tokens=drafts).draft(context(text), drafts).tokens
        assert drafter.draft(context(text), drafts).tokens == fresh != first


def test_a_pairs_review_is_that_of_the_verifier_as_it_is(compiled: Compiled) -> None:
    model: Any = build("llama")
    teacher = Teacher(model, compiled.teacher.tokenizer, "made up")
    pair = SpeculativeModel(teacher, teacher, block_size=2)
    first = pair.review([1, 5, 9, 33], [2, 7])
    model.model.layers[0].mlp.down_proj.weight[...] = mx.zeros((32, 64))
    fresh = SpeculativeModel(teacher, teacher, block_size=2).review([1, 5, 9, 33], [2, 7])
    assert pair.review([1, 5, 9, 33], [2, 7]) == fresh != first


def test_what_kv_quantisation_a_model_bears_is_asked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("daari_mlx.decode.refusals._trace", lambda *given: asked.append(given))
    model: Any = build("llama")
    for expected in (1, 1):
        check_kv_quantisation(model, [], 8, 32)
        assert len(asked) == expected
    model.model.layers[0] = build("llama", seed=1).layers[0]
    check_kv_quantisation(model, [], 8, 32)
    assert len(asked) == 2
