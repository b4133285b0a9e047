"""What an option is to a person: its help, its bounds, and how its value is read from text.

A record's field, or a command's parameter, carries it as ``Annotated[float, Option("Sampling temperature.", "N")]``.
The command line is made from it; this module knows no framework.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any, get_args, get_origin, get_type_hints

from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.given import check_whole


@dataclass(frozen=True)
class Option:
    """How one option is shown and read.

    Attributes:
        help: what it is, as a sentence.
        value: what stands for its value, such as ``"FOLDER"``; None for a switch, or where its type lists the values.
        flags: its names; none for ``--`` and the name of the field.
        least, most: the bounds of a number; None for none.
        read: from a text, or the default, to the value; raises ValueError with what to give instead.
        shown: the default in words, where the value itself tells nothing.
        by_place: whether it is an argument, told by its place and not by a name.
    """

    help: str
    value: str | None = None
    flags: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    read: Callable[[Any], Any] | None = None
    shown: str | None = None
    by_place: bool = False


def number(help: str, least: float, most: float | None = None, flags: tuple[str, ...] = ()) -> Option:
    """An option that takes a number from ``least`` on, up to ``most``."""
    return Option(help, "N", flags, least, most)


def bounds(record: type, name: str) -> tuple[float | None, float | None]:
    """The least and the most that a record's option takes; None for no bound."""
    hint = get_type_hints(record, include_extras=True)[name]
    option = next(part for part in get_args(hint) if isinstance(part, Option))
    return option.least, option.most


def check_fields(record: Any) -> None:
    """See that the value of each of a record's options is one that the option takes: for those who give no text.

    Raises:
        DaariError: naming the first that is not.
    """
    for name, hint in get_type_hints(type(record), include_extras=True).items():
        option = next((part for part in get_args(hint) if isinstance(part, Option)), None)
        value = getattr(record, name)
        kinds = {kind for part in get_args(hint)[:1] for kind in (get_args(part) or (part,))}
        if option is None or value is None or any(get_origin(kind) in (list, dict) for kind in kinds):
            continue
        if isinstance(value, bool) and bool not in kinds:
            raise DaariError(f"{name} is {value}: give a {'number' if float in kinds else 'whole number'}.")
        if option.read is not None:
            _read(name, value, option.read)
        elif int in kinds or float in kinds:
            _check_number(name, value, option, whole=float not in kinds)


def _read(name: str, value: Any, read: Callable[[Any], Any]) -> None:
    try:
        read(value)
    except ValueError as error:
        raise DaariError(f"{name} is {error}.") from error


def _check_number(name: str, value: Any, option: Option, *, whole: bool) -> None:
    if whole:
        check_whole(name, value)
    elif not isinstance(value, Real) or not _is_finite(value):
        raise DaariError(f"{name} is {_short(value)}: give a finite number.")
    if option.least is not None and value < option.least:
        raise DaariError(f"{name} is {_short(value)}: give at least {_bound(option.least)}.")
    if option.most is not None and value > option.most:
        raise DaariError(f"{name} is {_short(value)}: give at most {_bound(option.most)}.")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:30]}…"


def _bound(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:g}"


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float holds
        return False


def whole(least: int | None, mend: str, *words: int | str) -> Callable[[Any], int | str]:
    """What reads a whole number from ``least`` on, or one of ``words``.

    Args:
        least: None for any number.
        mend: what to give instead, for what is neither.
    """
    known = {str(word): word for word in words}

    def read(value: Any) -> int | str:
        if str(value) in known:
            return known[str(value)]
        try:
            number = int(value)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{value!r}: {mend}") from error
        if least is not None and number < least:
            raise ValueError(f"{number}: {mend}")
        return number

    return read


def unescaped(text: str) -> str:
    r"""``\n`` and ``\t`` taken as they are written in a shell."""
    return text.replace("\\n", "\n").replace("\\t", "\t")
