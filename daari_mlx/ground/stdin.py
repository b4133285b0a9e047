"""What comes by stdin as text: in the encoding of the terminal, within bounds, or an error in one line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.given import is_text
from daari_mlx.ground.regular import MAX_SMALL


def read_all(what: str) -> str:
    """All of stdin.

    Args:
        what: names it in the message, e.g. ``"prompt"``.

    Raises:
        DaariError: it is no text in the encoding of stdin, or has more than ``MAX_SMALL`` characters.
    """
    text = _checked(what, lambda: sys.stdin.read(MAX_SMALL + 1))
    if len(text) > MAX_SMALL:
        raise DaariError(f"The {what} from stdin is longer than {MAX_SMALL:,} characters: no teacher reads that.")
    return text


def read_lines(what: str) -> Iterator[str]:
    """The lines of stdin as they come, without what ends them.

    Raises:
        DaariError: see :func:`read_all`, of a line.
    """
    while line := _checked(what, lambda: sys.stdin.readline(MAX_SMALL + 1)):
        if len(line) > MAX_SMALL:
            raise DaariError(f"A line of the {what} from stdin is longer than {MAX_SMALL:,} characters.")
        yield line.rstrip("\r\n")


def _checked(what: str, read: Callable[[], str]) -> str:
    try:
        text = read()
    except UnicodeDecodeError as error:
        raise DaariError(f"The {what} from stdin is no {error.encoding.upper()}: {error.reason}.") from error
    if not is_text(text):  # a C locale hands such bytes on
        raise DaariError(f"The {what} from stdin is no UTF-8.")
    return text
