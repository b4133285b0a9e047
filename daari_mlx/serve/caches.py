"""What conversations have read is kept for their next turn, within a budget of bytes; mlx-lm's own store does it."""

from __future__ import annotations

from typing import Any

from mlx_lm.models.cache import LRUPromptCache

LEAST = 16  # tokens that are worth a copy


class PromptCaches:
    """Prompt caches by what they hold.

    Args:
        most: how many are kept at the most; 0 for none.
        most_bytes: what all of them may take.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._store = LRUPromptCache(max(most, 1), most_bytes)

    @property
    def wanted(self) -> bool:
        """Whether anything is kept."""
        return self._most > 0 and self._most_bytes > 0

    @property
    def nbytes(self) -> int:
        """Bytes of all of them."""
        return int(self._store.nbytes)

    def __len__(self) -> int:
        return len(self._store)

    @property
    def unwritten(self) -> bool:
        """Whether something waits to be written to disk."""
        return False

    def write_one(self) -> None:
        """Write one of those that wait."""

    def write(self) -> None:
        """Write all that wait."""

    def fetch(self, salt: str, prompt: list[int]) -> tuple[int, Any]:
        """How many first tokens of a prompt are known, and their cache, which is the caller's; (0, None) for none.

        At least the last token is left to be read.
        """
        if not self.wanted or len(prompt) <= LEAST:
            return 0, None
        cache, rest = self._store.fetch_nearest_cache(salt, prompt[:-1])
        known = len(prompt) - 1 - len(rest)
        return (known, cache) if cache is not None and known >= LEAST else (0, None)

    def keep(self, salt: str, tokens: list[int], cache: Any) -> None:
        """Keep a cache that holds these tokens; one that is larger than the budget is not."""
        if self.wanted and sum(part.nbytes for part in cache) <= self._most_bytes:
            self._store.insert_cache(salt, tokens, cache)
