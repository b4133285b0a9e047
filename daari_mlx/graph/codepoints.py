"""Token ids as code points: a Python string of them is an array whose slices compare and search at the speed of C."""

from __future__ import annotations

from collections.abc import Iterable

BREAK = -1  # stands between two sequences of a corpus
BREAK_CHARACTER = chr(0x10FFFF)
MAX_TOKEN = 0x10FFFF  # ids below it can be told as code points


def as_text(tokens: Iterable[int]) -> str:
    """Token ids as code points."""
    return "".join(map(chr, tokens))
