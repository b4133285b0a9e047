"""Files of rows: lines of JSON or CSV, packed by gzip, bzip2 or xz or not, as the suffixes of their names say."""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import lzma
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any, cast

from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.regular import open_regular
from daari_mlx.text.lines import DATA_INSTEAD, MAX_LINE, Lines, data_file
from daari_mlx.text.messages import BadInput
from daari_mlx.text.rows import parse_row

TABLES = {".csv": ",", ".tsv": "\t"}
PACKED = (".gz", ".bz2", ".xz")
OTHERS = (".zst", ".zip", ".parquet", ".arrow", ".xlsx", ".lz4", ".7z")
_BROKEN = (OSError, EOFError, zlib.error, lzma.LZMAError)


@dataclass(frozen=True, slots=True)
class Kind:
    """What the name of a file says of it.

    Attributes:
        delimiter: of a table's columns; None for lines of JSON.
        packed: the suffix of how it is packed; empty for not at all.
    """

    delimiter: str | None = None
    packed: str = ""

    @classmethod
    def of(cls, path: str | Path) -> Kind:
        """The kind of a file.

        Raises:
            DaariError: one that is neither read nor written here.
        """
        *_, before, last = ["", "", *(suffix.lower() for suffix in Path(path).suffixes)]
        if last in OTHERS:
            raise DaariError(f"{path}: {last} files are not read or written here: take .jsonl or .csv, or .gz of it.")
        packed = last if last in PACKED else ""
        return cls(TABLES.get(before if packed else last), packed)


@dataclass(frozen=True, slots=True)
class Line:
    """One row as it stands in its file.

    Attributes:
        place: ``"file:line"``, lines from 1.
        fields: what it holds; None where it cannot be read.
        text: the line itself, where it cannot be read.
        problem: why it cannot.
    """

    place: str
    fields: dict[str, Any] | None
    text: str = ""
    problem: str = ""


def read_lines(path: str | Path, split: str = "train") -> Iterator[Line]:
    """The rows of a file, or of a split of a folder.

    Raises:
        DaariError: there is none, it cannot be unpacked, it is no such file, a table has no or unclear columns.
    """
    path = data_file(path, split)
    kind = Kind.of(path)
    with open_regular(path, "data", instead=DATA_INSTEAD) as handle:
        unpacked = unpacking(handle, kind.packed)
        try:
            yield from _table(path, unpacked, kind.delimiter) if kind.delimiter else _objects(path, unpacked)
        except _BROKEN as error:
            if not kind.packed or (isinstance(error, OSError) and error.errno is not None):
                raise
            raise DaariError(f"{path} cannot be unpacked ({error}): it is damaged, or no {kind.packed}.") from error


def unpacking(handle: IO[bytes], packed: str) -> IO[bytes]:
    """A handle that reads what another one holds packed."""
    match packed:
        case ".gz":
            return cast(IO[bytes], gzip.GzipFile(fileobj=handle))
        case ".bz2":
            return bz2.BZ2File(handle)
        case ".xz":
            return lzma.LZMAFile(handle)
    return handle


def _objects(path: Path, handle: IO[bytes]) -> Iterator[Line]:
    for number, line in Lines(str(path), handle, 0):
        try:
            yield Line(f"{path}:{number}", parse_row(line))
        except BadInput as error:
            yield Line(f"{path}:{number}", None, line.decode("utf-8", "replace"), error.reason)


def _table(path: Path, handle: IO[bytes], delimiter: str) -> Iterator[Line]:
    """The rows of a table; one that is no CSV or no UTF-8 is a bad row, and reading goes on behind it."""
    csv.field_size_limit(MAX_LINE)
    taken: list[str] = []  # the lines of the row that is being read
    with TextIOWrapper(handle, "utf-8-sig", errors="surrogateescape", newline="") as text:
        rows = csv.reader(_noted(text, taken), delimiter=delimiter, strict=True)
        names = _columns(path, rows)
        while True:
            taken.clear()
            place = f"{path}:{rows.line_num + 1}"
            try:
                row = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                ends = " before a quote that opens here is closed" * ("end of data" in str(error))
                yield Line(place, None, _shown("".join(taken).rstrip()), f"no CSV: {error}{ends}")
                continue
            if problem := _problem(row, names):
                yield Line(place, None, _shown(delimiter.join(row)), problem)
            elif row:
                yield Line(place, dict(zip(names, row, strict=True)))


def _noted(lines: Iterable[str], taken: list[str]) -> Iterator[str]:
    for line in lines:
        taken.append(line)
        yield line


def _columns(path: Path, rows: Iterator[list[str]]) -> list[str]:
    """The names in a table's first line."""
    try:
        names = next(rows, [])
    except csv.Error as error:
        raise DaariError(f"{path}:1 should name each column, and is no CSV ({error}).") from error
    if not names or len(set(names)) < len(names) or not all(names):
        found = ", ".join(map(repr, names)) or "nothing"
        raise DaariError(f"{path}:1 should name each column, and each once, found {found}.")
    if problem := _problem(names, names):
        raise DaariError(f"{path}:1 should name each column, and is {problem}.")
    return names


def _problem(row: list[str], names: list[str]) -> str:
    """What is wrong with a row of a table; nothing for a good one."""
    for number, cell in enumerate(row, start=1):
        if byte := next((ord(letter) - 0xDC00 for letter in cell if 0xDC80 <= ord(letter) <= 0xDCFF), None):
            return f"not UTF-8: byte 0x{byte:02x} in column {number}; save the file as UTF-8"
    if row and len(row) != len(names):
        return f"has {len(row)} columns, not {len(names)} as line 1"
    return ""


def _shown(text: str) -> str:
    """A text whose bytes that are no UTF-8 can be written."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


class Writer:
    """Writes rows, one at a time; equal rows give equal bytes, packed too.

    Args:
        handle: of the file.
        kind: of the file.
        columns: of a table.
    """

    def __init__(self, handle: IO[bytes], kind: Kind, columns: list[str]) -> None:
        self._raw = handle
        self._handle = _packing(handle, kind.packed)
        self._text = TextIOWrapper(self._handle, "utf-8", newline="") if kind.delimiter else None
        self._visible = not kind.packed
        self._table: csv.DictWriter[str] | None = None
        if self._text is not None:
            self._table = csv.DictWriter(self._text, columns, delimiter=str(kind.delimiter), lineterminator="\n")
            self._table.writeheader()

    def write(self, fields: dict[str, Any]) -> None:
        """One row."""
        if self._table is not None:
            self._table.writerow({name: _cell(value) for name, value in fields.items()})
        else:
            self._handle.write(json.dumps(fields, ensure_ascii=False).encode() + b"\n")

    def flush(self) -> None:
        """Let others see what was written, where the file is not packed."""
        if self._visible:
            (self._text or self._handle).flush()

    def close(self) -> None:
        """Write what is left; the handle that was given stays open."""
        if self._text is not None:
            self._text.flush()
            self._text.detach()
        if self._handle is not self._raw:
            self._handle.close()
        self._raw.flush()


def _packing(handle: IO[bytes], packed: str) -> Any:
    match packed:
        case ".gz":
            return gzip.GzipFile(filename="", mode="wb", fileobj=handle, mtime=0)
        case ".bz2":
            return bz2.BZ2File(handle, "wb")
        case ".xz":
            return lzma.LZMAFile(handle, "wb")
    return handle


def _cell(value: Any) -> Any:
    return value if value is None or isinstance(value, (str, int, float)) else json.dumps(value, ensure_ascii=False)


@contextmanager
def opened_for_writing(path: Path | None) -> Iterator[IO[bytes]]:
    """A file to write to, or stdout for None."""
    if path is None:
        yield sys.stdout.buffer
    else:
        with path.open("wb") as handle:
            yield handle
