"""What a caller gives: names, texts and numbers that nobody can have meant are refused by name, before any work."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from daari_mlx.ground.errors import DaariError

EMPTY = "it is empty, which an unset variable of a shell often is"


def check_name(value: Any, what: str) -> None:
    """See that a name (a path, a repository) is not empty: as a path that would be the current folder.

    Args:
        what: what is named, e.g. ``"graph"``.

    Raises:
        DaariError: it is the empty string. ``Path("")`` cannot be told from ``Path(".")``.
    """
    if isinstance(value, (str, bytes)) and not value:
        raise DaariError(f"The name of the {what} cannot be used: {EMPTY}.")


def check_text(text: str, what: str) -> None:
    """See that a text is one: half of a surrogate pair stands for a byte that was no UTF-8, and no tokenizer takes it.

    Raises:
        DaariError: it holds one.
    """
    if not is_text(text):
        raise DaariError(
            f"{what} has bytes that are no UTF-8, or half a surrogate pair: {text[:40]!r}. Give other text."
        )


def is_text(text: str) -> bool:
    """Whether every character of ``text`` is one."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_max_tokens(value: Any) -> None:
    """See that the longest answer is -1 for no limit, or at least 1.

    Raises:
        DaariError: it is something else.
    """
    check_whole("max_tokens", value)
    if value == 0 or value < -1:
        raise DaariError(f"max_tokens is {value}: give at least 1, or -1 for no limit.")


def check_draft_length(value: Any, least: int = 0) -> None:
    """See that ``num_draft_tokens`` is ``"auto"``, or a whole number from ``least`` on.

    Raises:
        DaariError: it is something else.
    """
    if not (isinstance(value, str) and value == "auto"):
        check_whole("num_draft_tokens", value, least, mend=f"give a number from {least} on, or 'auto'")


def check_whole(name: str, value: Any, least: int | None = None, *, mend: str | None = None) -> None:
    """See that a number is whole, and none of True and False, which Python takes for 1 and 0.

    Args:
        least: the smallest that has a meaning.
        mend: what to give, a sentence without its period.

    Raises:
        DaariError: it is something else, or smaller.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):  # NumPy's whole numbers are Integral too
        raise DaariError(f"{name} is {value!r}: {mend or 'give a whole number'}.")
    if least is not None and value < least:
        raise DaariError(f"{name} is {value}: {mend or f'give at least {least}'}.")
