"""Prompts as the public functions take them: text, or token ids in whatever holds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.given import check_text

Prompt = Any  # str | list[int] | tuple[int, ...] | numpy.ndarray | mlx.core.array


def encode_prompt(tokenizer: Any, prompt: Prompt) -> list[int]:
    """Token ids of a prompt, encoded as mlx-lm does.

    Args:
        prompt: text; or see :func:`token_ids`.

    Raises:
        DaariError: it is empty, or neither text nor token ids.
    """
    if isinstance(prompt, str):
        check_text(prompt, "The prompt")
        special = tokenizer.bos_token is None or not prompt.startswith(tokenizer.bos_token)
        prompt = tokenizer.encode(prompt, add_special_tokens=special)
    ids = token_ids(prompt)
    if not ids:
        raise DaariError("The prompt is empty: it has no tokens. Give at least one.")
    return ids


def token_ids(prompt: Prompt) -> list[int]:
    """Token ids as a list of Python's integers.

    Args:
        prompt: a list, a tuple or any other sequence of integers; an array of one dimension and integer type, of NumPy,
            MLX or another library whose arrays have ``tolist``.

    Raises:
        DaariError: it is something else, or an id is negative.
    """
    instead = "Give text, or token ids: a list or an array of integers of one dimension"
    if isinstance(prompt, Mapping):  # what transformers' apply_chat_template returns unless told otherwise
        instead += ", such as its ['input_ids']" if "input_ids" in prompt else ""
        raise DaariError(f"The prompt is a {type(prompt).__name__}. {instead}.")
    found: Any = prompt.tolist() if hasattr(prompt, "tolist") else prompt
    if isinstance(found, (str, bytes)) or not isinstance(found, Sequence):
        raise DaariError(f"The prompt is {_told(prompt)}. {instead}.")
    ids: list[int] = []
    for place, token in enumerate(found):
        if hasattr(token, "item") and not getattr(token, "shape", ()):
            token = token.item()  # a number of an array library
        if isinstance(token, bool) or not isinstance(token, int):
            raise DaariError(f"Item {place} of the prompt is {_told(token)}, no token id. {instead}.")
        if token < 0:
            raise DaariError(f"Item {place} of the prompt is {token}: token ids begin at 0.")
        ids.append(token)
    return ids


def _told(value: Any) -> str:
    shape = getattr(value, "shape", None)
    dimensions = f" of shape {tuple(shape)}" if shape is not None else ""
    return f"a {type(value).__name__}{dimensions} ({str(value)[:20]})" if value is not None else "None"
