"""Reading a GGUF: what it keeps differently is undone, and what is no plain llama is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import gguf_teacher
import numpy as np
import pytest

from daari_mlx.ground.errors import DaariError

TINY = Path(__file__).parents[1] / "tiny_teacher"


@pytest.mark.parametrize("n_heads", [1, 2, 3])
def test_rope_on_undone_rows_turns_the_same_pairs_as_on_the_stored_rows(n_heads):
    import mlx.core as mx

    stored = np.random.default_rng(0).normal(size=(n_heads * 8, 5)).astype(np.float32)  # rows of x0 y0 x1 y1 …
    undone = gguf_teacher.undo_rope_interleave(stored, n_heads)
    assert undone.shape == stored.shape and undone.dtype == stored.dtype

    def turned(rows: np.ndarray, *, interleaved: bool) -> np.ndarray:
        heads = mx.array(rows.T.reshape(1, 5, n_heads, 8).swapaxes(1, 2))  # (1, heads, time, head_dim)
        out = mx.fast.rope(heads, 8, traditional=interleaved, base=1e4, scale=1.0, offset=3)
        return np.array(out.swapaxes(1, 2)).reshape(5, -1).T

    expected = gguf_teacher.undo_rope_interleave(turned(stored, interleaved=True), n_heads)
    np.testing.assert_allclose(turned(undone, interleaved=False), expected, rtol=1e-5, atol=1e-6)
    assert not np.allclose(turned(stored, interleaved=False), turned(stored, interleaved=True))


def test_rows_that_do_not_divide_into_heads_of_pairs_are_refused():
    with pytest.raises(DaariError, match="3 heads"):
        gguf_teacher.undo_rope_interleave(np.zeros((8, 2)), 3)


@pytest.mark.parametrize(
    ("gguf_name", "mlx_name"),
    [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("output.weight", "lm_head.weight"),
        ("blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight"),
        ("blk.12.attn_k.weight", "model.layers.12.self_attn.k_proj.weight"),
        ("blk.3.attn_q.bias", "model.layers.3.self_attn.q_proj.bias"),
        ("blk.29.ffn_down.weight", "model.layers.29.mlp.down_proj.weight"),
    ],
)
def test_names(gguf_name, mlx_name):
    assert gguf_teacher.mlx_name(gguf_name) == mlx_name


@pytest.mark.parametrize(
    "name", ["blk.0.ffn_gate_exps.weight", "rope_freqs.weight", "blk.x.attn_q.weight", "token_embd"]
)
def test_a_tensor_that_a_plain_llama_lacks_is_refused_by_name(name):
    with pytest.raises(DaariError, match=name):
        gguf_teacher.mlx_name(name)


def write_gguf(path: Path, *, architecture: str = "llama", pre: str = "smollm") -> None:
    """The tiny teacher as a GGUF, with query and key rows interleaved as such files keep them."""
    gguf = pytest.importorskip("gguf")
    from safetensors.numpy import load_file

    config = json.loads((TINY / "config.json").read_text())
    tokenizer = json.loads((TINY / "tokenizer.json").read_text())
    vocab = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)
    special = {token["content"] for token in tokenizer["added_tokens"]}
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(vocab)
    writer.add_token_types([3 if token in special else 1 for token in vocab])
    writer.add_token_merges([" ".join(merge) for merge in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_pad_token_id(config["pad_token_id"])
    writer.add_unk_token_id(0)
    writer.add_chat_template(json.loads((TINY / "tokenizer_config.json").read_text())["chat_template"])
    stored_names = {value: key for key, value in (gguf_teacher.TOP_NAMES | gguf_teacher.BLOCK_NAMES).items()}
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, values in load_file(TINY / "model.safetensors").items():
        stem, kind = name.rsplit(".", 1)
        prefix = ""
        if stem.startswith("model.layers."):
            _, _, layer, stem = stem.split(".", 3)
            prefix = f"blk.{layer}."
        if n_heads := heads.get(stem.rsplit(".", 1)[-1]):
            halves = values.reshape(n_heads, 2, -1, values.shape[1])
            values = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))
        writer.add_tensor(f"{prefix}{stored_names[stem]}.{kind}", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_of_the_tiny_teacher_converts_back_to_the_tiny_teacher(tmp_path):
    from mlx_lm import load
    from safetensors.numpy import load_file

    write_gguf(tmp_path / "tiny.gguf")
    folder = tmp_path / "out"
    folder.mkdir()
    gguf_teacher.convert_gguf(tmp_path / "tiny.gguf", folder)

    made, original = load_file(folder / "model.safetensors"), load_file(TINY / "model.safetensors")
    assert set(made) == set(original)
    for name, values in original.items():
        assert made[name].dtype == np.float32
        np.testing.assert_array_equal(made[name], values, err_msg=name)
    config, config_of_tiny = (json.loads((place / "config.json").read_text()) for place in (folder, TINY))
    assert config == config_of_tiny
    (_, tokenizer, *_), (_, tokenizer_of_tiny, *_) = load(str(folder)), load(str(TINY))
    assert tokenizer.eos_token_ids == tokenizer_of_tiny.eos_token_ids
    chat = [{"role": "user", "content": "Code 4711 שלום ಕನ್ನಡ 🎉"}]
    assert tokenizer.apply_chat_template(chat) == tokenizer_of_tiny.apply_chat_template(chat)


@pytest.mark.parametrize("wrong", [{"architecture": "mamba"}, {"pre": "llama-bpe"}])
def test_another_kind_of_gguf_is_refused(tmp_path, wrong):
    write_gguf(tmp_path / "tiny.gguf", **wrong)
    with pytest.raises(DaariError, match="need"):
        gguf_teacher.convert_gguf(tmp_path / "tiny.gguf", tmp_path)
    assert not (tmp_path / "model.safetensors").exists()


def test_a_file_that_is_no_gguf_is_refused(tmp_path):
    pytest.importorskip("gguf")
    (tmp_path / "noise.gguf").write_bytes(b"not a model at all" * 20)
    with pytest.raises(DaariError, match="not a readable GGUF"):
        gguf_teacher.convert_gguf(tmp_path / "noise.gguf", tmp_path)
