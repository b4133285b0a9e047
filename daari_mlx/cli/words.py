"""Words of a command line that nobody can have meant: refused by the option's name before anything is done.

A rule holds for every option that there is or will be: bytes that are no text, the empty string that an unset variable
of a shell leaves, numbers that are none.
"""

from __future__ import annotations

import math
import os
import sys
from typing import Any

import typer

from daari_mlx.ground.given import EMPTY, is_text

TEXT = "TEXT"  # the metavar of options whose value is a text, which alone may be empty
VALUES = {"--learn": ":memory:"}  # what options mean that may stand without a value
MOST = 2**63 - 1  # of a whole number, unless its option says another


def with_values(args: list[str]) -> list[str]:
    """The words, with a value for each option that may stand without one."""
    return [
        f"{word}={VALUES[word]}" if word in VALUES and behind.startswith("-") else word
        for word, behind in zip(args, [*args[1:], "--"], strict=False)
    ]


def check_bytes(args: list[str]) -> None:
    """See that every word is text.

    Raises:
        BadParameter: naming the first that is not.
    """
    for place, word in enumerate(args):
        if is_text(word):
            continue
        name, equals, _ = word.partition("=")
        if not (name.startswith("--") and equals and is_text(name)):
            before = args[place - 1] if place else ""
            name = before if before.startswith("-") and len(before) > 1 else f"argument {place + 1}"
        encoding = sys.getfilesystemencoding().upper()
        here = "" if encoding == "UTF-8" else " (this locale is for that alone; LC_ALL=C.UTF-8 takes all text)"
        raise typer.BadParameter(f"{os.fsencode(word)!r} is no {encoding} text{here}", param_hint=repr(name))


def check_values(ctx: Any, params: list[Any]) -> None:
    """See that no name is empty and that every number is one.

    Raises:
        BadParameter: naming the option.
    """
    for param in params:
        given = ctx.params.get(param.name)
        for value in given if isinstance(given, (list, tuple)) else [given]:
            if reason := _refuses(param, value):
                raise typer.BadParameter(reason, ctx=ctx, param=param)


def _refuses(param: Any, value: Any) -> str | None:
    """What is wrong with a value; None for nothing."""
    if value == "" and param.metavar != TEXT:
        return EMPTY
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value} is not a finite number: give one that is"
    if isinstance(value, int) and getattr(param, "max", None) is None and abs(value) > MOST:
        return f"{value} is beyond {MOST}: give a smaller number"
    return None
