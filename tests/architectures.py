"""Tiny seeded random models of every text architecture in the installed mlx-lm.

A configuration is the architecture's own dataclass of arguments, each field filled from ``SIZES`` by its name, and
what this architecture needs besides, from ``OWN``. So a new architecture with the usual names needs no line here.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

VOCABULARY = 128
WINDOW = 16  # of sliding windows, attention chunks, sparse blocks
FULL, SLIDING = "full_attention", "sliding_attention"

# modules of mlx_lm.models that hold parts of models, and no model
PARTS = {
    "activations": "functions", "base": "base classes", "bitlinear_layers": "a layer", "cache": "caches",
    "gated_delta": "a recurrence", "mla": "a layer", "pipeline": "a mixin", "rope_utils": "rotary embeddings",
    "ssm": "a recurrence", "switch_layers": "expert layers",
}  # fmt: skip

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "num_vocab": VOCABULARY, "embedding_size": VOCABULARY,
    "vocab_size_per_layer_input": VOCABULARY, "pad_token_id": 0,
    "hidden_size": 32, "hidden_dim": 32, "n_embd": 32, "d_model": 32, "model_dim": 32, "dim_model_base": 32,
    "moe_hidden_size": 32, "num_hidden_layers": 4, "num_layers": 4, "n_layer": 4, "n_layers": 4,
    "num_transformer_layers": 4,
    "num_attention_heads": 4, "num_heads": 4, "n_heads": 4, "n_head": 4, "swa_num_attention_heads": 4,
    "num_key_value_heads": 2, "num_kv_heads": 2, "n_kv_heads": 2, "swa_num_key_value_heads": 2,
    "num_attention_groups": 2, "n_shared_head": 2, "num_kv_shared_layers": 0, "num_kv_reuse_layers": 2,
    "head_dim": 8, "v_head_dim": 8, "global_head_dim": 8, "swa_head_dim": 8, "swa_v_head_dim": 8, "kv_channels": 8,
    "hidden_size_per_head": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "kv_lora_rank": 16, "q_lora_rank": 16,
    "rotary_dim": 4, "o_lora_rank": 8, "o_groups": 2, "index_head_dim": 8, "index_n_heads": 2, "index_topk": 8,
    "intermediate_size": 48, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
    "shared_intermediate_size": 16, "dense_intermediate_size": 48, "moe_shared_expert_intermediate_size": 16,
    "intermediate_size_mlp": 48, "ff_intermediate_size": 48, "mlp_hidden_size": 96, "ffn_hidden_size": 48,
    "expert_ffn_hidden_size": 16, "n_inner": 48, "share_expert_dim": 16, "block_ff_dim": 48, "block_dim": 32,
    "num_experts": 4, "n_routed_experts": 4, "num_local_experts": 4, "moe_num_experts": 4, "num_experts_per_tok": 2,
    "num_experts_per_token": 2, "moe_topk": 2, "moe_top_k": 2, "moe_k": 2, "top_k_experts": 2, "num_shared_experts": 1,
    "n_shared_experts": 1, "num_shared_expert": 1, "moe_num_shared_experts": 1, "zero_expert_num": 2, "n_group": 1,
    "topk_group": 1, "first_k_dense_replace": 1, "num_dense_layers": 1, "moe_layer_freq": 1, "decoder_sparse_step": 1,
    "mlp_only_layers": [], "interleave_moe_layer_step": 1, "zero_expert_type": "identity", "attention_method": "MLA",
    "norm_topk_prob": True, "use_expert_bias": True, "routed_scaling_factor": 1.0, "scoring_func": "sigmoid",
    "topk_method": "noaux_tc", "score_function": "sigmoid",
    "sliding_window": WINDOW, "window_size": WINDOW, "attention_window_size": WINDOW, "attention_chunk_size": WINDOW,
    "sliding_window_size": WINDOW, "loop_window_size": WINDOW, "sliding_window_pattern": 2,
    "layer_types": [SLIDING, FULL, SLIDING, FULL],
    "rms_norm_eps": 1e-5, "layer_norm_eps": 1e-5, "layer_norm_epsilon": 1e-5, "layernorm_epsilon": 1e-5,
    "norm_eps": 1e-5, "norm_epsilon": 1e-5, "post_norm_eps": 1e-5, "mixer_rms_eps": 1e-5,
    "rope_theta": 10000.0, "rope_local_base_freq": 10000.0, "swa_rope_theta": 10000.0, "rotary_emb_base": 10000,
    "rotary_pct": 0.5, "partial_rotary_factor": 0.5, "max_position_embeddings": 4096, "n_positions": 4096,
    "n_ctx": 4096, "block_size": 4096, "model_max_length": 4096,
    "attention_bias": False, "mlp_bias": False, "use_bias": False, "use_qkv_bias": False, "bias": False,
    "attention_in_multiplier": 1.0, "attention_multiplier": 0.3, "embedding_multiplier": 1.0, "logits_scaling": 1.0,
    "residual_multiplier": 1.0, "logit_scale": 0.25, "logits_soft_cap": 30.0, "final_logit_softcapping": 30.0,
    "attn_logit_softcapping": 50.0, "query_pre_attn_scalar": 8, "scale_depth": 1.4, "scale_emb": 1.0,
    "post_norm": True, "qk_norm": True, "use_qk_norm": True, "tie_word_embeddings": False, "hidden_act": "silu",
    "state_size": 16, "ssm_state_size": 16, "conv_kernel": 4, "n_groups": 1, "use_conv_bias": True,
    "time_step_rank": 2, "time_step_limit": (0.001, 100.0), "conv_bias": False, "conv_L_cache": 3, "conv_window": 2,
    "mamba_d_conv": 4, "mamba_d_state": 16, "mamba_expand": 2, "mamba_n_heads": 4, "mamba_d_head": 16,
    "mamba_num_heads": 4, "mamba_head_dim": 16, "mamba_proj_bias": False, "mamba_n_groups": 1, "mamba_d_ssm": 64,
    "mamba_conv_bias": True, "conv1d_width": 4, "short_conv_kernel_size": 4, "group_norm_size": 2,
    "layer_group_size": 2, "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4, "full_attention_interval": 2,
    "linear_allow_neg_eigval": True, "a_low_rank_dim": 8, "v_low_rank_dim": 8, "gate_low_rank_dim": 8,
    "decay_low_rank_dim": 8,
}  # fmt: skip

YARN = {"type": "yarn", "rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64, "mscale": 1.0,
        "mscale_all_dim": 1.0, "beta_fast": 32, "beta_slow": 1, "rope_theta": 10000.0}  # fmt: skip
LLAMA4 = {**YARN, "llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 64}
BY_TYPE = {kind: {"rope_theta": 10000.0, "rope_type": "default"} for kind in (FULL, SLIDING)}
LINEAR = {"num_heads": 4, "head_dim": 8, "short_conv_kernel_size": 4, "kda_layers": [1, 3], "full_attn_layers": [2, 4]}
MHA = {"num_key_value_heads": 4}
DEFAULT = ...  # in ``OWN``: leave the dataclass's own value
NO_WINDOWS = {"layer_types": DEFAULT}

# what a field's name does not tell; ("text", (module, class, fields)) is a nested text model
OWN: dict[str, dict[str, Any]] = {
    "afm7": {"num_layers": 4, "hidden_dim_scale_factor": 2.0},
    "baichuan_m1": {"sliding_window_layers": [0, 2], "num_swa_attention_heads": 4, "num_swa_key_value_heads": 2},
    "bailing_hybrid": MHA,
    "bailing_moe": {"head_dim": DEFAULT, "rotary_dim": DEFAULT, "partial_rotary_factor": 1.0},
    "bailing_moe_v3": {"num_experts": 8, "n_group": 2, "topk_group": 2},
    "bitnet": {"head_dim": 8},
    "dbrx": {
        "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
    },
    "deepseek": MHA,
    "deepseek_v2": {**MHA, "topk_method": "greedy", "rope_scaling": YARN},
    "deepseek_v3": MHA,
    "deepseek_v32": MHA,
    "deepseek_v41": {
        "compress_ratios": (0, 4, 4, 4), "kv_source_layer_ids": (1, 3), "index_source_layer_ids": (1, 3),
        "qk_rope_head_dim": 4, "num_key_value_heads": DEFAULT, "scoring_func": "sqrtsoftplus", "index_topk": 4,
        "rope_scaling": YARN,
    },
    "exaone4": {"rope_scaling": None, "sliding_window_pattern": "LLG"},
    "exaone_moe": {"is_moe_layer": [False, True, False, True]},
    "gemma3": {"text": ("gemma3_text", "ModelArgs", {})},
    "gemma3n": {
        "text": ("gemma3n", "TextConfig", {
            "num_kv_shared_layers": 1, "num_hidden_layers": 5, "layer_types": [SLIDING, FULL, SLIDING, FULL, SLIDING],
            "activation_sparsity_pattern": [0.0] * 5, "hidden_size_per_layer_input": 8, "altup_num_inputs": 2,
            "altup_coef_clip": 120.0, "altup_correct_scale": True, "altup_active_idx": 0, "laurel_rank": 8,
        }),
    },
    "gemma4": {"text": ("gemma4_text", "ModelArgs", {"hidden_size_per_layer_input": 8})},
    "gemma4_text": {
        "hidden_size_per_layer_input": 8, "num_hidden_layers": 6, "num_kv_shared_layers": 2,
        "layer_types": [SLIDING, FULL, SLIDING, FULL, SLIDING, FULL], "num_experts": DEFAULT,
        "moe_intermediate_size": DEFAULT, "top_k_experts": DEFAULT,
    },
    "glm4_moe": {"rope_scaling": None},
    "glm4_moe_lite": MHA,
    "glm_moe_dsa": {**MHA, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}},
    "granitemoehybrid": {"layer_types": ["mamba", "attention", "mamba", "attention"]},
    "hunyuan": {
        "use_mixed_mlp_moe": True, "use_cla": True, "cla_share_factor": 2,
        "rope_scaling": {"type": "dynamic", "factor": 1.0, "alpha": 1000.0},
    },
    "hunyuan_v1_dense": {"rope_scaling": {"type": "dynamic", "factor": 1.0, "alpha": 1000.0}},
    "jamba": {
        "attn_layer_offset": 1, "attn_layer_period": 2, "expert_layer_offset": 1, "expert_layer_period": 2,
    },
    "kimi_k25": {"text": ("kimi_k25", "TextConfig", MHA)},
    "kimi_k3": {
        "text": ("kimi_k3", "TextArgs", {
            **MHA, "hidden_act": "situ", "linear_attn_config": LINEAR, "attn_res_block_size": 2,
            "mla_use_output_gate": True, "routed_expert_hidden_size": DEFAULT,
        }),
    },
    "kimi_linear": {**MHA, "linear_attn_config": LINEAR, "num_experts_per_token": 2},
    "kimi_vl": {"text": ("kimi_vl", "TextArgs", MHA)},
    "laguna": {"rope_parameters": BY_TYPE, "partial_rotary_factor": 1.0, "mlp_layer_types": DEFAULT},
    "lfm2": {
        "block_multiple_of": 8, "block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": False,
        "layer_types": ["conv", FULL, "conv", FULL],
    },
    "lfm2-vl": {"text": ("lfm2", "ModelArgs", {
        "block_multiple_of": 8, "block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": False,
        "layer_types": ["conv", FULL, "conv", FULL],
    })},
    "lfm2_moe": {"layer_types": ["conv", FULL, "conv", FULL]},
    "lille-130m": {"n_embd": 64},  # its layers are 256 wide or nothing
    "llama": {"tie_word_embeddings": True},
    "llama4": {
        "text": ("llama4", "TextArgs", {
            "num_experts_per_tok": 1, "rope_scaling": None, "attn_temperature_tuning": 4, "floor_scale": 16,
        }),
    },
    "llama4_text": {"no_rope_layers": [1, 0, 1, 0]},
    "longcat_flash": {**MHA, "mla_scale_q_lora": True, "mla_scale_kv_lora": True, "num_layers": 2},
    "longcat_flash_ngram": {
        **MHA, "mla_scale_q_lora": True, "mla_scale_kv_lora": True, "num_layers": 2, "ngram_vocab_size_ratio": 3,
        "emb_neighbor_num": 3, "emb_split_num": 2,
    },
    "mamba2": {"tie_word_embeddings": True, "num_heads": 4, "head_dim": 16},
    "mellum": {"rope_parameters": BY_TYPE},
    "mimo_v2_flash": {
        "hybrid_layer_pattern": [1, 0, 1, 0], "moe_layer_freq": [0, 1, 1, 1], "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False,
    },
    "minicpm3": {
        **MHA, "rope_scaling": {"original_max_position_embeddings": 64, "short_factor": 1.0, "long_factor": 1.5},
    },
    "minimax_m3_vl": {
        "text": ("minimax_m3_vl", "TextArgs", {
            "layer_types": [FULL, "sparse", FULL, "sparse"], "moe_layer_freq": DEFAULT, "index_block_size": 4,
            "index_topk_blocks": 3,
        }),
    },
    "ministral3": {"rope_parameters": LLAMA4},
    "mistral3": {"text": ("ministral3", "ModelArgs", {"rope_parameters": LLAMA4})},
    "mistral4": {**MHA, "rope_parameters": LLAMA4, "head_dim": DEFAULT, "rope_scaling": DEFAULT},
    "muse_spark": {
        "text": ("muse_spark", "TextArgs", {
            "rope_parameters": {"rope_theta": 10000.0}, "layer_rope_theta": [10000.0, 0, 10000.0, 0],
            "output_multiplier": 0.5, "num_shared_experts": 0,
        }),
    },
    "nanbeige": {"num_loops": 2, "num_hidden_layers": 2},
    "nanochat": MHA,
    "nemotron-nas": {
        "num_hidden_layers": 3,
        "block_configs": [
            {"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 1.0}},
            {"attention": {"no_op": True}, "ffn": {"ffn_mult": 1.0}},
            {"attention": {"n_heads_in_group": 4}, "ffn": {"no_op": True}},
        ],
    },
    "nemotron_h": {"layers_block_type": DEFAULT, "layer_types": ["mamba", "attention", "mlp", "mamba"],
                   "hybrid_override_pattern": DEFAULT},
    "olmo_hybrid": {"layer_types": ["linear_attention", FULL, "linear_attention", FULL]},
    "openelm": {
        "num_query_heads": [4] * 4, "num_kv_heads": [2] * 4, "ffn_multipliers": [1.5] * 4, "ffn_dim_divisor": 8,
    },
    "phi": {"partial_rotary_factor": 0.5},
    "phi3small": {
        "vocab_size": 100352,  # it masks ids up to there, whatever its vocabulary
        "dense_attention_every_n_layers": 2, "gegelu_limit": 20.0, "num_hidden_layers": 2,
        "blocksparse_block_size": 32, "blocksparse_num_local_blocks": 1, "blocksparse_vert_stride": 2,
    },
    "phixtral": {"rotary_dim": 4},
    "pixtral": {"text": ("llama", "ModelArgs", NO_WINDOWS)},
    "plamo2": {"max_position_embeddings": 4096, "full_attention_idx": DEFAULT},
    "prism_hadamard_qwen35": {
        "tensor_namespace": "mlx-vlm-qwen3_5", "quantization": {"bits": 2, "group_size": 128, "mode": "affine"},
        "modules": [
            {"path": "model.embed_tokens", "embedding": True, "dtype": "float16", "block": 0},
            {"path": "lm_head", "embedding": False, "dtype": "float16", "block": 0},
        ],
        "text": ("qwen3_5", "TextModelArgs", {"hidden_size": 128, "num_experts": 0, "rope_parameters": DEFAULT}),
    },
    "qwen2_vl": {"text": ("qwen2", "ModelArgs", {})},
    "qwen3_5": {"text": ("qwen3_5", "TextModelArgs", {"num_experts": 0, "rope_parameters": DEFAULT})},
    "qwen3_5_moe": {"text": ("qwen3_5", "TextModelArgs", {"rope_parameters": DEFAULT})},
    "qwen3_vl": {"text": ("qwen3", "ModelArgs", {})},
    "qwen3_vl_moe": {"text": ("qwen3_moe", "ModelArgs", {})},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"], "num_key_value_heads": 1},
    "rwkv7": {"num_hidden_layers": 2},
    "spark2_5": {"hidden_act": "gelu", "rope_parameters": BY_TYPE},
    "step3p5": {"moe_num_experts": 4},
    "stablelm": {"use_parallel_residual": True, "qk_layernorm": True},
    "starcoder2": {"tie_word_embeddings": True},
}  # fmt: skip


def names() -> list[str]:
    """Every module of mlx_lm.models that is a model."""
    import mlx_lm.models

    return sorted(m.name for m in pkgutil.iter_modules(mlx_lm.models.__path__) if m.name not in PARTS)


# what mlx-lm itself cannot run here, and why
BROKEN = {"olmo": "it needs the package hf_olmo, and any forward of several tokens fails"}
if not mx.metal.is_available():
    BROKEN |= dict.fromkeys(("bitnet", "muse_spark"), "it has a kernel for Metal and nothing in its place")
# what runs, and whose rows in a block are not those of single tokens
REFUSED = {"phi3small": "its sparse layers add a boolean mask"}
# what rounds inside the model: by a hair's breadth of rounding a value may fall to the next step, in mlx-lm alone too
# when it reads the same tokens in blocks of another size; so in float32 near-ties may break otherwise
ROUNDED = {
    "afm7": "it rounds keys and values to 8 bits",
    "deepseek_v41": "it rounds keys, values and queries to 8 or 4 bits",
    "muse_spark": "it rounds states to bfloat16",
    "prism_hadamard_qwen35": "it rounds what its packed layers give to float16",
}
WORKING = [name for name in names() if name not in BROKEN and name not in REFUSED]


def filled(arguments: type, own: dict[str, Any]) -> dict[str, Any]:
    """The fields of a dataclass of arguments by ``SIZES``, and ``own``."""
    known = {f.name: SIZES[f.name] for f in dataclasses.fields(arguments) if f.name in SIZES}
    return {name: value for name, value in {**known, **own}.items() if value is not DEFAULT}


def configuration(name: str) -> dict[str, Any]:
    """The configuration of one tiny model."""
    own = dict(OWN.get(name, {}))
    text = own.pop("text", None)
    module = importlib.import_module(f"mlx_lm.models.{name}")
    config = {"model_type": name, **filled(module.ModelArgs, own)}
    if text is not None:
        holder, arguments, changes = text
        nested = filled(getattr(importlib.import_module(f"mlx_lm.models.{holder}"), arguments), changes)
        config["text_config"] = {"model_type": holder, **nested}
    return config


def build(name: str, seed: int = 0, dtype: mx.Dtype = mx.float32, **changes: Any) -> nn.Module:
    """A seeded random model; weights are large enough that its greedy answers wander over the vocabulary."""
    module = importlib.import_module(f"mlx_lm.models.{name}")
    mx.random.seed(seed)
    model = module.Model(module.ModelArgs.from_dict({**configuration(name), **changes}))
    model.eval()
    embeddings = {f"{path}.weight" for path, m in model.named_modules() if isinstance(m, nn.Embedding)}
    weights = tree_flatten(model.parameters())
    # small embeddings: a tied head would else repeat the token that came in
    model.load_weights([(path, _grown(value, 1.5 if path in embeddings else 4.5, dtype)) for path, value in weights])
    mx.eval(model.parameters())
    return model


def _grown(value: mx.array, factor: float, dtype: mx.Dtype) -> mx.array:
    """Matrices times ``factor``, and something other than zero where a model starts from zero."""
    if value.dtype == mx.uint32:  # packed weights
        return mx.random.randint(0, 2**31 - 1, value.shape).astype(mx.uint32)
    if not mx.issubdtype(value.dtype, mx.floating):
        return value
    if not mx.any(value).item():
        return 0.05 * mx.random.normal(value.shape, dtype=dtype)
    return (value * factor if value.ndim > 1 else value).astype(dtype)
