"""Prompt caches on disk, so that a server that is started again knows what it had read: one file each, mlx-lm's form.

A file says which teacher read it and what it holds. One of another teacher, or one that is not whole, is left alone.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import load_prompt_cache, save_prompt_cache

from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.files import PARTIAL, remove, whole
from daari_mlx.ground.regular import check_regular

log = logging.getLogger("daari_mlx.server")
NAME = "conversation-"
MOST_HEADER = 64 << 20  # bytes


class CacheFiles:
    """The folder of one server's caches.

    Args:
        folder: where they lie; made where it is missing.
        teacher: its fingerprint; see :mod:`daari_mlx.teacher.fingerprint`.
        most: how many files are kept.
        most_bytes: what they may take in all.
    """

    def __init__(self, folder: str, teacher: dict[str, Any], most: int, most_bytes: int) -> None:
        self._folder, self._most, self._most_bytes = Path(folder), most, most_bytes
        self._teacher = hashlib.sha256(json.dumps(teacher, sort_keys=True, default=str).encode()).hexdigest()
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # they hold what was said

    def load(self) -> Iterator[tuple[str, list[int], Any]]:
        """Salt, tokens and cache of each file, the newest last; what a server that was killed tore is removed."""
        for path in self._folder.glob(f"{NAME}*{PARTIAL}"):
            remove(path)
        for path in self._files():
            try:
                yield self._read(path)
            except (DaariError, OSError, RuntimeError, ValueError, KeyError, TypeError, IndexError) as error:
                log.warning("%s is left alone: %s", path, error)

    def save(self, salt: str, tokens: list[int], cache: Any) -> None:
        """Write one; the oldest ones make room."""
        content = json.dumps([self._teacher, salt, tokens])
        path = self._folder / f"{NAME}{hashlib.sha256(content.encode()).hexdigest()[:32]}.safetensors"
        told = {"teacher": self._teacher, "salt": salt, "tokens": json.dumps(tokens)}
        with whole(path) as beside, open(beside, "wb") as file:
            save_prompt_cache(file, cache, told)
        self._drop_oldest()

    def _read(self, path: Path) -> tuple[str, list[int], Any]:
        told = _header(path)
        if told.get("0.teacher") != self._teacher:
            raise DaariError("another model read it, or this one as it was before a change")
        cache, more = load_prompt_cache(str(path), return_metadata=True)
        mx.eval([part.state for part in cache])
        tokens = json.loads(more["tokens"])
        if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
            raise DaariError("it does not say what it holds")
        return more["salt"], tokens, cache

    def _files(self) -> list[Path]:
        """All of them, the oldest first."""
        found = [path for path in self._folder.glob(f"{NAME}*.safetensors") if path.is_file()]
        return sorted(found, key=lambda path: path.stat().st_mtime_ns)

    def _drop_oldest(self) -> None:
        files = self._files()
        sizes = {path: path.stat().st_size for path in files}
        while files and (len(files) > self._most or sum(sizes[path] for path in files) > self._most_bytes):
            os.remove(files.pop(0))


def _header(path: Path) -> dict[str, Any]:
    """What a file says of itself, after seeing that it is as long as it says.

    Raises:
        DaariError: it is not.
    """
    check_regular(path, "prompt cache")
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > MOST_HEADER:
            raise DaariError("it is no prompt cache")
        header = json.loads(file.read(length))
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    if path.stat().st_size != 8 + length + max(ends, default=0):
        raise DaariError("it is not whole")
    return dict(header["__metadata__"])
