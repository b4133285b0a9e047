"""What is kept about a model is kept as long as the model is the same, and no longer."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from architectures import build as build_other
from mlx.utils import tree_flatten
from mlx_lm.tuner.utils import linear_to_lora_layers, remove_lora_layers
from zoo import CONFIGS, build

from daari_mlx.teacher import kept
from daari_mlx.teacher.kept import keep, stamp, unchanged
from daari_mlx.teacher.quirks import close_all, forward_rows
from daari_mlx.teacher.tap import FINAL, tap_model


def adapted(seed: int = 1) -> Any:
    model = build("llama")
    mx.random.seed(seed)
    linear_to_lora_layers(model, 2, {"rank": 4, "scale": 20.0, "dropout": 0.1})
    model.eval()
    mx.eval(model.parameters())
    return model


def same_values(model: Any) -> None:
    embedding = model.model.embed_tokens
    embedding.weight = embedding.weight + 0


def in_place(model: Any) -> None:
    model.model.layers[0].mlp.up_proj.weight -= 0.01


def assigned(model: Any) -> None:
    weight = model.model.embed_tokens.weight
    weight[...] = weight * 2


def scaled(model: Any) -> None:
    for _, module in model.named_modules():
        if "lora_a" in module:
            module.scale = 0.0


def reloaded(model: Any) -> None:
    model.load_weights([(k, v + 0) for k, v in tree_flatten(model.parameters()) if "lora_b" in k], strict=False)


def another_class(model: Any) -> None:
    norm = model.model.norm
    norm.__class__ = type("OtherNorm", (type(norm),), {"__call__": lambda self, x: 2 * x})


CHANGES: dict[str, Callable[[Any], Any]] = {
    "an array replaced by an equal one": same_values,
    "an array changed in place": in_place,
    "an array assigned to": assigned,
    "adapter switched off": scaled,
    "adapter's weights loaded": reloaded,
    "adapter removed": remove_lora_layers,
    "a module replaced": lambda m: setattr(m.model.layers[0], "mlp", build("llama").layers[0].mlp),
    "quantised": lambda m: nn.quantize(m, group_size=32, bits=4),
    "half precision": lambda m: m.set_dtype(mx.float16),
    "training": lambda m: m.train(),
    "layers swapped": lambda m: m.model.layers.reverse(),
    "a layer left out": lambda m: m.model.layers.pop(),
    "a number of a module": lambda m: setattr(m.model.norm, "eps", 1.0),
    "a number of the configuration": lambda m: setattr(m.args, "rope_theta", 5.0),
    "another class": another_class,
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_changes_answers_changes_the_stamp(name: str) -> None:
    model = adapted()
    before = stamp(model)
    assert stamp(model) == before
    CHANGES[name](model)
    assert stamp(model) != before


def test_an_array_that_is_read_whole_may_be_replaced_by_an_equal_one() -> None:
    """Gemma 3n does so in every forward."""
    model: Any = build("llama")
    before = stamp(model)
    model.model.norm.weight = model.model.norm.weight * 1
    assert stamp(model) == before
    for changed in (mx.ones(16), mx.ones(32, dtype=mx.float16), mx.zeros(32).at[31].add(1)):
        model.model.norm.weight = changed
        assert stamp(model) != before


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_arrays_of_every_kind_are_looked_into(dtype: mx.Dtype) -> None:
    model = build("llama", dtype=dtype)
    nn.quantize(model.model.layers[1], group_size=32, bits=4)
    for name, _ in tree_flatten(model.parameters()):
        holder: Any = model
        *path, last = name.split(".")
        for part in path:
            holder = holder[int(part)] if isinstance(holder, list) else holder[part]
        before = stamp(model)
        array = holder[last]
        array[...] = array + 1
        assert holder[last] is array and stamp(model) != before, name


@pytest.mark.parametrize("name", [*CONFIGS, "deepseek_v3"])
def test_forwards_and_our_own_hooks_are_no_change(name: str) -> None:
    model: Any = build(name) if name in CONFIGS else build_other(name)
    before = stamp(model)
    for layer in (FINAL, 0):
        tap_model(model, layer)
    forward_rows(model, mx.array([[1, 2, 3]]), None)
    assert stamp(model) == before
    close_all(model)
    assert stamp(model) == before


def test_an_id_that_is_used_again_is_told() -> None:
    model: Any = build("llama")
    ids, before = set(), stamp(model)
    for _ in range(50):
        model.model.norm.weight = mx.ones(320)  # each as the one before, often in its very place
        ids.add(id(model.model.norm.weight))
        now = stamp(model)
        assert now != before
        before = now
    assert len(ids) < 50, "no id was used again: this test shows nothing"


def test_nothing_is_kept_alive() -> None:
    gc.collect()  # records of models that are gone already
    model: Any = build("llama")
    before, known = stamp(model), len(kept._records)
    keep(model, "x", list)
    assert len(kept._records) == known + 1
    gone = [weakref.ref(model), weakref.ref(model.model.norm.weight), weakref.ref(model.layers[0])]
    del model
    gc.collect()
    assert [ref() for ref in gone] == [None] * 3 and len(kept._records) == known
    assert before != stamp(build("llama"))


def test_what_is_kept_is_made_once_until_the_model_changes() -> None:
    model, made = adapted(), 0

    def make() -> int:
        nonlocal made
        made += 1
        return made

    assert [keep(model, "x", make), keep(model, "x", make), keep(model, "y", make)] == [1, 1, 2]
    scaled(model)
    assert [keep(model, "x", make), keep(model, "x", make)] == [3, 3]


def test_a_copy_starts_anew() -> None:
    model = build("llama")
    tap, _ = tap_model(model)
    keep(model, "x", list)
    other: Any = copy.deepcopy(model)
    assert keep(other, "x", lambda: "new") == "new" and keep(model, "x", lambda: "new") == []
    nn.quantize(other, group_size=32, bits=4)
    for one in (model, other):
        with tap_model(one)[0].reading() as seen:
            one(mx.array([[1, 2, 3]]))
        assert len(seen) == 1
    assert tap_model(model)[0] is tap


def test_within_a_scope_a_model_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, looks = build("llama"), 0

    def counted(model: Any, look: Any = stamp) -> Any:
        nonlocal looks
        looks += 1
        return look(model)

    monkeypatch.setattr(kept, "stamp", counted)
    with unchanged(model):
        for name in range(5):
            keep(model, name, list)
    assert looks == 1
    keep(model, 0, list)
    assert looks == 2
