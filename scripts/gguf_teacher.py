"""A llama-family GGUF file → a folder that mlx-lm loads: float32 weights, config, tokenizer.

A GGUF keeps everything in one file, under names and in an order of its own. Three things differ from
what mlx-lm reads: the tensor names, the row order of the query and key projections, and the tokenizer,
which is spread over metadata fields.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import daari_mlx  # noqa: F401  on Linux it loads a fast BLAS, which must happen before MLX is imported
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.progress import bar

TOP_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
CONTROL_TOKEN = 3  # the token type of control tokens in GGUF


def mlx_name(gguf_name: str) -> str:
    """The mlx-lm name of a llama tensor: ``blk.3.ffn_up.weight`` → ``model.layers.3.mlp.up_proj.weight``.

    Raises:
        DaariError: for a tensor that a plain llama does not have.
    """
    stem, _, kind = gguf_name.rpartition(".")
    block = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    if kind in ("weight", "bias"):
        if stem in TOP_NAMES:
            return f"{TOP_NAMES[stem]}.{kind}"
        if block and block[2] in BLOCK_NAMES:
            return f"model.layers.{block[1]}.{BLOCK_NAMES[block[2]]}.{kind}"
    raise DaariError(f"no mlx-lm name for the GGUF tensor {gguf_name!r}; this reader knows plain llama models only")


def undo_rope_interleave(rows: np.ndarray, n_heads: int) -> np.ndarray:
    """Query or key rows in the order that mlx-lm's (non-traditional) rope expects.

    GGUF stores the rows of each head as x0 y0 x1 y1 …, where (x, y) is one rotated pair; mlx-lm wants
    x0 x1 … y0 y1 …

    Args:
        rows: (n_heads * head_dim, ...) of any dtype.
        n_heads: heads of *this* projection, so the number of key-value heads for keys.

    Raises:
        DaariError: where the rows do not divide into ``n_heads`` heads of pairs.
    """
    if rows.shape[0] % (2 * n_heads):
        raise DaariError(f"{rows.shape[0]} projection rows do not divide into {n_heads} heads of rope pairs")
    pairs = rows.reshape(n_heads, -1, 2, *rows.shape[1:])  # (heads, head_dim / 2, 2, ...)
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def convert_gguf(gguf_path: Path, folder: Path) -> None:
    """Write the model in ``gguf_path`` to the existing ``folder`` in the form that mlx-lm loads.

    Raises:
        DaariError: where the file is no llama GGUF with a byte-level BPE tokenizer.
        OSError: where the folder cannot be written, e.g. a full disk.
    """
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise DaariError("the package `gguf` is missing; install it with `pip install '.[demo]'` in a clone") from error

    try:
        reader = GGUFReader(gguf_path)
        meta = {name: field.contents() for name, field in reader.fields.items()}
    except (ValueError, IndexError, KeyError) as error:
        raise DaariError(f"{gguf_path} is not a readable GGUF file ({error})") from error
    found = (meta.get("general.architecture"), meta.get("tokenizer.ggml.model"))
    if found != ("llama", "gpt2"):
        raise DaariError(f"{gguf_path}: need architecture llama and tokenizer gpt2, found {found[0]} and {found[1]}")

    weights = _weights(reader.tensors, meta)
    config = model_config(meta, tied="lm_head.weight" not in weights)
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", {k: v for k, v in config.items() if k.endswith("_token_id")})
    _write_tokenizer(folder, meta)

    import mlx.core as mx

    arrays = {name: mx.array(values) for name, values in weights.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), arrays, metadata={"format": "mlx"})


def model_config(meta: Mapping[str, Any], *, tied: bool) -> dict[str, Any]:
    """``config.json`` for mlx-lm's llama from GGUF metadata; ``tied``: embedding and head are one."""
    heads = meta["llama.attention.head_count"]
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": meta["llama.embedding_length"],
        "intermediate_size": meta["llama.feed_forward_length"],
        "num_hidden_layers": meta["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": meta.get("llama.attention.head_count_kv", heads),
        "max_position_embeddings": meta["llama.context_length"],
        # The file holds a float32 of it; rounding gives back the decimal that was written, 1e-05.
        "rms_norm_eps": float(f"{meta['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": meta.get("llama.rope.freq_base", 10000.0),
        "tie_word_embeddings": tied,
        "torch_dtype": "float32",
        "vocab_size": len(meta["tokenizer.ggml.tokens"]),
    }
    for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        if (token := meta.get(f"tokenizer.ggml.{key}_token_id")) is not None:
            config[f"{name}_token_id"] = token
    return config


def _weights(tensors: list[Any], meta: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Every tensor as float32 under its mlx-lm name."""
    from gguf import dequantize

    heads = {
        "attn_q": meta["llama.attention.head_count"],
        "attn_k": meta.get("llama.attention.head_count_kv", meta["llama.attention.head_count"]),
    }
    weights = {}
    for tensor in bar(tensors, desc="dequantising", unit="tensor"):
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        for part, n_heads in heads.items():
            if f".{part}." in tensor.name:
                values = undo_rope_interleave(values, n_heads)
        weights[mlx_name(tensor.name)] = np.ascontiguousarray(values)
    return weights


def _write_tokenizer(folder: Path, meta: Mapping[str, Any]) -> None:
    """``tokenizer.json`` and ``tokenizer_config.json`` of a byte-level BPE that splits off digits."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    if meta.get("tokenizer.ggml.pre") != "smollm":
        raise DaariError(f"need the pre-tokenizer smollm, found {meta.get('tokenizer.ggml.pre')}")
    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    kinds = meta["tokenizer.ggml.token_type"]
    vocab = {token: i for i, token in enumerate(tokens)}
    merges = [tuple(merge.split(" ")) for merge in meta["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [t for t, kind in zip(tokens, kinds, strict=True) if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    tokenizer.save(str(folder / "tokenizer.json"))

    config = {
        # The generic class: a model's own class would put its own pre-tokenizer in place of the file's.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": meta["llama.context_length"],
        "chat_template": meta["tokenizer.chat_template"],
    }
    for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")):
        if (token := meta.get(f"tokenizer.ggml.{key}_token_id")) is not None:
            config[f"{name}_token"] = tokens[token]
    _write_json(folder / "tokenizer_config.json", config)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
