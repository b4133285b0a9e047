"""Which teacher a graph belongs to: what is compared at load so that a graph never drafts for another one.

It is read off the loaded model itself, so that quantised, adapted and fused copies of one repository tell apart.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from daari_mlx.ground.evaluated import evaluated
from daari_mlx.ground.legible import visible
from daari_mlx.teacher.kept import keep

SAMPLES = 16  # values read from each weight: enough to tell fine-tuned copies apart, cheap on the largest model
_ATTRIBUTE = "_daari_fingerprint"


def fingerprint(model: nn.Module, tokenizer: Any) -> dict[str, Any]:
    """What identifies a teacher, as JSON values.

    Returns:
        ``model_type``; ``structure`` and ``weights``, hashes over all parameters' names, shapes and types and over a
        sample of their values; ``quantisation``; ``adapter``, a hash over low-rank adapter weights or None, and
        ``adapter_scale`` where there is one;
        ``vocab_size``, ``tokenizer``, a hash over the tokenizer's vocabulary.
    """
    return {**fingerprint_model(model), **fingerprint_tokenizer(tokenizer)}


def fingerprint_model(model: nn.Module) -> dict[str, Any]:
    """The model's part of :func:`fingerprint`; read off again only after the model changed (quantised, …)."""
    return keep(model, "fingerprint", lambda: _read_model(model))


def fingerprint_whole(model: nn.Module, tokenizer: Any) -> dict[str, Any]:
    """The same as :func:`fingerprint` for a lazily loaded model without adapter, one array in memory at a time.

    The model is used up by it.
    """
    parameters: list[tuple[str, mx.array]] = sorted(tree_flatten(model.parameters()), reverse=True)  # type: ignore[arg-type]
    known = {**_describe(model, parameters[::-1]), "adapter": None}
    model.clear()
    known["weights"] = _hash_values(parameters.pop()[1] for _ in range(len(parameters)))
    return {**known, **fingerprint_tokenizer(tokenizer)}


def _read_model(model: nn.Module) -> dict[str, Any]:
    parameters: list[tuple[str, mx.array]] = sorted(tree_flatten(model.parameters()))  # type: ignore[arg-type]
    return {
        **_describe(model, parameters),
        "adapter": _adapter(parameters),
        **_adapter_scale(model),
        "weights": _hash_values(value for _, value in parameters),
    }


def _describe(model: nn.Module, parameters: list[tuple[str, mx.array]]) -> dict[str, Any]:
    """What can be told without the weights' values."""
    return {
        "model_type": getattr(model, "model_type", None) or getattr(model.args, "model_type", None),
        "structure": _hash(f"{name} {value.shape} {value.dtype}" for name, value in parameters),
        "quantisation": _quantisation(model),
        "parameters": sum(value.size for _, value in parameters),
    }


def fingerprint_tokenizer(tokenizer: Any) -> dict[str, Any]:
    """The tokenizer's part of :func:`fingerprint`; read off again only after tokens were added to it."""
    added: dict[str, int] = getattr(tokenizer, "get_added_vocab", dict)()
    known: tuple[dict[str, int], dict[str, Any]] | None = getattr(tokenizer, _ATTRIBUTE, None)
    if known is None or known[0] != added:
        vocabulary = tokenizer.get_vocab()
        words = _hash(f"{token_id} {token}" for token, token_id in sorted(vocabulary.items()))
        known = added, {"vocab_size": len(vocabulary), "tokenizer": words}
        object.__setattr__(tokenizer, _ATTRIBUTE, known)
    return known[1]


def _quantisation(model: nn.Module) -> str | None:
    """Bits and group size of every kind of quantised module, e.g. ``"4-bit affine, group 64"``; None without any."""
    kinds = {
        f"{module.bits}-bit {getattr(module, 'mode', 'affine')}, group {module.group_size}"
        for _, module in model.named_modules()
        if hasattr(module, "bits") and hasattr(module, "group_size")
    }
    return "; ".join(sorted(kinds)) or None


def _adapter(parameters: list[tuple[str, mx.array]]) -> str | None:
    adapted = [(name, value) for name, value in parameters if "lora_" in name.rsplit(".", 1)[-1]]
    if not adapted:
        return None
    return _hash([*(name for name, _ in adapted), _hash_values(value for _, value in adapted)])


def _adapter_scale(model: nn.Module) -> dict[str, list[float]]:
    """How much the adapter counts: every ``scale`` of its modules, rising; nothing without an adapter."""
    scales = {float(module.scale) for _, module in model.named_modules() if "lora_a" in module}
    return {"adapter_scale": sorted(scales)} if scales else {}


def _hash(lines: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for line in lines:
        digest.update(line.encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()[:32]


def _hash_values(arrays: Iterable[mx.array]) -> str:
    """A hash over ``SAMPLES`` evenly spread values of each array."""
    digest = hashlib.sha256()
    for array in arrays:
        flat = array.reshape(-1)
        taken = flat[:: max(1, flat.size // SAMPLES)][:SAMPLES]
        if mx.issubdtype(taken.dtype, mx.floating):
            taken = taken.astype(mx.float32)
        digest.update(evaluated(taken).tobytes())
    return digest.hexdigest()[:32]


def context_length(model: nn.Module) -> int | None:
    """The most tokens that the teacher's configuration says it can hold; None where it says nothing."""
    args = getattr(model, "args", None)
    for holder in (args, getattr(args, "text_config", None)):
        value = (
            holder.get("max_position_embeddings")
            if isinstance(holder, dict)
            else getattr(holder, "max_position_embeddings", None)
        )
        if isinstance(value, int) and value > 0:
            return value
    return None


def describe(teacher: dict[str, Any]) -> str:
    """One line that a person can tell teachers apart by."""
    parts = [
        str(teacher.get("source") or teacher.get("model_type")),
        str(teacher.get("quantisation") or "not quantised"),
    ]
    if teacher.get("adapter"):
        scales = teacher.get("adapter_scale")
        parts.append(f"adapter {str(teacher['adapter'])[:8]}{'' if scales is None else f' at scale {scales}'}")
    parts.append(f"weights {str(teacher.get('weights'))[:8]}")
    parts.append(f"tokenizer {str(teacher.get('tokenizer'))[:8]}")
    return visible(", ".join(parts), " ")  # a graph from elsewhere gives a terminal no orders


def differences(graph: dict[str, Any], model: dict[str, Any]) -> list[str]:
    """The names of the fingerprint's parts in which two teachers differ; empty when it is the same one."""
    compared = ["model_type", "structure", "quantisation", "adapter", "weights", "vocab_size", "tokenizer"]
    if "adapter_scale" in graph and "adapter_scale" in model:  # older graphs, which may be either, do not say
        compared.append("adapter_scale")
    return [name for name in compared if json.dumps(graph.get(name)) != json.dumps(model.get(name))]
