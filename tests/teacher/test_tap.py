"""The tap gives the states of the forward that runs, of any length, to the thread that reads, and changes nothing."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from graphs import Scripted
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.tuner.utils import linear_to_lora_layers
from zoo import CONFIGS, VOCABULARY, Oracle, build

from daari_mlx.decode.limits import Options
from daari_mlx.decode.loop import generate_step
from daari_mlx.ground.accept import Statistics
from daari_mlx.ground.errors import DaariError
from daari_mlx.teacher.tap import FINAL, tap_model

TOKENS = [5, 9, 12, 40, 3]


def read(model: Any, layer: int | str = FINAL, tokens: list[int] = TOKENS) -> tuple[np.ndarray, np.ndarray]:
    """(states, logits) of one forward."""
    tap, width = tap_model(model, layer)
    with tap.reading() as seen:
        logits = model(mx.array([tokens]), cache=make_prompt_cache(model))
    assert len(seen) == 1 and seen[0].shape == (1, len(tokens), width)
    return np.array(seen[0][0]), np.array(logits[0])


UNTIED = ("qwen3", "gemma3_text")
HEADS = {**dict.fromkeys(UNTIED, lambda m: m.lm_head), "mamba2": lambda m: m.backbone.embeddings.as_linear}


@pytest.mark.parametrize("name", sorted(CONFIGS))
@pytest.mark.parametrize("count", [1, 2, 5])
def test_final_states_are_what_the_head_makes_the_logits_from(name: str, count: int) -> None:
    model = build(name)
    states, logits = read(model, tokens=TOKENS[:count])
    head = HEADS.get(name, lambda m: m.model.embed_tokens.as_linear)(model)
    expected = np.array(head(mx.array(states)))
    if name == "cohere2":
        expected *= model.args.logit_scale
    np.testing.assert_allclose(expected, logits, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_every_layer_can_be_tapped(name: str) -> None:
    model = build(name)
    found = [read(model, layer)[0] for layer in range(len(model.layers))]
    np.testing.assert_array_equal(read(model, -1)[0], found[-1])
    for earlier, later in pairwise(found):
        assert earlier.shape == later.shape and not np.allclose(earlier, later)


@pytest.mark.parametrize("layer", [3, -4, "middle", "", None, 1.0])
def test_a_layer_that_is_none_is_refused(layer: Any) -> None:
    with pytest.raises(DaariError, match=r"There is no layer .*3 layers"):
        tap_model(build("llama"), layer)


def test_a_model_without_layers_says_so() -> None:
    with pytest.raises(DaariError, match="has 0 layers"):
        tap_model(Scripted([1, 2, 3]), 0)


def test_a_tapped_model_is_as_it_was() -> None:
    model, untouched = build("llama"), build("llama")
    for layer in (FINAL, 0, 1, 2, -1):
        tap_model(model, layer)
    assert [k for k, _ in tree_flatten(model.parameters())] == [k for k, _ in tree_flatten(untouched.parameters())]
    assert [type(m).__name__ for m in model.modules()] == [type(m).__name__ for m in untouched.modules()]
    for ours, theirs in zip(model.modules(), untouched.modules(), strict=True):
        assert isinstance(ours, type(theirs))
    inputs = mx.array([TOKENS])
    np.testing.assert_array_equal(model(inputs), untouched(inputs))
    assert repr(model) == repr(untouched)


def test_a_tap_is_found_once() -> None:
    model = build("llama")
    first = tap_model(model)
    states = read(model)[0]
    assert tap_model(model) is first and tap_model(model, 1) is tap_model(model, 1)
    np.testing.assert_array_equal(read(model)[0], states)


def test_nothing_is_collected_while_nobody_reads() -> None:
    model = build("llama")
    tap, _ = tap_model(model)
    inputs = mx.array([TOKENS])
    with tap.reading() as outer:
        model(inputs)
        with tap.reading() as inner:
            model(inputs)
            model(inputs)
        model(inputs)
    model(inputs)
    assert (len(outer), len(inner)) == (2, 2)
    with pytest.raises(ZeroDivisionError), tap.reading() as failed:
        raise ZeroDivisionError
    model(inputs)
    assert failed == []


def test_a_thread_reads_its_own_forwards_only() -> None:
    model = build("llama")
    tap, _ = tap_model(model)
    with tap.reading() as here, ThreadPoolExecutor(1) as pool:
        pool.submit(model, mx.array([TOKENS])).result()
        assert here == []

        def elsewhere() -> int:
            with tap.reading() as there:
                model(mx.array([TOKENS]))
            return len(there)

        assert pool.submit(elsewhere).result() == 1 and here == []
        model(mx.array([TOKENS]))
    assert len(here) == 1


def test_threads_that_tap_at_once_do_not_disturb_one_another() -> None:
    """Finding the place swaps the classes of all modules for a moment."""
    layers: list[int | str] = [FINAL, 0, 1, 2] * 2
    expected = {layer: read(build("llama"), layer)[0] for layer in layers}
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(5):
            model = build("llama")
            with ThreadPoolExecutor(len(layers)) as pool:
                taps = list(pool.map(lambda layer, model=model: tap_model(model, layer), layers))
            names = [type(m).__mro__ for m in model.modules()]
            assert max(sum(c.__module__ == "daari_mlx.teacher.tap" for c in mro) for mro in names) <= 1
            for layer, tap in zip(layers, taps, strict=True):
                assert tap_model(model, layer) is tap
                np.testing.assert_allclose(read(model, layer)[0], expected[layer], rtol=1e-5, atol=1e-6)
    finally:
        sys.setswitchinterval(interval)


def test_a_quantised_teacher_is_tapped_too() -> None:
    model = build("llama")
    nn.quantize(model, group_size=32, bits=8)
    states, logits = read(model)
    np.testing.assert_allclose(model.model.embed_tokens.as_linear(mx.array(states)), logits, rtol=1e-3, atol=1e-4)
    assert logits.shape == (len(TOKENS), VOCABULARY)


@pytest.mark.parametrize("length", [1, 2, 5])
def test_a_lost_tap_is_told(length: int) -> None:
    """Quantising puts other modules in the place of those that were tapped."""
    model = build("qwen3")
    tap, _ = tap_model(model)
    nn.quantize(model, group_size=32, bits=4)
    drafter, cache = Oracle([], block=1), make_prompt_cache(model)
    steps = generate_step(
        TOKENS[:length], model, cache, options=Options(max_tokens=3), drafter=drafter, tap=tap, statistics=Statistics()
    )
    with pytest.raises(RuntimeError, match="tap was lost"):
        next(steps)


def in_bits(model: Any) -> None:
    nn.quantize(model, group_size=32, bits=8)


def adapted(model: Any) -> None:
    linear_to_lora_layers(model, 3, {"rank": 2, "scale": 20.0, "dropout": 0.0, "keys": {"lm_head"}}, use_dora=True)


def replaced(model: Any) -> None:
    other = build("qwen3", seed=1)
    model.lm_head, model.model.layers[1] = other.lm_head, other.layers[1]


@pytest.mark.parametrize("change", [in_bits, adapted, replaced])
@pytest.mark.parametrize("layer", [FINAL, 1])
def test_a_model_that_was_changed_is_tapped_anew(change: Any, layer: int | str) -> None:
    model, fresh = build("qwen3"), build("qwen3")
    read(model, layer)
    mx.random.seed(1)
    change(model)
    mx.random.seed(1)
    change(fresh)
    for found, expected in zip(read(model, layer), read(fresh, layer), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_taps_of_a_model_that_changes_often_do_not_pile_up() -> None:
    model = build("llama")
    for number in range(5):
        model.args.rope_theta = float(number)
        read(model)
    assert max(sum(c.__module__ == "daari_mlx.teacher.tap" for c in type(m).__mro__) for m in model.modules()) == 1
