"""Options that cannot be honoured, told before the first forward; none is dropped without a word."""

from __future__ import annotations

import difflib
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.given import check_max_tokens, check_whole
from daari_mlx.teacher.kept import keep
from daari_mlx.teacher.rewind import Cache, cached_tokens, leaves

_SAMPLER = "it is a sampler's: give sampler=mlx_lm.sample_utils.make_sampler({}=...)"
_PROCESSOR = "it is a logits processor's: give logits_processors=mlx_lm.sample_utils.make_logits_processors({}=...)"
_INSTEAD = {  # names that mlx-lm, or a part of it, knows, and what to do here
    "draft_model": "give drafter=daari_mlx.draft.model.model_drafter(loaded, teacher); a graph is given as graph=",
    "input_embeddings": "drafts continue token ids, which embeddings do not have: use mlx_lm.stream_generate",
    "image": "this package reads text only: use mlx_lm.stream_generate with input_embeddings",
    "quantize_activations": "it belongs to loading a model: quantise before the model is given here",
    **dict.fromkeys(
        ("temp", "top_p", "min_p", "min_tokens_to_keep", "top_k", "xtc_probability", "xtc_threshold"), _SAMPLER
    ),
    **dict.fromkeys(
        (
            "logit_bias",
            "repetition_penalty",
            "repetition_context_size",
            "presence_penalty",
            "presence_context_size",
            "frequency_penalty",
            "frequency_context_size",
        ),
        _PROCESSOR,
    ),
}


def refuse_unknown(given: dict[str, Any], known: list[str]) -> None:
    """Raise :class:`DaariError` for the first option of ``given``: it is none of ``known``."""
    for name in given:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else "leave it out."
        raise DaariError(f"{name} is no option here: {_INSTEAD.get(name, hint).format(name)}")


def check_numbers(**given: Any) -> None:
    """Raise :class:`DaariError` where one of mlx-lm's number options could only end in an endless loop or a failure."""
    least = {"prefill_step_size": 1, "max_kv_size": 1, "quantized_kv_start": 0, "kv_bits": 1, "kv_group_size": 1}
    for name, value in given.items():
        if value is None and name in ("max_kv_size", "kv_bits"):
            continue
        if name == "max_tokens":
            check_max_tokens(value)
        else:
            check_whole(name, value, least[name])


def check_kv_quantisation(model: nn.Module, cache: Cache, bits: int | None, group_size: int) -> None:
    """See that this model's keys and values can be quantised so, without computing anything.

    A forward is traced, its cache quantised, and a forward behind that traced: what mlx-lm would fail on then fails
    here. Nothing is evaluated.

    Args:
        model: the teacher.
        cache: the prompt cache that will be used; it stays as it is.
        bits, group_size: mlx-lm's ``kv_bits`` and ``kv_group_size``; None bits for none.

    Raises:
        DaariError: naming the model type, and the kind of cache or what MLX says.
    """
    if bits is None:
        return
    kind = getattr(model, "model_type", None) or type(model).__module__.rsplit(".", 1)[-1]
    words = f"kv_bits {bits} with kv_group_size {group_size} cannot be honoured for {kind}"
    for leaf in leaves(cache):
        found = (getattr(leaf, "bits", bits), getattr(leaf, "group_size", group_size))
        if found != (bits, group_size):
            raise DaariError(
                f"{words}: the prompt cache is quantised to {found[0]} bits in groups of {found[1]}; ask for the same, "
                "or give another cache."
            )
    checked: set[tuple[Any, ...]] = keep(model, "kv_quantisation", set)
    key = (bits, group_size, tuple(type(c).__name__ for c in cache))
    if key in checked:
        return
    try:
        _trace(model, cache, bits, group_size)
    except (NotImplementedError, RuntimeError, TypeError, ValueError, AttributeError) as error:
        raise DaariError(f"{words}: {' '.join(str(error).split())[:300]}. Leave it out, or choose others.") from error
    checked.add(key)


def _trace(model: nn.Module, cache: Cache, bits: int, group_size: int) -> None:
    from mlx_lm.models.cache import make_prompt_cache

    for item in cache:  # a sliding window's only says so when it is asked
        if hasattr(item, "to_quantized"):
            item.to_quantized(group_size=group_size, bits=bits)
    fresh = make_prompt_cache(model)
    model(mx.array([[0, 0]], dtype=mx.uint32), cache=fresh)
    held = [isinstance(getattr(item, "keys", None), (tuple, list)) for item in cache]
    quantised = [hasattr(item, "to_quantized") for item in fresh]
    if not any(quantised) and not any(held):
        kinds = ", ".join(sorted({type(item).__name__ for item in fresh}))
        raise ValueError(f"its cache is made of {kinds}, which mlx-lm does not quantise")
    for place, item in enumerate(fresh):
        if quantised[place]:
            fresh[place] = item.to_quantized(group_size=group_size, bits=bits)
    model(mx.array([[0]], dtype=mx.uint32), cache=fresh)


def refuse_two_drafters(graph: object, drafter: object) -> None:
    """Raise :class:`DaariError` where both a graph and another drafter are given."""
    if graph is not None and drafter is not None:
        raise DaariError("Both graph and drafter were given: give one of them.")


def refuse_two_sizes(cache: Cache | None, max_kv_size: int | None) -> None:
    """Raise :class:`DaariError` where both a cache and the size of one are given."""
    if cache is not None and max_kv_size is not None:
        raise DaariError(
            f"max_kv_size is {max_kv_size} and a prompt cache with {cached_tokens(cache)} tokens was given: the cache "
            "has its own size; leave one of them out."
        )
