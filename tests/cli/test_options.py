"""Every option of mlx-lm's generate: the same answer with drafting on, or a refusal before the first forward."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
from graphs import Compiled, Scripted
from mlx_lm.models.cache import load_prompt_cache, make_prompt_cache, save_prompt_cache
from mlx_lm.sample_utils import make_logits_processors, make_sampler
from mlx_lm.tokenizer_utils import TokenizerWrapper
from zoo import CONFIGS, VOCABULARY, Oracle, build

from daari_mlx import SpecEngine, generate, stream_generate
from daari_mlx.decode.refusals import check_kv_quantisation
from daari_mlx.ground.errors import DaariError
from daari_mlx.teacher.tap import tap_model

PROMPT = [3, 17, 42, 99, 5, 64, 7, 23, 81, 11]
LENGTH = 60  # far past the windows of 16
WIDE = {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 64}


@pytest.fixture(scope="module")
def tokenizer(tiny_teacher: tuple[Any, Any]) -> Iterator[TokenizerWrapper]:
    """One whose only end token no tiny model says."""
    bare = tiny_teacher[1]._tokenizer
    before, bare.eos_token = bare.eos_token, None
    yield TokenizerWrapper(bare, eos_token_ids={639})
    bare.eos_token = before


def variant(name: str, **changes: Any) -> Any:
    """A tiny model with other settings."""
    sound = CONFIGS[name]
    CONFIGS[name] = {**sound, **changes}
    try:
        return build(name)
    finally:
        CONFIGS[name] = sound


def plain(model: Any, tokenizer: Any, prompt: list[int] = PROMPT, tokens: int = LENGTH, **options: Any) -> list[Any]:
    return list(mlx_lm.stream_generate(model, tokenizer, prompt, max_tokens=tokens, **options))


def drafted(
    model: Any, tokenizer: Any, truth: list[Any], prompt: list[int] = PROMPT, tokens: int = LENGTH, **options: Any
) -> list[Any]:
    """Our responses, drafted by one who is mostly right."""
    oracle = Oracle(prompt + [r.token for r in truth], block=5)
    return list(stream_generate(model, tokenizer, prompt, tokens, drafter=oracle, **options))


def ids(responses: list[Any]) -> list[int]:
    return [r.token for r in responses]


# --- logits processors and samplers

PROCESSORS: dict[str, dict[str, Any]] = {
    "repetition": {"repetition_penalty": 1.3, "repetition_context_size": 12},
    "presence": {"presence_penalty": 1.5, "presence_context_size": 30},
    "frequency": {"frequency_penalty": 0.7, "frequency_context_size": 30},
    "bias": {"logit_bias": {5: 4.0, 17: -100.0, 90: 3.5}},
    "all": {
        "repetition_penalty": 1.1,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.3,
        "logit_bias": {5: 2.0, 17: -4.0},
    },
}


@pytest.mark.parametrize("name", ["qwen3", "gemma3_text", "mamba2"])
@pytest.mark.parametrize("processors", sorted(PROCESSORS))
def test_penalties_and_bias_equal_plain(tokenizer: Any, name: str, processors: str) -> None:
    model = build(name)
    expected = plain(model, tokenizer, logits_processors=make_logits_processors(**PROCESSORS[processors]))
    assert ids(expected) != ids(plain(model, tokenizer)), "it changes the answer"
    found = drafted(model, tokenizer, expected, logits_processors=make_logits_processors(**PROCESSORS[processors]))
    assert ids(found) == ids(expected)
    assert found[-1].statistics.accepted > 10


# MLX writes at special tokens without a look at the width: one past the vocabulary damages memory anywhere
SAMPLERS: dict[str, dict[str, Any]] = {
    "temperature": {"temp": 0.8},
    "top-p": {"temp": 1.0, "top_p": 0.9},
    "top-k": {"temp": 0.7, "top_k": 20},
    "min-p": {"temp": 1.0, "min_p": 0.05, "min_tokens_to_keep": 3},
    "XTC": {"temp": 1.0, "xtc_probability": 0.5, "xtc_threshold": 0.05, "xtc_special_tokens": [3, VOCABULARY - 1]},
    "all": {"temp": 1.2, "top_p": 0.95, "top_k": 40, "min_p": 0.01, "xtc_probability": 0.3, "xtc_threshold": 0.1},
}


@pytest.mark.parametrize("name", ["qwen3", "gemma3_text", "lfm2"])
@pytest.mark.parametrize("sampling", sorted(SAMPLERS))
def test_seeded_sampling_equals_plain(tokenizer: Any, name: str, sampling: str) -> None:
    model = build(name)
    mx.random.seed(11)
    expected = plain(model, tokenizer, sampler=make_sampler(**SAMPLERS[sampling]))
    mx.random.seed(11)
    found = drafted(model, tokenizer, expected, sampler=make_sampler(**SAMPLERS[sampling]))
    assert ids(found) == ids(expected) and found[-1].statistics.accepted > 10
    assert len(set(ids(found))) > 5


def test_sampling_with_processors_equals_plain(tokenizer: Any) -> None:
    model = build("qwen3")
    options = {"sampler": make_sampler(temp=0.9, top_p=0.95)}
    mx.random.seed(5)
    expected = plain(model, tokenizer, logits_processors=make_logits_processors(repetition_penalty=1.2), **options)
    mx.random.seed(5)
    found = drafted(
        model, tokenizer, expected, logits_processors=make_logits_processors(repetition_penalty=1.2), **options
    )
    assert ids(found) == ids(expected) and found[-1].statistics.accepted > 10


# --- prefill


@pytest.mark.parametrize("step", [1, 2, 3, 7, 9, 10, 11, 2048])
@pytest.mark.parametrize("drafts", [True, False])
def test_prefill_goes_in_plains_steps_and_leaves_the_last_token(tokenizer: Any, step: int, drafts: bool) -> None:
    """What the model is called with, and the callback's calls, up to the first token."""

    def run(generate: Any, **options: Any) -> tuple[list[int], list[tuple[int, int]], list[int]]:
        model = build("llama")
        tap_model(model)  # it traces a forward, once a model
        cls, rows, calls = type(model), [], []

        def called(self: Any, inputs: mx.array, *args: Any, **kwargs: Any) -> mx.array:
            rows.append(inputs.shape[1])
            return cls.__call__(self, inputs, *args, **kwargs)

        own = {"__call__": called, "__module__": "daari_mlx.teacher.tests"}  # as a tap's: it is no change of the model
        model.__class__ = type(cls.__name__, (cls,), own)
        found = generate(model, prefill_step_size=step, prompt_progress_callback=lambda *c: calls.append(c), **options)
        before = len(PROMPT) - 1
        prefill = []
        for count in rows:
            if sum(prefill) == before:
                break
            prefill.append(count)
        return prefill, calls, ids(found)

    prefill, calls, expected = run(lambda model, **o: plain(model, tokenizer, tokens=4, **o))
    truth = PROMPT + expected
    drafter = Oracle(truth, block=3, right=1.0) if drafts else None
    ours = run(lambda model, **o: list(stream_generate(model, tokenizer, PROMPT, 4, drafter=drafter, **o)))
    assert ours == (prefill, calls, expected)
    assert sum(prefill) == len(PROMPT) - 1 and calls[-1] == (len(PROMPT), len(PROMPT))


# --- prompt caches, in and out


@pytest.mark.parametrize("bits", [None, 8])
@pytest.mark.parametrize("name", ["llama", "gemma3_text", "mamba2", "lfm2"])
def test_a_saved_cache_is_gone_on_from_by_both(tokenizer: Any, name: str, bits: int | None, tmp_path: Path) -> None:
    if bits and name != "llama":
        pytest.skip("mlx-lm quantises no such cache")
    model = variant(name, **WIDE) if bits else build(name)
    options = {"kv_bits": bits, "quantized_kv_start": 4} if bits else {}
    whole = plain(model, tokenizer, tokens=50, **options)
    theirs, ours = make_prompt_cache(model), make_prompt_cache(model)
    first = plain(model, tokenizer, tokens=20, prompt_cache=theirs, **options)
    found = drafted(model, tokenizer, whole, tokens=20, prompt_cache=ours, **options)
    assert ids(found) == ids(first) == ids(whole)[:20]
    file = str(tmp_path / "ours.safetensors")
    save_prompt_cache(file, ours, {"model": "x"})
    following = ids(whole)[20:21]
    went_on = plain(model, tokenizer, following, 20, prompt_cache=load_prompt_cache(file), **options)
    assert ids(went_on) == ids(whole)[21:41]
    again = load_prompt_cache(file)
    oracle = Oracle(following + ids(whole)[21:], block=4)
    found = list(stream_generate(model, tokenizer, following, 20, drafter=oracle, prompt_cache=again, **options))
    assert ids(found) == ids(whole)[21:41] and found[-1].statistics.accepted > 5
    save_prompt_cache(file, theirs, {"model": "x"})
    expected = plain(model, tokenizer, [50, 51, 52], 20, prompt_cache=load_prompt_cache(file), **options)
    found = drafted(model, tokenizer, expected, [50, 51, 52], 20, prompt_cache=load_prompt_cache(file), **options)
    assert ids(found) == ids(expected)


# --- KV quantisation


@pytest.mark.parametrize(("bits", "group"), [(2, 32), (3, 64), (4, 64), (5, 32), (6, 64), (8, 32)])
@pytest.mark.parametrize("start", [0, 25])
def test_every_kv_quantisation_equals_plain(tokenizer: Any, bits: int, group: int, start: int) -> None:
    model = variant("llama", **WIDE)
    options = {"kv_bits": bits, "kv_group_size": group, "quantized_kv_start": start}
    expected = plain(model, tokenizer, **options)
    cache = make_prompt_cache(model)
    found = drafted(model, tokenizer, expected, prompt_cache=cache, **options)
    assert ids(found) == ids(expected) and found[-1].statistics.accepted > 10
    assert {(c.bits, c.group_size) for c in cache} == {(bits, group)}


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("wide", {"kv_bits": 7}, "kv_bits 7 .*llama: .*number of bits 7 is not supported"),
        ("llama", {"kv_bits": 4}, "kv_group_size 64 .*llama: .*divisible by the quantization group size 64"),
        ("llama", {"kv_bits": 4, "kv_group_size": 8}, "group size 8 is not supported"),
        ("gemma3_text", {"kv_bits": 8}, "gemma3_text: RotatingKVCache Quantization"),
        ("mamba2", {"kv_bits": 8}, "mamba2: its cache is made of ArraysCache, which mlx-lm does not quantise"),
        ("llama", {"kv_bits": 0}, "kv_bits is 0: give at least 1"),
        ("llama", {"kv_bits": 4.0}, "kv_bits is 4.0: give a whole number"),
        ("llama", {"kv_bits": True}, "kv_bits is True: give a whole number"),
        ("llama", {"kv_group_size": 0}, "kv_group_size is 0"),
        ("llama", {"quantized_kv_start": -1}, "quantized_kv_start is -1"),
    ],
)
@pytest.mark.parametrize("drafts", [True, False])
def test_kv_quantisation_that_cannot_be_is_refused_before_anything_runs(
    tokenizer: Any, name: str, options: dict[str, Any], words: str, drafts: bool
) -> None:
    """Also where the answer would have ended before the cache is quantised."""
    model, calls = variant("llama", **WIDE) if name == "wide" else build(name), []
    cache = make_prompt_cache(model)
    drafter = Oracle(PROMPT, block=2) if drafts else None
    with pytest.raises(DaariError, match=words):
        list(
            stream_generate(
                model,
                tokenizer,
                PROMPT,
                3,
                drafter=drafter,
                prompt_cache=cache,
                prompt_progress_callback=lambda *c: calls.append(c),
                **options,
            )
        )
    assert calls == [] and all(c.empty() for c in cache)


def test_a_model_is_checked_for_a_kind_of_quantisation_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = variant("llama", **WIDE)
    cache = make_prompt_cache(model)
    check_kv_quantisation(model, cache, 4, 64)
    monkeypatch.setattr(type(model), "__call__", lambda *a, **k: 1 / 0)
    check_kv_quantisation(model, cache, 4, 64)
    with pytest.raises(ZeroDivisionError):
        check_kv_quantisation(model, cache, 4, 32)


def test_a_cache_that_is_quantised_otherwise_is_refused(tokenizer: Any) -> None:
    model = variant("llama", **WIDE)
    cache = make_prompt_cache(model)
    plain(model, tokenizer, tokens=4, prompt_cache=cache, kv_bits=8, quantized_kv_start=0)
    for options in ({"kv_bits": 4}, {"kv_bits": 8, "kv_group_size": 32}):
        with pytest.raises(DaariError, match="is quantised to 8 bits in groups of 64"):
            list(stream_generate(model, tokenizer, PROMPT, 3, prompt_cache=cache, **options))
    assert len(list(stream_generate(model, tokenizer, PROMPT, 3, prompt_cache=cache))) == 3, "without, it is gone on"


def test_a_limited_cache_cannot_be_quantised(tokenizer: Any) -> None:
    with pytest.raises(DaariError, match="RotatingKVCache Quantization"):
        list(stream_generate(variant("qwen3", **WIDE), tokenizer, PROMPT, 3, max_kv_size=32, kv_bits=8))


# --- max_kv_size


def test_a_size_that_a_models_own_cache_would_drop_is_refused(tokenizer: Any) -> None:
    for name in ("gemma3_text", "mamba2", "lfm2"):
        with pytest.raises(DaariError, match=f"{name} makes its own cache, which has no such limit"):
            list(stream_generate(build(name), tokenizer, PROMPT, 3, max_kv_size=32))


def test_a_size_and_a_cache_are_refused(tokenizer: Any) -> None:
    model = build("qwen3")
    with pytest.raises(DaariError, match="the cache has its own size"):
        list(stream_generate(model, tokenizer, PROMPT, 3, max_kv_size=32, prompt_cache=make_prompt_cache(model)))


# --- what is no option here

UNKNOWN = {
    "draft_model": "give drafter=daari_mlx.draft.model.model_drafter",
    "input_embeddings": "drafts continue token ids, which embeddings do not have",
    "temp": r"give sampler=mlx_lm.sample_utils.make_sampler\(temp=...\)",
    "top_k": r"make_sampler\(top_k=...\)",
    "repetition_penalty": r"make_logits_processors\(repetition_penalty=...\)",
    "logit_bias": r"make_logits_processors\(logit_bias=...\)",
    "max_token": "did you mean max_tokens",
    "num_drafts": "did you mean num_draft_tokens|leave it out",
    "kvbits": "did you mean kv_bits",
    "zzz": "leave it out",
}


@pytest.mark.parametrize("name", sorted(UNKNOWN))
def test_an_option_that_is_none_is_named_with_what_to_give_instead(compiled: Compiled, name: str) -> None:
    model, tokenizer = compiled.teacher.model, compiled.teacher.tokenizer
    engine = SpecEngine(model, compiled.graph, tokenizer=tokenizer, num_draft_tokens=2)
    for call in (
        lambda: list(stream_generate(model, tokenizer, PROMPT, **{name: mx.zeros((10, 64))})),
        lambda: generate(model, tokenizer, PROMPT, **{name: None}),
        lambda: engine.generate_chat([{"role": "user", "content": "hi"}], **{name: 1}),
    ):
        with pytest.raises(DaariError, match=f"{name} is no option here: .*({UNKNOWN[name]})"):
            call()


def test_every_option_of_plain_is_taken_or_has_its_hint() -> None:
    """A new option of mlx-lm shows here."""
    import importlib
    import inspect

    from daari_mlx.decode.refusals import _INSTEAD

    plain = importlib.import_module("mlx_lm.generate")
    theirs = {
        name
        for function in (plain.stream_generate, plain.generate_step, plain.generate, plain.speculative_generate_step)
        for name in inspect.signature(function).parameters
    }
    ours = {*inspect.signature(stream_generate).parameters, *inspect.signature(generate).parameters}
    assert theirs - ours == {"draft_model", "input_embeddings"} <= set(_INSTEAD)


@pytest.mark.parametrize("name", ["graph", "num_draft_tokens", "prompt_cache", "max_kv_size"])
def test_what_belongs_to_the_engine_is_not_given_for_one_answer(compiled: Compiled, name: str) -> None:
    engine = SpecEngine(compiled.teacher.model, compiled.graph, tokenizer=compiled.teacher.tokenizer)
    with pytest.raises(DaariError, match=f"{name} cannot be given for one answer"):
        engine.generate_chat([{"role": "user", "content": "hi"}], **{name: None})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_tokens": -2}, "max_tokens is -2"),
        ({"max_tokens": 2.5}, "max_tokens is 2.5: give a whole number"),
        ({"prefill_step_size": 0}, "prefill_step_size is 0"),
        ({"prefill_step_size": None}, "prefill_step_size is None"),
        ({"max_kv_size": 0}, "max_kv_size is 0"),
    ],
)
def test_numbers_that_lead_nowhere_are_refused(tokenizer: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(DaariError, match=words):
        list(stream_generate(build("qwen3"), tokenizer, PROMPT, **options))


# --- the number of tokens


def test_every_budget_with_every_draft_length(tiny_teacher: tuple[Any, Any]) -> None:
    answer = np.random.default_rng(1).integers(30, 600, 40).tolist()
    truth = [1, 40, *answer]
    model = Scripted(truth)
    for budget in range(1, 21):
        for length in range(1, 25):
            cache = make_prompt_cache(model)
            oracle = Oracle(truth, block=length, right=1.0)
            found = list(stream_generate(model, tiny_teacher[1], [1, 40], budget, drafter=oracle, prompt_cache=cache))
            assert ids(found) == answer[:budget] and cache[0].offset == 2 + budget
            assert found[-1].finish_reason == "length" and found[-1].statistics.tokens == budget


# --- the teacher's context


@pytest.mark.parametrize("prompt_length", [10, 20, 47, 48, 49, 60])
def test_nothing_is_drafted_past_the_context_and_the_words_stay_plains(tokenizer: Any, prompt_length: int) -> None:
    model = variant("qwen3", max_position_embeddings=48)
    prompt = [(7 * k) % 120 + 3 for k in range(prompt_length)]
    expected = plain(model, tokenizer, prompt, 50)
    largest = []
    cls = type(model)

    def called(self: Any, inputs: mx.array, cache: Any = None) -> mx.array:
        if inputs.shape[1] > 1 and cache[0].offset >= len(prompt) - 1:
            largest.append(cache[0].offset + inputs.shape[1])
        return cls.__call__(self, inputs, cache=cache)

    model.__class__ = type(cls.__name__, (cls,), {"__call__": called, "__module__": cls.__module__})
    found = drafted(model, tokenizer, expected, prompt, 50)
    assert ids(found) == ids(expected) and len(found) == 50
    assert max(largest, default=0) <= 48
    assert (found[-1].statistics.accepted > 0) == (prompt_length < 48)
    assert found[-1].drafting_off == "the teacher's context of 48 tokens is full"


def test_within_the_context_drafting_stays_on(tokenizer: Any) -> None:
    model = variant("qwen3", max_position_embeddings=48)
    expected = plain(model, tokenizer, tokens=20)
    assert drafted(model, tokenizer, expected, tokens=20)[-1].drafting_off is None


# --- adapters and quantised teachers


@pytest.mark.parametrize("kind", ["adapter", "4 bits", "4 bits and adapter"])
def test_an_adapted_and_a_quantised_teacher_equal_plain(
    compiled: Compiled, tiny_teacher_path: Path, tmp_path: Path, kind: str
) -> None:
    from mlx.nn import quantize
    from mlx.utils import tree_flatten
    from mlx_lm.tuner.utils import linear_to_lora_layers

    from daari_mlx.teacher.load import load_teacher

    folder = None
    if "adapter" in kind:
        model = load_teacher(str(tiny_teacher_path)).model
        lora = {"rank": 4, "dropout": 0.0, "scale": 20.0}
        model.freeze()
        linear_to_lora_layers(model, 2, lora)
        mx.random.seed(3)
        weights = {k: 0.05 * mx.random.normal(v.shape) for k, v in tree_flatten(model.trainable_parameters())}
        folder = tmp_path / "adapter"
        folder.mkdir()
        mx.save_safetensors(str(folder / "adapters.safetensors"), weights)
        (folder / "adapter_config.json").write_text(
            json.dumps({"fine_tune_type": "lora", "num_layers": 2, "lora_parameters": lora})
        )
    teacher = load_teacher(str(tiny_teacher_path), adapter_path=None if folder is None else str(folder))
    if "4 bits" in kind:
        quantize(teacher.model, group_size=32, bits=4)
    accepted, said, before = 0, [], []
    for sequence in compiled.sequences[:5]:
        prompt = sequence.tokens[: sequence.answer_start]
        expected = plain(teacher.model, teacher.tokenizer, prompt, 30)
        oracle = Oracle(prompt + ids(expected), block=5)
        found = list(stream_generate(teacher.model, teacher.tokenizer, prompt, 30, drafter=oracle))
        assert ids(found) == ids(expected)
        accepted += found[-1].statistics.accepted
        said, before = said + ids(found), before + sequence.tokens[sequence.answer_start :][:30]
    assert accepted > 10 and (said != before or kind == "4 bits"), "an adapted teacher says other words"
    with pytest.raises(DaariError, match="another teacher"):
        list(stream_generate(teacher.model, teacher.tokenizer, prompt, 5, graph=compiled.graph))
