"""Fewer layers: the rebuilt model is what is left of the old one, or nothing is built and the reason is said."""

from __future__ import annotations

import copy
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import quantize_model

from daari_mlx.ground.errors import DaariError
from daari_mlx.tier.depth import CannotDrop, droppable_units, layer_count, without_layers

SINGLE = ["llama", "qwen3", "mamba2", "lfm2", "olmo3", "gpt_oss", "mixtral", "gpt2"]  # any layer can go
PATTERN = {"gemma3_text": 2, "cohere2": 2, "qwen3_next": 2}  # layer kinds follow from the place: whole periods


def made(name: str, **changes: Any) -> tuple[nn.Module, dict[str, Any]]:
    from architectures import build, configuration

    return build(name, **changes), {**configuration(name), **changes}


def logits(model: nn.Module) -> np.ndarray:
    tokens = np.random.default_rng(0).integers(0, 128, 40).tolist()
    return np.array(model(mx.array([tokens]), cache=make_prompt_cache(model)))


@pytest.mark.parametrize("name", SINGLE)
def test_every_single_layer_can_go_where_layers_are_independent(name: str) -> None:
    model, config = made(name)
    units = droppable_units(model, config)
    assert units == [(k,) for k in range(layer_count(model))]
    twin, smaller = without_layers(model, config, (1,))
    assert layer_count(twin) == layer_count(model) - 1
    rebuilt = type(model)(type(model.args).from_dict(copy.deepcopy(smaller)))
    assert layer_count(rebuilt) == layer_count(twin), "the configuration alone gives the same depth"
    assert np.isfinite(logits(twin)).all() and not np.allclose(logits(twin), logits(model))


@pytest.mark.parametrize("name", SINGLE)
def test_the_twin_is_the_model_with_that_layer_passed_over(name: str) -> None:
    """The old model with one layer turned into the identity says the same as the rebuilt one."""
    model, config = made(name)
    twin, _ = without_layers(model, config, (2,))
    layer = model.layers[2]
    cls = type(layer)
    layer.__class__ = type("Passed", (cls,), {"__call__": lambda self, x, *_, **__: x})
    try:
        passed = logits(model) if name != "gpt_oss" else None
    finally:
        layer.__class__ = cls
    if passed is not None:
        np.testing.assert_allclose(logits(twin), passed, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SINGLE)
def test_none_left_out_is_the_same_model(name: str) -> None:
    model, config = made(name)
    twin, same = without_layers(model, config, ())
    np.testing.assert_array_equal(logits(twin), logits(model))
    assert {k: v for k, v in same.items() if k in config} == config


@pytest.mark.parametrize(("name", "period"), PATTERN.items())
def test_alternating_kinds_go_by_whole_periods(name: str, period: int) -> None:
    model, config = made(name)
    assert all(len(unit) == period for unit in droppable_units(model, config))
    twin, _ = without_layers(model, config, range(period))
    assert layer_count(twin) == 4 - period
    with pytest.raises(CannotDrop, match=r"without layer 0, layer 1 would be another kind|cannot be built"):
        without_layers(model, config, (0,))


def test_layer_types_follow_the_layers() -> None:
    from architectures import FULL, SLIDING

    model, config = made("olmo3")
    _, smaller = without_layers(model, config, (0, 3))
    assert smaller["layer_types"] == [FULL, SLIDING] and smaller["num_hidden_layers"] == 2
    config = {k: v for k, v in config.items() if k != "layer_types"}
    model = type(model)(type(model.args).from_dict(copy.deepcopy({**config, "num_hidden_layers": 8})))
    config["num_hidden_layers"] = 8
    derived = model.args.layer_types
    _, smaller = without_layers(model, config, (0,))
    assert smaller["layer_types"] == derived[1:], "a list that the model made up itself is spelt out"


def test_lists_of_places_are_renumbered() -> None:
    model, config = made("lfm2")
    config = {**config, "full_attn_idxs": [1, 3], "layer_types": None}
    model = type(model)(type(model.args).from_dict(copy.deepcopy(config)))
    twin, smaller = without_layers(model, config, (0,))
    assert smaller["full_attn_idxs"] == [0, 2]
    assert layer_count(twin) == 3


def test_first_dense_layers_stay_dense() -> None:
    model, config = made("deepseek_v3")
    assert droppable_units(model, config) == [(1,), (2,), (3,)]
    with pytest.raises(CannotDrop, match="deepseek_v3"):
        without_layers(model, config, (0,))


@pytest.mark.parametrize("name", ["gemma4_text", "youtu_llm", "baichuan_m1"])
def test_what_cannot_be_said_by_a_configuration_is_refused_with_the_reason(name: str) -> None:
    model, config = made(name)
    with pytest.raises(DaariError, match=name):
        droppable_units(model, config)


def test_quantised_weights_and_their_settings_move_along() -> None:
    model, config = made("llama", hidden_size=64, intermediate_size=64)
    model, config = quantize_model(
        model=model,
        config=config,
        group_size=32,
        bits=4,
        quant_predicate=lambda path, _: {"group_size": 32, "bits": 8 if "layers.2" in path else 4},
    )
    twin, smaller = without_layers(model, config, (0,))
    bits = {name: module.bits for name, module in twin.named_modules() if hasattr(module, "bits")}
    assert {b for name, b in bits.items() if "layers.1." in name} == {8}
    assert {b for name, b in bits.items() if "layers.0." in name or "layers.2." in name} == {4}
    renamed = {k: v["bits"] for k, v in smaller["quantization"].items() if isinstance(v, dict)}
    assert {b for name, b in renamed.items() if "layers.1." in name} == {
        8
    } and "model.layers.3.mlp.up_proj" not in renamed


def test_not_all_layers_can_go() -> None:
    model, config = made("llama")
    with pytest.raises(CannotDrop, match="No layer"):
        without_layers(model, config, range(4))
