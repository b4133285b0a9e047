"""A teacher's fingerprint tells apart whatever changes its states, and nothing else."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten
from mlx_lm.tuner.utils import linear_to_lora_layers
from mlx_lm.utils import load_tokenizer
from zoo import build

from daari_mlx.teacher.fingerprint import (
    context_length,
    describe,
    differences,
    fingerprint,
    fingerprint_model,
    fingerprint_tokenizer,
)


class Tokenizer:
    """As much of a tokenizer as is looked at."""

    def __init__(self, vocabulary: dict[str, int]) -> None:
        self.vocabulary = vocabulary

    def get_vocab(self) -> dict[str, int]:
        return self.vocabulary


WORDS = Tokenizer({"a": 0, "b": 1})


def adapted(seed: int) -> nn.Module:
    model = build("llama")
    mx.random.seed(seed)
    linear_to_lora_layers(model, 2, {"rank": 4, "scale": 20.0, "dropout": 0.0})
    model.eval()
    return model


def quantised(bits: int = 4) -> nn.Module:
    model = build("llama")
    nn.quantize(model, group_size=32, bits=bits)
    return model


def with_weight_changed(name: str) -> nn.Module:
    """One value of one weight, the first, is another."""
    model = build("llama")
    weight = dict(tree_flatten(model.parameters()))[name]
    changed = mx.array(weight)
    changed.reshape(-1)
    flat = mx.concatenate([weight.reshape(-1)[:1] + 1, weight.reshape(-1)[1:]])
    model.load_weights([(name, flat.reshape(weight.shape))], strict=False)
    return model


def test_it_is_json_and_the_same_for_the_same_teacher() -> None:
    first, second = fingerprint(build("llama"), WORDS), fingerprint(build("llama"), Tokenizer({"b": 1, "a": 0}))
    assert first == second == json.loads(json.dumps(first))
    assert first["quantisation"] is None and first["adapter"] is None and first["model_type"] == "llama"
    assert differences(first, second) == []


OTHERS = {
    "other seed": (lambda: build("llama", seed=1), {"weights"}),
    "other architecture": (lambda: build("qwen3"), {"model_type", "structure", "weights"}),
    "half precision": (lambda: build("llama", dtype=mx.bfloat16), {"structure", "weights"}),
    "4 bits": (quantised, {"structure", "quantisation", "weights"}),
    "adapter": (lambda: adapted(1), {"structure", "adapter", "weights"}),
    "one embedding": (lambda: with_weight_changed("model.embed_tokens.weight"), {"weights"}),
    "one norm": (lambda: with_weight_changed("model.layers.2.input_layernorm.weight"), {"weights"}),
}


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_another_teacher_differs(name: str) -> None:
    make, expected = OTHERS[name]
    ours, theirs = fingerprint(build("llama"), WORDS), fingerprint(make(), WORDS)
    assert set(differences(ours, theirs)) == expected


def test_bits_and_adapters_tell_apart() -> None:
    assert fingerprint_model(quantised(4))["quantisation"] == "4-bit affine, group 32"
    assert differences(fingerprint_model(quantised(4)), fingerprint_model(quantised(8)))[-2:] == [
        "quantisation",
        "weights",
    ]
    one, other = adapted(1), adapted(2)
    assert "adapter" in differences(fingerprint_model(one), fingerprint_model(other))
    assert fingerprint_model(adapted(1)) == fingerprint_model(one)


@pytest.mark.parametrize("change", ["quantise", "adapter", "weights"])
def test_a_teacher_that_was_changed_in_place_is_another_one(change: str) -> None:
    """Read once a model, but not from before it was quantised or adapted."""
    model = build("llama")
    before = fingerprint_model(model)
    assert fingerprint_model(model) is before, "reading it again costs a forward's time"
    if change == "quantise":
        nn.quantize(model, group_size=32, bits=4)
    elif change == "adapter":
        linear_to_lora_layers(model, 2, {"rank": 4, "scale": 20.0, "dropout": 0.0})
    else:
        model.load_weights(tree_flatten(build("llama", seed=1).parameters()))
    assert "weights" in differences(before, fingerprint_model(model))


@pytest.mark.parametrize("vocabulary", [{"a": 1, "b": 0}, {"a": 0, "c": 1}, {"a": 0, "b": 1, "c": 2}, {}])
def test_another_vocabulary_differs(vocabulary: dict[str, int]) -> None:
    model = build("llama")
    differing = differences(fingerprint(model, WORDS), fingerprint(model, Tokenizer(vocabulary)))
    assert "tokenizer" in differing and set(differing) <= {"tokenizer", "vocab_size"}


def test_tokens_that_are_no_text_are_hashed() -> None:
    assert len(fingerprint(build("llama"), Tokenizer({"\ud800": 0, "\n": 1}))["tokenizer"]) == 32


def test_where_it_came_from_is_no_difference() -> None:
    """A moved folder holds the same teacher."""
    ours = fingerprint(build("llama"), WORDS)
    assert differences({**ours, "source": "here"}, {**ours, "source": "there", "adapter_path": "x"}) == []


def test_a_teacher_is_described_in_one_line(tiny_teacher: tuple[Any, Any]) -> None:
    ours = fingerprint(*tiny_teacher)
    line = describe({**ours, "source": "folder/model"})
    assert "\n" not in line
    for part in ("folder/model", "not quantised", ours["weights"][:8], ours["tokenizer"][:8]):
        assert part in line
    assert "4-bit affine" in describe(fingerprint(quantised(), WORDS))
    assert "adapter" in describe(fingerprint(adapted(1), WORDS)) and "adapter" not in line


@pytest.mark.parametrize("value", [None, 3, [1], {"a": 1}, "", True])
def test_whatever_a_damaged_config_holds_can_be_described(value: Any) -> None:
    parts = ("source", "model_type", "quantisation", "adapter", "weights", "tokenizer")
    assert isinstance(describe(dict.fromkeys(parts, value)), str)
    ours = fingerprint(build("llama"), WORDS)
    if value is not None:
        assert differences({**ours, "weights": copy.deepcopy(value)}, ours) == ["weights"]


def test_the_context_is_what_the_configuration_says(tiny_teacher: tuple[Any, Any]) -> None:
    assert context_length(tiny_teacher[0]) == 2048
    assert context_length(build("qwen3")) == 4096
    assert context_length(SimpleNamespace(args=SimpleNamespace())) is None


@pytest.mark.parametrize("part", ["source", "model_type", "quantisation", "adapter", "weights", "tokenizer"])
@pytest.mark.parametrize("order", ["\x1b[31m", "\x07", "\n", "\r", "\x9b2J", "\u202e"])
def test_a_graph_from_elsewhere_gives_the_terminal_no_orders(part: str, order: str) -> None:
    assert order not in describe({part: f"x{order}y"})


def test_an_adapters_scale_is_part_of_the_teacher() -> None:
    """Older graphs say nothing of it and go on."""
    model = adapted(1)
    ours = fingerprint(model, WORDS)
    assert ours["adapter_scale"] == [20.0] and "at scale [20.0]" in describe(ours)
    for _, module in model.named_modules():
        if "lora_a" in module:
            module.scale = 0.0
    now = fingerprint(model, WORDS)
    assert differences(ours, now) == ["adapter_scale"] and differences(fingerprint(build("llama"), WORDS), now)
    older = {k: v for k, v in ours.items() if k != "adapter_scale"}
    assert differences(older, now) == differences(now, older) == []


def test_tokens_that_are_added_later_are_seen(tiny_teacher_path: Path) -> None:
    tokenizer = load_tokenizer(tiny_teacher_path)
    before = fingerprint_tokenizer(tokenizer)
    assert fingerprint_tokenizer(tokenizer) is before
    tokenizer.add_tokens(["<one more>"])
    after = fingerprint_tokenizer(tokenizer)
    assert after["vocab_size"] == before["vocab_size"] + 1 and after["tokenizer"] != before["tokenizer"]


def test_weights_changed_in_place_are_seen() -> None:
    model: Any = build("llama")
    before = fingerprint_model(model)
    model.model.norm.weight -= 1
    assert differences(before, fingerprint_model(model)) == ["weights"]
