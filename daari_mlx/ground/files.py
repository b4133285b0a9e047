"""Writing files so that a partial one never looks whole: beside its place, then renamed."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.given import is_text
from daari_mlx.ground.regular import FILE, FOLDER, MAX_SMALL, check_regular, read_text, what_is

PARTIAL = ".partial"  # ends the name of a file or folder that is being written
OLD = ".replaced"  # ends the name of a folder while another takes its place; no name that a person gives a backup

MAX_RECORDS = 256 << 20  # bytes of a file of records


class DiskFull(DaariError):
    """A file could not be written for want of room; nothing half-written is left."""


@contextmanager
def whole(path: Path, *, needed: int | None = None, folder: bool = False) -> Iterator[Path]:
    """Give a name beside ``path`` to write to; it takes ``path``'s place when the block ends well, else it is removed.

    A file or folder that stood at ``path`` is replaced, of a link only the link. A file is on the disk before it takes
    its place, so that a machine that loses power leaves no empty one there. What a killed run left beside is removed;
    what no run can have left there, since it is of another kind, is not.

    Args:
        path: what to write.
        needed: its bytes where they are known, for the message on a full disk.
        folder: whether a folder is written, and not a file.

    Raises:
        DaariError: what stands there, or beside it, is not of the kind that is written.
        DiskFull: where the disk is full.
    """
    beside, old = path.with_name(path.name + PARTIAL), path.with_name(path.name + OLD)
    _check_replaceable(path, FILE, FOLDER)
    check_beside(path, folder=folder)
    moved = False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove(beside)  # what a killed run left
        yield beside
        _check_replaceable(path, FOLDER if beside.is_dir() else FILE)
        if beside.is_file():
            _flush(beside)
        if beside.is_dir() and path.exists():
            remove(old)
            moved = True
            path.rename(old)
            beside.rename(path)
            remove(old)
        else:
            os.replace(beside, path)
    except BaseException as error:
        if moved and old.exists() and not path.exists():  # stopped between the two renames
            old.rename(path)
        remove(beside)
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        if full or (isinstance(error, RuntimeError) and "write" in str(error).lower()):
            raise DiskFull(
                f"Could not write {path}: the disk is full ({free_bytes(path) / 1e6:.0f} MB free), or a quota or "
                f"file-size limit is reached{'' if needed is None else f'; this file needs {needed / 1e6:.1f} MB'}. "
                "What was written before is whole: make room and run the same command again, it goes on from there."
            ) from error
        raise


def check_beside(path: Path, *, folder: bool = False) -> None:
    """See that :func:`whole` may remove what stands beside ``path`` under the names that it uses.

    Raises:
        DaariError: something stands there that no killed run can have left.
    """
    kind = FOLDER if folder else FILE
    for suffix in (PARTIAL, OLD) if folder else (PARTIAL,):
        beside = path.with_name(path.name + suffix)
        found = "a link" if beside.is_symlink() else what_is(beside)
        if found not in (None, kind):
            raise DaariError(
                f"{beside} is {found}, and its name is needed to write {path}: rename it, or write to another place."
            )


def put_back(path: Path) -> None:
    """Where a killed process had moved a folder aside and not yet put another one in its place, move it back.

    Only for who alone writes there: another one may be about to.
    """
    old = path.with_name(path.name + OLD)
    if what_is(path) is None and what_is(old) == FOLDER:
        old.rename(path)


def free_bytes(path: Path) -> int:
    """Room on the disk that ``path`` is or will be on."""
    there = path.absolute()
    while not there.exists():
        there = there.parent
    return shutil.disk_usage(there).free


def _check_replaceable(path: Path, *kinds: str) -> None:
    if (found := what_is(path)) not in (None, *kinds):
        raise DaariError(f"{path} is {found}, which is not replaced by {' or '.join(kinds)}: name another place.")


def _flush(path: Path) -> None:
    with path.open("rb") as handle:
        os.fsync(handle.fileno())


def remove(path: Path) -> None:
    """Remove a file or folder if there is one; of a link only the link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON, whole or not at all; keys keep their order."""
    with whole(path) as beside:
        text = json.dumps(value, indent=2, ensure_ascii=False)
        beside.write_text((text if is_text(text) else json.dumps(value, indent=2)) + "\n", encoding="utf-8")


def read_json(path: Path, what: str, *, limit: int = MAX_SMALL) -> dict[str, Any]:
    """Read a JSON object from a regular file.

    Args:
        what: names it in the message.
        limit: how many bytes it may have.

    Raises:
        DaariError: where it is missing, is none, or no regular file of at most ``limit`` bytes.
    """
    text = read_text(path, what, limit=limit)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DaariError(f"The {what} at {path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise DaariError(f"The {what} at {path} should hold a JSON object, found {type(value).__name__}.")
    return value


def read_json_lines(path: Path, what: str, *, instead: str) -> list[dict[str, Any]]:
    """Read a regular file that holds a JSON object a line; empty lines count for nothing.

    Args:
        what: names it in the message.
        instead: which file to give, a sentence.

    Raises:
        DaariError: it is missing, empty, no such file, or larger than ``MAX_RECORDS``.
    """
    found = []
    for number, line in enumerate(read_text(path, what, limit=MAX_RECORDS, instead=instead).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise DaariError(f"{path}:{number} is no JSON object but {line[:40]!r}: give one record a line.")
        found.append(value)
    if not found:
        raise DaariError(f"{path} is empty. {instead}")
    return found


def save_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write arrays as safetensors, whole or not at all; equal arrays give equal bytes."""
    with whole(path, needed=sum(array.nbytes for array in arrays.values())) as beside:
        # mx.save_safetensors adds the suffix where it is missing, so the name beside keeps it
        named = beside.with_name(beside.name + ".safetensors")
        try:
            mx.save_safetensors(str(named), {name: mx.array(array) for name, array in sorted(arrays.items())})
            named.rename(beside)
        finally:
            remove(named)


def load_arrays(path: Path, *, without: str | None = None) -> dict[str, np.ndarray]:
    """Read arrays that :func:`save_arrays` wrote, all of them or all but one.

    Raises:
        DaariError: where the file is missing, no regular one, truncated or no safetensors.
    """
    check_regular(path, "file of arrays")
    try:
        loaded: dict[str, mx.array] = mx.load(str(path), format="safetensors")  # type: ignore[assignment]
        return {name: np.array(array) for name, array in loaded.items() if name != without}
    except (ArithmeticError, LookupError, MemoryError, RuntimeError, TypeError, ValueError) as error:
        raise DaariError(f"The arrays in {path} cannot be read: {error} Remove the file and make it anew.") from error
