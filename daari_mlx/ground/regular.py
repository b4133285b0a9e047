"""What stands at a path: only regular files are read, and only what may be lost is replaced.

A named pipe would hang whoever opens it, a device never ends, and either is gone once something is renamed over it. So
every reader and writer of a file that somebody named comes through here. Links are followed: what they lead to counts.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from io import BufferedReader
from pathlib import Path

from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.given import check_name

MAX_SMALL = 64 << 20  # bytes of a file of settings or records, if the reader knows no closer limit
_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISREG, "a file"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
FILE, FOLDER = "a file", "a folder"


def what_is(path: str | Path) -> str | None:
    """What stands at ``path`` in words, e.g. ``FILE``, ``FOLDER``, ``"a named pipe"``; None for nothing.

    Raises:
        DaariError: that cannot be told: the name is too long, a folder above it cannot be entered, links go in circles.
    """
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return "a link that leads nowhere" if os.path.islink(path) else None
    except (OSError, ValueError) as error:
        raise DaariError(f"{_short(path)} cannot be used: {getattr(error, 'strerror', None) or error}.") from error
    return next((words for is_kind, words in _KINDS if is_kind(mode)), "no file")


def check_regular(path: str | Path, what: str, *, instead: str = "") -> None:
    """See that ``path`` is a regular file, without opening it.

    Args:
        what: names it in the message.
        instead: what to do in place of another kind of file, a sentence.

    Raises:
        DaariError: there is nothing, or something else.
    """
    found = what_is(path)
    if found is None:
        raise DaariError(f"There is no {what} at {_short(path)}.{instead and f' {instead}'}")
    if found != FILE:
        raise DaariError(f"The {what} at {path} cannot be read: it is {found}. {instead or 'Give a regular file.'}")


def open_regular(path: str | Path, what: str, *, instead: str = "") -> BufferedReader:
    """Open a regular file for reading; nothing else is opened, which alone can hang or disturb a device.

    Raises:
        DaariError: see :func:`check_regular`; or it cannot be opened.
    """
    check_regular(path, what, instead=instead)
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # should a pipe have come meanwhile
    except OSError as error:
        raise DaariError(f"The {what} at {path} cannot be read: {error.strerror}.") from error
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise DaariError(f"The {what} at {path} cannot be read: it is no regular file any more.")
    return os.fdopen(number, "rb")


def read_bytes(path: str | Path, what: str, *, limit: int = MAX_SMALL, instead: str = "") -> bytes:
    """All bytes of a regular file.

    Args:
        limit: how many it may have at the most.

    Raises:
        DaariError: see :func:`open_regular`; or it is larger.
    """
    with open_regular(path, what, instead=instead) as file:
        try:
            content = file.read(limit + 1)
        except OSError as error:
            raise DaariError(f"The {what} at {path} cannot be read: {error.strerror}.") from error
        if len(content) > limit:
            size = max(len(content), os.fstat(file.fileno()).st_size)
            raise DaariError(f"The {what} at {path} has {size} bytes; none that belongs here has more than {limit}.")
    return content


def read_text(path: str | Path, what: str, *, limit: int = MAX_SMALL, instead: str = "") -> str:
    """The text of a regular file in UTF-8.

    Raises:
        DaariError: see :func:`read_bytes`; or it is no UTF-8.
    """
    content = read_bytes(path, what, limit=limit, instead=instead)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DaariError(
            f"The {what} at {path} cannot be read: it is no UTF-8, byte 0x{content[error.start]:02x} at "
            f"position {error.start + 1}."
        ) from error


def check_new_file(path: str | Path, option: str, replace: bool = True) -> None:
    """See, before any work, that a file can be written to ``path``, or one that is there be replaced or added to.

    Args:
        option: names it in the message, e.g. ``"--out"``.
        replace: whether one that is there may be replaced or added to.

    Raises:
        DaariError: something else stands there, or a file that may not be replaced; no folder is there to hold it, or
            none that can be written.
    """
    path = _with_name(path, option)
    found = what_is(path)
    if found not in (None, FILE):
        raise DaariError(f"{path} is {found}: name a file for {option}.")
    if found == FILE and not replace:
        raise DaariError(f"{path} is there already: name another file for {option}, or remove it.")
    if found == FILE and not os.access(path, os.W_OK):
        raise DaariError(f"{path} cannot be written: name another file for {option}.")
    _check_above(path, option)


def check_new_folder(
    path: str | Path, option: str, what: str, others: Callable[[list[str]], list[str]], replace: bool = True
) -> None:
    """See, before any work, that a folder can be written to ``path``: nothing stands there, or what may be replaced.

    Args:
        option: names it in the message.
        what: may be replaced, e.g. ``"graph"``.
        others: of the names in a folder, those that do not belong to one; all of them where it is none.
        replace: whether one that is there may be replaced.

    Raises:
        DaariError: something else stands there, or one that may not be replaced; no folder is there to hold it, or
            none that can be written.
    """
    path = _with_name(path, option)
    found = what_is(path)
    if found not in (None, FOLDER):
        raise DaariError(f"{path} is {found}, not a {what}: name another {option}.")
    if found == FOLDER:
        try:
            names = sorted(os.listdir(path))
        except OSError as error:
            raise DaariError(f"{path} cannot be read ({error.strerror}): name another {option}.") from error
        if strange := others(names) if names else []:
            told = f"{', '.join(strange[:3])}{', …' if len(strange) > 3 else ''}"
            raise DaariError(
                f"{path} is a folder that holds other things ({told}), not a {what}: name another {option}."
            )
        if names and not replace:
            raise DaariError(f"{path} is a {what} already: name another {option}, or replace it with --force.")
    _check_above(path, option)


def _with_name(path: str | Path, option: str) -> Path:
    """The path, seen to end in a name that something beside it can be named after."""
    check_name(path, f"target of {option}")
    path = Path(path)
    if path.name in ("", ".."):
        raise DaariError(f"{str(path)!r} has no name of its own: name another {option}.")
    return path


def _check_above(path: Path, option: str) -> None:
    above = path.parent
    while (found := what_is(above)) is None:
        above = above.parent
    if found != FOLDER:
        raise DaariError(f"{path} cannot be made, since {above} is {found}: name another place for {option}.")
    if not os.access(above, os.W_OK | os.X_OK):
        raise DaariError(f"{path} cannot be made, since {above} cannot be written: name another place for {option}.")


def _short(path: str | Path) -> str:
    """A path for a message, of which a too long one is no part."""
    text = str(path)
    return text if len(text) <= 300 else f"{text[:120]!r}…"
