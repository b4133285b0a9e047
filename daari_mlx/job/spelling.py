"""How an option is written by whom a message is for: as a flag in a shell, or by its name in Python."""

from __future__ import annotations

import shlex


def option(name: str, flags: bool, value: str | None = None) -> str:
    """An option as it is given.

    Args:
        name: in Python.
        flags: whether it is given in a shell.
        value: what is given, or None to name the option alone.
    """
    if flags:
        flag = f"--{name.replace('_', '-')}"
        return flag if value is None else f"{flag} {shlex.quote(value)}"
    return name if value is None else f"{name}={value!r}"
