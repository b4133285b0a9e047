"""Tiny random models of mlx-lm architectures, one for each kind of cache, and a drafter that knows the answer."""

from __future__ import annotations

import hashlib
import importlib
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from daari_mlx.draft.drafter import Context, Draft

VOCABULARY = 128
WINDOW = 16

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {
        "model_type": "llama", "hidden_size": 32, "num_hidden_layers": 3, "intermediate_size": 64,
        "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "vocab_size": VOCABULARY,
        "rope_theta": 10000.0, "tie_word_embeddings": True,
    },
    "qwen3": {
        "model_type": "qwen3", "hidden_size": 32, "num_hidden_layers": 3, "intermediate_size": 64,
        "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "vocab_size": VOCABULARY,
        "head_dim": 8, "max_position_embeddings": 4096, "rope_theta": 10000.0, "tie_word_embeddings": False,
    },
    "gemma3_text": {  # sliding windows: rotating caches
        "model_type": "gemma3_text", "hidden_size": 32, "num_hidden_layers": 4, "intermediate_size": 64,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-5,
        "vocab_size": VOCABULARY, "sliding_window": WINDOW, "sliding_window_pattern": 2,
        "query_pre_attn_scalar": 8, "rope_theta": 10000.0, "rope_local_base_freq": 10000.0,
    },
    "cohere2": {  # rotating caches, logits scaled behind the head
        "model_type": "cohere2", "hidden_size": 32, "num_hidden_layers": 4, "intermediate_size": 64,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": VOCABULARY,
        "sliding_window": WINDOW, "sliding_window_pattern": 2, "layer_norm_eps": 1e-5, "logit_scale": 0.25,
        "rope_theta": 10000.0, "attention_bias": False, "layer_norm_bias": False,
    },
    "mamba2": {  # recurrent state: restored, not trimmed
        "model_type": "mamba2", "num_heads": 4, "head_dim": 16, "vocab_size": VOCABULARY, "hidden_size": 32,
        "intermediate_size": 64, "state_size": 16, "num_hidden_layers": 3, "layer_norm_epsilon": 1e-5,
        "conv_kernel": 4, "n_groups": 1, "use_bias": False, "use_conv_bias": True, "tie_word_embeddings": True,
        "time_step_limit": (0.0, 100.0), "time_step_rank": 2, "ssm_state_size": 16, "max_position_embeddings": 2056,
    },
    "lfm2": {  # hybrid: convolution states beside keys and values
        "model_type": "lfm2", "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096, "norm_eps": 1e-5,
        "conv_bias": False, "conv_L_cache": 3, "block_dim": 32, "block_ff_dim": 64, "block_multiple_of": 32,
        "block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": False, "rope_theta": 10000.0,
        "full_attn_idxs": [1, 3],
    },
}  # fmt: skip


def build(name: str, seed: int = 0, dtype: mx.Dtype = mx.float32) -> nn.Module:
    """A seeded random model; weights are large enough that its greedy answers wander over the vocabulary."""
    config = CONFIGS[name]
    module = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    mx.random.seed(seed)
    model = module.Model(module.ModelArgs.from_dict(dict(config)))
    model.eval()
    grown = [(k, (v * 2.5 if v.ndim > 1 else v).astype(dtype)) for k, v in _flat(model)]
    model.load_weights(grown)
    mx.eval(model.parameters())
    return model


def _flat(model: nn.Module) -> list[tuple[str, mx.array]]:
    from mlx.utils import tree_flatten

    return tree_flatten(model.parameters())


_PLAIN: dict[tuple[bytes, tuple[int, ...]], list[int]] = {}


def plain_tokens(model: nn.Module, prompt: list[int], count: int, **options: Any) -> list[int]:
    """What mlx-lm itself generates; greedily, the same model is asked the same once."""
    if options:
        return _generated(model, prompt, count, **options)
    key = _fingerprint(model), tuple(prompt)
    if len(_PLAIN.get(key, ())) < count:
        _PLAIN[key] = _generated(model, prompt, count)
    return _PLAIN[key][:count]


def _fingerprint(model: nn.Module) -> bytes:
    """Of a model's kind, settings and weights."""
    digest = hashlib.sha256(f"{type(model)} {model} {getattr(model, 'args', None)}".encode())
    for name, value in _flat(model):
        words = np.array(value.reshape(-1).view(mx.uint8)) if value.size else np.empty(0)
        digest.update(f"{name} {value.dtype} {value.shape}".encode() + words.tobytes())
    return digest.digest()


def _generated(model: nn.Module, prompt: list[int], count: int, **options: Any) -> list[int]:
    generate_step = importlib.import_module("mlx_lm.generate").generate_step
    return [int(t) for t, _ in generate_step(prompt=mx.array(prompt), model=model, max_tokens=count, **options)]


class Oracle:
    """Drafts the true continuation, each token wrong with a set chance.

    Args:
        truth: prompt and answer.
        block: tokens a draft.
        right: the chance that a draft token is right.
    """

    def __init__(self, truth: list[int], *, block: int, right: float = 0.7, seed: int = 0) -> None:
        self.truth, self.block, self.right = truth, block, right
        self.random = np.random.default_rng(seed)
        self.contexts: list[Context] = []

    def draft(self, context: Context, limit: int, pending: int = 0) -> Draft:
        self.contexts.append(Context(list(context.tokens), context.state))
        start = len(context.tokens)
        tokens = self.truth[start : start + min(self.block, limit)]
        wrong = self.random.random(len(tokens)) > self.right
        drafted = [(t + 1) % VOCABULARY if w else t for t, w in zip(tokens, wrong, strict=True)]
        return Draft(drafted, [self.right] * len(drafted))
