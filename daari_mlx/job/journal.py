"""Answers as they come, on the disk at once: one line each, in files that are only ever added to.

Every run writes files of its own. A line that was cut short, by a kill or a full disk, counts for nothing: its row is
answered again.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

from daari_mlx.ground.files import DiskFull, free_bytes
from daari_mlx.ground.regular import open_regular
from daari_mlx.job.work import Answer
from daari_mlx.text.lines import lines_of

SUFFIX = ".jsonl"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
SAFE = 5.0  # seconds after which what was written is on the disk, should the machine lose power


class Place(NamedTuple):
    """Where an answer lies: the number of its file, and the byte its line begins at."""

    file: int
    offset: int


class Journal:
    """The answers of a job.

    Args:
        folder: of its files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._paths: list[Path] = []
        self._reading: dict[int, IO[bytes]] = {}
        self._own: IO[bytes] | None = None
        self._synced = time.monotonic()

    def look(self) -> None:
        """Take in the files that are there."""
        found = sorted(self.folder.glob(f"*{SUFFIX}")) if self.folder.exists() else []
        self._paths += [path for path in found if path not in self._paths]

    @property
    def paths(self) -> list[Path]:
        """Its files, the oldest first."""
        return list(self._paths)

    def entries(self) -> Iterator[tuple[bytes, Place, bool]]:
        """Key, place and whether it failed, of everything that was written, the oldest first."""
        for file, path in enumerate(self._paths):
            offset = 0
            with open_regular(path, "journal") as handle:
                for line in lines_of(handle, str(path)):
                    entry = _entry(line)
                    if entry is not None:
                        yield bytes.fromhex(entry["key"]), Place(file, offset), entry.get("error") is not None
                    offset += len(line)

    def read(self, place: Place) -> dict[str, Any]:
        """An answer."""
        if place.file not in self._reading:
            self._reading[place.file] = open_regular(self._paths[place.file], "journal")
        handle = self._reading[place.file]
        handle.seek(place.offset)
        entry = _entry(handle.readline())
        assert entry is not None, (self._paths[place.file], place.offset)
        return entry

    def begin(self, name: str) -> None:
        """Begin a file of this run's own."""
        path = self.folder / f"{name}{SUFFIX}"
        path.parent.mkdir(parents=True, exist_ok=True)
        self._own = path.open("xb")
        self._paths.append(path)

    def add(self, key: bytes, answer: Answer) -> Place:
        """Write an answer, so that it outlives this process.

        Raises:
            DiskFull: there is no room; what was written before is whole.
        """
        assert self._own is not None
        offset = self._own.tell()
        line = json.dumps(record_of(key, answer), ensure_ascii=False).encode() + b"\n"
        try:
            self._own.write(line)
            self._own.flush()
            if time.monotonic() > self._synced + SAFE:
                os.fsync(self._own.fileno())
                self._synced = time.monotonic()
        except OSError as error:
            if error.errno not in FULL:
                raise
            with suppress(OSError):  # what it still holds finds no room either
                self._own.close()
            raise full(self.folder) from error
        return Place(len(self._paths) - 1, offset)

    def close(self) -> None:
        """Close all files; one of this run's that holds nothing is removed."""
        for handle in self._reading.values():
            handle.close()
        self._reading.clear()
        if self._own is not None:
            with suppress(OSError):
                self._own.close()
            path, self._own = Path(self._own.name), None
            if not path.stat().st_size:
                path.unlink()
                self._paths.remove(path)


def full(path: Path) -> DiskFull:
    """What is told where there is no room."""
    return DiskFull(
        f"Could not write to {path}: the disk is full ({free_bytes(path) / 1e6:.0f} MB free), or a quota or file-size "
        "limit is reached. The answers so far are kept: make room and run the same command again, that goes on."
    )


def record_of(key: bytes, answer: Answer) -> dict[str, Any]:
    """What is kept of an answer; see :meth:`daari_mlx.job.shape.Shape.written`."""
    known: dict[str, Any] = {"key": key.hex()}
    if answer.error is not None:
        return known | {"error": answer.error}
    return known | {
        "answer": answer.text,
        "finish_reason": answer.finish_reason,
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": len(answer.tokens),
    }


def _entry(line: bytes) -> dict[str, Any] | None:
    """What a line holds; None for one that was cut short or damaged."""
    if not line.endswith(b"\n"):
        return None
    try:
        entry = json.loads(line)
        whole = isinstance(entry["error"], str) if "error" in entry else isinstance(entry["answer"], str)
        return entry if whole and len(bytes.fromhex(entry["key"])) == 16 else None
    except (ValueError, RecursionError, KeyError, TypeError):
        return None
