"""Prompt caches of conversations, kept for their next turn within a budget of bytes, in mlx-lm's own store."""

from __future__ import annotations

import logging
from typing import Any

from mlx_lm.models.cache import LRUPromptCache

from daari_mlx.serve.cache_files import CacheFiles

log = logging.getLogger("daari_mlx.server")
LEAST = 16  # tokens that are worth a copy


class PromptCaches:
    """Prompt caches by what they hold; all of it on the thread that owns the model.

    Args:
        most: how many are kept at the most; 0 for none.
        most_bytes: what all of them may take.
        files: where they are kept over restarts, or None.
    """

    def __init__(self, most: int, most_bytes: int, files: CacheFiles | None = None) -> None:
        self._most, self._most_bytes, self._files = most, most_bytes, files
        self._store = LRUPromptCache(max(most, 1), most_bytes)
        self._unwritten: dict[tuple[str, tuple[int, ...]], None] = {}

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
        return bool(self._unwritten)

    def load(self) -> None:
        """Take in what an earlier server left on disk."""
        if self._files is not None and self.wanted:
            for salt, tokens, cache in self._files.load():
                self._insert(salt, tokens, cache)

    def write_one(self) -> None:
        """Write one of those that wait, the newest first; one that was dropped in the meantime is not."""
        if self._files is None or not self._unwritten:
            return
        (salt, tokens), _ = self._unwritten.popitem()
        cache, rest = self._store.fetch_nearest_cache(salt, list(tokens))
        if cache is None or rest:
            return
        try:
            self._files.save(salt, list(tokens), cache)
        except (OSError, ValueError, RuntimeError) as error:  # a full disk is no reason to answer nobody
            log.warning("a prompt cache could not be written: %s", error)

    def write(self) -> None:
        """Write all that wait."""
        while self._unwritten:
            self.write_one()

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
        if not self._insert(salt, tokens, cache) or self._files is None:
            return
        self._unwritten[salt, tuple(tokens)] = None
        while len(self._unwritten) > self._most:
            del self._unwritten[next(iter(self._unwritten))]

    def _insert(self, salt: str, tokens: list[int], cache: Any) -> bool:
        fits = self.wanted and len(tokens) > LEAST and sum(part.nbytes for part in cache) <= self._most_bytes
        if fits:
            self._store.insert_cache(salt, tokens, cache)
        return fits
