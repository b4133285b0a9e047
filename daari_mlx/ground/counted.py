"""A number with what is counted, for a message."""

from __future__ import annotations


def counted(count: int, what: str) -> str:
    """Such as ``"1 row"`` and ``"1,200 rows"``."""
    return f"{count:,} {what}{'s' * (count != 1)}"
