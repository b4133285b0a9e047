"""The frozen teacher: loaded by mlx-lm, asked for its states, never changed."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.given import check_name
from daari_mlx.ground.regular import FOLDER, check_regular, what_is
from daari_mlx.ground.types import FloatArray
from daari_mlx.teacher.fingerprint import context_length, fingerprint
from daari_mlx.teacher.tap import tap_model

PREFILL_STEP_SIZE = 2048  # tokens a forward takes, as mlx-lm's default
MODEL_FILES = (".json", ".safetensors", ".jinja", ".model", ".tiktoken", ".txt", ".py", ".md")  # what mlx-lm writes
MAX_SETTINGS = 1 << 30  # bytes of any of them but weights; the largest tokenizers have some tens of MB


@dataclass(frozen=True)
class Teacher:
    """A loaded model and its tokenizer.

    Attributes:
        model, tokenizer: as ``mlx_lm.load`` gives them.
        source: the folder or Hub repository it was loaded from.
        adapter_path: the folder of its adapter, or None.
    """

    model: nn.Module
    tokenizer: Any
    source: str
    adapter_path: str | None = None

    @property
    def context_length(self) -> int | None:
        """The most tokens it can hold; None where its configuration does not say."""
        return context_length(self.model)

    def fingerprint(self) -> dict[str, Any]:
        """What identifies it (see :mod:`daari_mlx.teacher.fingerprint`), and where it came from."""
        return {
            **fingerprint(self.model, self.tokenizer),
            "source": self.source,
            "adapter_path": self.adapter_path,
        }

    def states(self, tokens: list[int], layer: int | str, first: int) -> FloatArray:
        """The states of one sequence, by one forward (in steps of ``PREFILL_STEP_SIZE`` tokens).

        Args:
            tokens: ``(L,)`` token ids.
            layer: which states: ``"final"`` or a layer's index.
            first: the first position whose state is wanted.

        Returns:
            ``(L - first, H)`` float32.
        """
        from mlx_lm.models.cache import make_prompt_cache

        tap, _ = tap_model(self.model, layer)
        cache = make_prompt_cache(self.model)  # always, as in decoding: gemma3n's states are others without one
        parts = []
        for start in range(0, len(tokens), PREFILL_STEP_SIZE):
            chunk = tokens[start : start + PREFILL_STEP_SIZE]
            with tap.reading() as seen:
                self.model(mx.array([chunk]), cache=cache)
            wanted = seen[-1][0, max(0, first - start) :].astype(mx.float32)
            mx.eval(wanted, [c.state for c in cache] if start + len(chunk) < len(tokens) else [])
            parts.append(np.array(wanted))
        return np.concatenate(parts)


def load_teacher(
    model: str, *, adapter_path: str | None = None, trust_remote_code: bool = False, lazy: bool = False
) -> Teacher:
    """Load a teacher from a folder or a Hub repository.

    Raises:
        DaariError: where there is none, or mlx-lm cannot load it.
    """
    import mlx_lm

    check_model(model)
    if adapter_path is not None:
        check_name(adapter_path, "adapter")
        if what_is(Path(adapter_path) / "adapter_config.json") is None:
            raise DaariError(
                f"There is no adapter at {adapter_path!r}: the folder needs adapter_config.json and "
                "adapters.safetensors."
            )
        check_model_files(adapter_path)
    try:
        loaded, tokenizer = mlx_lm.load(
            path_or_hf_repo=model,
            adapter_path=adapter_path,
            tokenizer_config={"trust_remote_code": trust_remote_code},
            trust_remote_code=trust_remote_code,
            lazy=lazy,
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = f"{type(error).__name__}: {error}"
        if not Path(model).exists():
            raise DaariError(
                f"There is no folder {model!r}, and the Hub did not give a repository of that name ({reason})."
            ) from error
        raise DaariError(f"mlx-lm could not load the model in {model!r}: {reason}") from error
    return Teacher(loaded, tokenizer, model, adapter_path)


def check_model(model: str) -> None:
    """What can be told of a model's name before anything is loaded: a folder whose files can be read, or a repository.

    Raises:
        DaariError: it is neither; see :func:`check_model_files`.
    """
    check_name(model, "model")
    if (found := what_is(model)) == FOLDER:
        check_model_files(model)
    elif found is not None or not re.fullmatch(r"[\w.-]+/[\w.-]+", model):
        told = f"There is no model at {model!r}" if found is None else f"The model {model!r} is {found}"
        raise DaariError(f"{told}: give a folder that mlx-lm can load, or a Hub repository as 'user/name'.")


def check_model_files(folder: str | Path) -> None:
    """See that what mlx-lm would read of a model's folder can be read to an end; nothing where there is no folder.

    Raises:
        DaariError: one of its files is a pipe, a device or a link that leads nowhere, or is far too large.
    """
    if what_is(folder) != FOLDER:
        return
    for name in sorted(os.listdir(folder)):
        path = Path(folder) / name
        if not name.endswith(MODEL_FILES) or what_is(path) == FOLDER:
            continue
        check_regular(path, f"file {name} of the model")
        if not name.endswith(".safetensors") and path.stat().st_size > MAX_SETTINGS:
            raise DaariError(f"{path} has {path.stat().st_size:,} bytes; no such file of a model has {MAX_SETTINGS:,}.")
