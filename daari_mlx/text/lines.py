"""From a path to its lines: a JSONL file, a split of a folder, or stdin; what is no JSONL at all is told once."""

from __future__ import annotations

import json
import os
import shlex
import sys
from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.given import check_name
from daari_mlx.ground.regular import FOLDER, check_regular, open_regular, what_is

MAX_LINE = 64 << 20  # bytes
DATA_INSTEAD = "Give a .jsonl file, a folder with such files, or - for stdin: what comes by a pipe goes there."
PACKED = {
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "zip",
    b"PAR1": "Parquet",
    b"ARROW1": "Arrow",
    b"\x28\xb5\x2f\xfd": "zstd",
}


@dataclass(frozen=True, slots=True)
class Lines:
    """An open file.

    Attributes:
        name: of the file, for messages.
        handle: of the file.
        total: its number of lines; None for a pipe.
    """

    name: str
    handle: IO[bytes]
    total: int | None

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """The lines that are not blank, with their numbers from 1.

        Raises:
            DaariError: a line has more than ``MAX_LINE`` bytes; the file holds something else than an object a line.
        """
        count, first = 0, b""
        for number, line in enumerate(lines_of(self.handle, self.name), start=1):
            line = line.removeprefix(BOM_UTF8).rstrip() if number == 1 else line.rstrip()
            if not line:
                continue
            if not count:
                first = line
                self._check_first(line)
            count += 1
            yield number, line
        if count == 1 and first.startswith(b"["):
            raise self._other("one JSON array", "jq -c '.[]'")

    def _check_first(self, line: bytes) -> None:
        """Refuse what cannot be lines of JSON, in place of calling each of its lines a bad row."""
        for start, kind in PACKED.items():
            if line.startswith(start):
                raise DaariError(f"{self.name} is a {kind} file: give it unpacked, as lines of JSON.")
        if line == b"{":
            raise self._other("JSON with objects over several lines", "jq -c .")
        if line.startswith(b"[") and not _is_json(line):
            raise self._other("one JSON array", "jq -c '.[]'")

    def _other(self, found: str, command: str) -> DaariError:
        file = "FILE" if self.total is None else shlex.quote(self.name)
        return DaariError(
            f"{self.name} is {found}, and each row has to be an object on a line of its own: "
            f"{command} {file} > rows.jsonl makes such a file."
        )


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def check_data(path: str | Path, split: str) -> None:
    """What can be told of data without a tokenizer, so that it is told before a model is loaded.

    Raises:
        DaariError: there is no such file or split, or what is there is no regular file.
    """
    if str(path) != "-":
        check_regular(data_file(path, split), "data", instead=DATA_INSTEAD)


def data_file(path: str | Path, split: str) -> Path:
    """The file itself, or that of a split in a folder."""
    check_name(path, "data")
    file = Path(path)
    if what_is(file) == FOLDER:
        there = sorted(name for name in os.listdir(file) if name.endswith(".jsonl"))
        file = file / f"{split}.jsonl"
        if file.name not in there:
            has = f"it has {', '.join(there)}" if there else "it has no .jsonl file at all"
            raise DaariError(f"no {file.name} in the folder {path}: {has}. Choose another split or a file.")
    return file


@contextmanager
def opened(path: str | Path, split: str) -> Iterator[Lines]:
    """The open file at a path.

    Args:
        path: a JSONL file, a folder of such files, or ``"-"``: stdin.
        split: which file of a folder, without ``.jsonl``.

    Raises:
        DaariError: there is none, or it is no regular file.
    """
    if str(path) == "-":
        yield Lines("stdin", sys.stdin.buffer, None)
        return
    file = data_file(path, split)
    with open_regular(file, "data", instead=DATA_INSTEAD) as handle:
        total = sum(1 for _ in lines_of(handle, str(file)))
        handle.seek(0)
        yield Lines(str(file), handle, total)


def lines_of(handle: IO[bytes], name: str) -> Iterator[bytes]:
    """The lines of a file, of which none may fill the memory.

    Raises:
        DaariError: a line has more than ``MAX_LINE`` bytes.
    """
    number = 0
    while line := handle.readline(MAX_LINE + 1):
        number += 1
        if len(line) > MAX_LINE:
            raise DaariError(
                f"{name}:{number} has more than {MAX_LINE >> 20} MB: a row is one JSON object on a line of its own."
            )
        yield line
