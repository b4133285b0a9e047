"""How many rows at once: as few as bring nearly the best rate that T(B, m) foretells, within the memory."""

from __future__ import annotations

import os

import mlx.core as mx

from daari_mlx.cost.length import MAX_DRAFT, Cost

SIZES = (1, 2, 4, 8, 16, 32, 64)
ENOUGH = 0.97  # of the best rate: beyond it more rows only take more memory
RIGHT = 0.8  # chance of a draft token, given those before it: where answers are decisions
SHARE = 0.7  # of the memory that is there, for the weights and all caches


def rows_at_once(cost: Cost, *, drafts: bool) -> int:
    """Of ``SIZES``, the number of rows with about the most tokens a second.

    Args:
        cost: T(m) of the teacher; a forward over m columns of B rows costs about what B·m rows of one text do.
        drafts: whether rows draft.
    """
    rates = [_rate(rows, cost, MAX_DRAFT if drafts else 0) for rows in SIZES]
    return next(rows for rows, rate in zip(SIZES, rates, strict=True) if rate >= ENOUGH * max(rates))


def _rate(rows: int, cost: Cost, longest: int) -> float:
    """Tokens per time of T(1), at the best length of a draft."""
    expected = ((1 - RIGHT ** (length + 1)) / (1 - RIGHT) for length in range(longest + 1))
    return max(rows * tokens / cost(rows * (length + 1)) for length, tokens in enumerate(expected))


def cache_bytes() -> int | None:
    """What the rows' caches may take beside the weights that are loaded; None where the machine does not say."""
    if mx.metal.is_available():
        whole = int(mx.device_info().get("max_recommended_working_set_size", 0))
    else:
        try:
            whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        except (OSError, ValueError):
            return None
    return max(int(SHARE * whole) - mx.get_active_memory(), 1) if whole else None
