"""The option --prompt-cache-file: from a file that ``mlx_lm.cache_prompt`` saved to a cache and its model."""

from __future__ import annotations

import json
from typing import Any

from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.regular import check_regular


def open_prompt_cache(path: str, kv_bits: int | None, kv_group_size: int) -> tuple[list[Any], str]:
    """A prompt cache that ``mlx_lm.cache_prompt`` saved, and the model that it belongs to.

    Raises:
        DaariError: it cannot be read, or is quantised in another way than asked for.
    """
    from mlx_lm.models.cache import QuantizedKVCache, load_prompt_cache

    check_regular(path, "prompt cache", instead="Give a file that mlx_lm.cache_prompt saved.")
    try:
        cache, metadata = load_prompt_cache(path, return_metadata=True)
        model = str(metadata["model"])
        json.loads(metadata["tokenizer_config"])
    except (RuntimeError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise DaariError(
            f"{path} is no prompt cache of mlx_lm.cache_prompt: {type(error).__name__}: {error}"
        ) from error
    quantised = next((c for c in cache if isinstance(c, QuantizedKVCache)), None)
    if quantised is not None:
        found = (quantised.bits, quantised.group_size)
        if (kv_bits or found[0], kv_group_size) != found:
            raise DaariError(
                f"{path} is quantised to {found[0]} bits in groups of {found[1]}: give --kv-bits {found[0]} "
                f"--kv-group-size {found[1]}, or another --prompt-cache-file."
            )
    return cache, model
