"""How many rows at once, and how long a job takes: what T(B, m) and a graph's held-out answers foretell."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

from daari_mlx.cost.length import MAX_DRAFT, Cost
from daari_mlx.graph.outlook import Outlook
from daari_mlx.measure.forecast import go_through

SIZES = (1, 2, 4, 8, 16, 32, 64)
ENOUGH = 0.97  # of the best rate: beyond it more rows only take more memory
RIGHT = 0.8  # chance of a draft token, given those before it, where no held-out answers tell
SHARE = 0.7  # of the memory that is there, for the weights and all caches
CHUNK = 32  # tokens of a prompt that are read together, at the least


@dataclass(frozen=True)
class Foretold:
    """What answers are expected to cost.

    Attributes:
        cost: T(B, m) of the teacher, in units of T(1, 1).
        drafts: whether rows draft.
        outlook: a graph's held-out answers, or None.
    """

    cost: Callable[[int, int], float]
    drafts: bool
    outlook: Outlook | None = None

    def rows_at_once(self) -> int:
        """Of ``SIZES``, the fewest rows with nearly the most tokens a second."""
        rates = [1 / self.token(rows) for rows in SIZES]
        return next(rows for rows, rate in zip(SIZES, rates, strict=True) if rate >= ENOUGH * max(rates))

    def token(self, rows: int) -> float:
        """What a token of an answer costs with so many rows at once, in units of T(1)."""
        if not self.drafts:
            return self.cost(rows, 1) / rows
        if self.outlook is None or not self.outlook.tokens:
            said = ((1 - RIGHT ** (length + 1)) / (1 - RIGHT) for length in range(MAX_DRAFT + 1))
            return min(self.cost(rows, length + 1) / (rows * tokens) for length, tokens in enumerate(said))
        columns = range(1, MAX_DRAFT + 2)
        shared = Cost(tuple(columns), tuple(self.cost(rows, m) / self.cost(rows, 1) for m in columns))
        found = go_through(self.outlook, shared, MAX_DRAFT)
        return sum(answer.time(shared) for answer in found.answers) / found.tokens * self.cost(rows, 1) / rows

    def answer_tokens(self) -> float | None:
        """How long an answer is on average; None where no held-out answers tell."""
        return self.outlook.tokens / len(self.outlook.answers) if self.outlook and self.outlook.answers else None

    def prompt(self, tokens: float) -> float:
        """What reading so many tokens of prompts costs, in units of T(1)."""
        return tokens * self.cost(1, CHUNK) / CHUNK


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
