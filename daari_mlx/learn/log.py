"""The log of answers: a file that is only appended to, whose torn end is cut off, and that is replaced whole.

A record is its length and CRC-32, as little-endian uint32, then a letter and the record itself. A damaged one behind
which a whole one stands is passed over.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np

from daari_mlx.graph.nodes import Projection
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.files import whole
from daari_mlx.ground.regular import check_regular, what_is
from daari_mlx.learn.heard import Heard

_FRAME = struct.Struct("<II")
ABOUT, PROJECTION, ANSWER = b"T", b"P", b"A"
VERSION = 1
MAX_RECORD = 1 << 30


class Log:
    """The answers of one teacher, in the order they were said.

    Args:
        path: the file; it is made where there is none.
        about: whose answers: a teacher's fingerprint and the layer of the states. The file's own counts where it has
            one.

    Attributes:
        answers: those that were found in the file, until :meth:`take`.
        projection: that reduced states of it went through; None where there is none.
        head: bytes of the file before its answers.
        trouble: what of it could not be read, or None.

    Raises:
        DaariError: what stands at ``path`` is no such log, or of another version.
    """

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self.path, self.about = path, about
        self.answers: list[Heard] = []
        self.projection: Projection | None = None
        self.head = 0
        self.trouble: str | None = None
        if what_is(path) is None:
            self.rewrite([], None)
            return
        check_regular(path, "log of answers")
        end = self._read(path.read_bytes())
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.ftruncate(self._file, end)  # what a killed process left half-written

    def take(self) -> list[Heard]:
        """The answers that were found, which the log then no longer holds in memory."""
        found, self.answers = self.answers, []
        return found

    def append(self, one: Heard) -> None:
        """Add an answer; whole on the file when this returns.

        Raises:
            OSError: it could not be written; the file is as it was.
        """
        data = _framed(ANSWER + one.to_bytes())
        size = self.nbytes
        try:
            written = os.write(self._file, data)
        except OSError as error:
            os.ftruncate(self._file, size)
            raise OSError(error.errno, f"{self.path} could not be written to: {error.strerror}") from error
        if written != len(data):
            os.ftruncate(self._file, size)
            raise OSError(f"{self.path} could not be written to its end")

    def rewrite(
        self,
        answers: Iterable[Heard],
        projection: Projection | None,
        ending: Callable[[], AbstractContextManager[Iterable[Heard]]] = lambda: nullcontext(()),
    ) -> None:
        """Hold these answers alone, whole or not at all.

        Args:
            answers: which; written, and on the disk, before ``ending`` is asked.
            projection: that their states went through.
            ending: gives the last ones; its block ends once the file has taken its place.

        Raises:
            OSError, DaariError: it could not be written; the file is as it was, and the block is left by that error.
        """
        records = [ABOUT + json.dumps({"version": VERSION, **self.about}).encode()]
        if projection is not None:
            records.append(PROJECTION + _packed(projection))
        head = b"".join(map(_framed, records))
        with ExitStack() as held:
            with whole(self.path) as beside, open(beside, "wb", opener=_private) as file:
                file.write(head)
                file.writelines(_framed(ANSWER + one.to_bytes()) for one in answers)
                file.flush()
                os.fsync(file.fileno())
                file.writelines(_framed(ANSWER + one.to_bytes()) for one in held.enter_context(ending()))
            self.close()
            self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND)
            self.head, self.projection = len(head), projection

    @property
    def nbytes(self) -> int:
        """The bytes of the file."""
        return os.fstat(self._file).st_size

    def close(self) -> None:
        """Let go of the file."""
        file, self._file = getattr(self, "_file", -1), -1
        if file >= 0:
            os.close(file)

    def _read(self, data: bytes) -> int:
        """Take in all whole records; where they end."""
        end = damaged = 0
        for record, behind in _records(data):
            kind, body = record[:1], record[1:]
            try:
                if end == 0:
                    self._read_about(kind, body)
                elif kind == PROJECTION:
                    self.projection = _unpacked(body)
                elif kind == ANSWER:
                    self.answers.append(Heard.of_bytes(body))
                else:
                    damaged += 1
            except (ValueError, struct.error):
                damaged += 1
            if kind in (ABOUT, PROJECTION):
                self.head = behind
            end = behind
        if end == 0:
            raise DaariError(f"{self.path} is no log of learnt answers: remove it, or name another path to learn in.")
        if damaged:
            self.trouble = f"{damaged} records of {self.path} are damaged and were passed over."
        return end

    def _read_about(self, kind: bytes, body: bytes) -> None:
        try:
            found = json.loads(body) if kind == ABOUT else None
        except ValueError:
            found = None
        if not isinstance(found, dict) or found.pop("version", None) != VERSION:
            raise DaariError(
                f"{self.path} is no log of learnt answers that this daari-mlx reads: remove it, or name another path "
                "to learn in."
            )
        self.about = found


def times(path: Path) -> list[float]:
    """When each whole answer of a log was said, in seconds since 1970. The log may be written meanwhile.

    Raises:
        DaariError: it is no log.
    """
    found: list[float] = []
    records = [record for record, _ in _records(path.read_bytes())]
    for record in records:
        with suppress(ValueError, struct.error):
            if record[:1] == ANSWER:
                found.append(Heard.of_bytes(record[1:]).at)
    if not records:
        raise DaariError(f"{path} is no log of learnt answers: remove it, or name another path to learn in.")
    return found


def _private(path: str, flags: int) -> int:
    """Open a file for its owner only: what was said is nobody else's."""
    return os.open(path, flags, 0o600)


def _packed(projection: Projection) -> bytes:
    arrays = (projection.mean.astype("<f4"), projection.basis.astype("<f4"))
    return struct.pack("<I", projection.basis.shape[1]) + b"".join(array.tobytes() for array in arrays)


def _unpacked(data: bytes) -> Projection:
    (width,) = struct.unpack_from("<I", data)
    values = np.frombuffer(data, "<f4", offset=4).astype(np.float32)
    hidden = len(values) // (width + 1)
    return Projection(values[:hidden], np.ascontiguousarray(values[hidden:].reshape(hidden, width)))


def _framed(record: bytes) -> bytes:
    return _FRAME.pack(len(record), zlib.crc32(record)) + record


def _records(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Records, and where each ends, up to the end that is torn; one that is damaged is empty."""
    place = 0
    while (end := _end(data, place)) is not None:
        whole_one = _is_whole(data, place, end)
        if not whole_one and ((after := _end(data, end)) is None or not _is_whole(data, end, after)):
            return
        yield data[place + _FRAME.size : end] if whole_one else b"", end
        place = end


def _end(data: bytes, place: int) -> int | None:
    """Where the record at a place says that it ends; None where that is nowhere in the data."""
    if place + _FRAME.size > len(data):
        return None
    length, _ = _FRAME.unpack_from(data, place)
    end: int = place + _FRAME.size + length
    return end if 0 < length <= MAX_RECORD and end <= len(data) else None


def _is_whole(data: bytes, place: int, end: int) -> bool:
    _, check = _FRAME.unpack_from(data, place)
    return zlib.crc32(memoryview(data)[place + _FRAME.size : end]) == check
