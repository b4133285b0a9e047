"""Stage 5, the corpus's own words: the answers as one string, with every position sorted by what came before it.

A Python string of code points is an array of token ids whose slices compare and search at the speed of C: the longest
match of a context is one bisection over sorted positions.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from daari_mlx.nodes import IntArray

BREAK = -1  # stands between two sequences: no match reaches across
BREAK_CHARACTER = chr(0x10FFFF)
MAX_TOKEN = 0x10FFFF  # ids below it can be told as code points
MAX_CONTEXT = 24  # tokens of a context that are compared
SHOWN = 8  # positions of a match that vote for what follows


def as_text(tokens: Iterable[int]) -> str:
    """Token ids as code points."""
    return "".join(map(chr, tokens))


@dataclass(frozen=True)
class Text:
    """The answers of the corpus; with C tokens, breaks included:

    Attributes:
        tokens: ``(C,)`` int32; ``BREAK`` ends every sequence. A sequence starts with its prompt's last token.
        order: ``(C',)`` int32, the positions that another token follows in their sequence, sorted by what they end:
            the token there first, then the one before it, and so on.
        kinds: ``(C,)`` uint8, how well three tokens tell what follows them here, see :func:`daari_mlx.cells.kind`.
    """

    tokens: IntArray
    order: IntArray
    kinds: NDArray[np.uint8]

    @cached_property
    def characters(self) -> str:
        """The tokens as code points, ``BREAK_CHARACTER`` for breaks."""
        return "".join(BREAK_CHARACTER if t == BREAK else chr(t) for t in self.tokens.tolist())

    @cached_property
    def reading(self) -> tuple[list[int], list[int]]:
        """``tokens`` and ``kinds`` as lists: a walk reads single items."""
        return self.tokens.tolist(), self.kinds.tolist()

    @cached_property
    def _sorted(self) -> tuple[str, list[int], dict[str, tuple[int, int]]]:
        """The reversed text, where in it each of ``order`` begins, and which of them begin with each pair of tokens."""
        backward = self.characters[::-1]
        starts = (len(self.tokens) - 1 - self.order).tolist()
        pairs: dict[str, tuple[int, int]] = {}
        for row, start in enumerate(starts):
            pair = backward[start : start + 2]
            first, _ = pairs.get(pair, (row, 0))
            pairs[pair] = first, row + 1
        return backward, starts, pairs

    def find(self, context: str) -> tuple[int, int]:
        """Where the longest ending of ``context`` was said, and how long it is.

        Of several such places, one that goes on as most of them do.

        Returns:
            The position of the match's last token and its length in tokens, at least 2; ``(-1, 0)`` without any.
        """
        backward, starts, pairs = self._sorted
        wanted = context[: -MAX_CONTEXT - 1 : -1]
        low, high = pairs.get(wanted[:2], (0, 0))
        if high == low or len(wanted) < 2:
            return -1, 0
        length, best = 2, starts[low]
        if high - low > 1:

            def ending(start: int) -> str:
                return backward[start : start + MAX_CONTEXT]

            place = bisect_left(starts, wanted, low, high, key=ending)
            near = starts[max(place - 1, low) : min(place + 1, high)]
            length, best = max((_common(wanted, ending(start)), start) for start in near)
            if length > 2:
                shared = wanted[:length]

                def cut(start: int) -> str:
                    return backward[start : start + length]

                low, high = (
                    bisect_left(starts, shared, low, place, key=cut),
                    bisect_right(starts, shared, place, high, key=cut),
                )
        else:
            length = _common(wanted, backward[starts[low] : starts[low] + MAX_CONTEXT])
        last = len(backward) - 1
        if high - low <= 1:  # none at all where the order in a file is not sorted
            return last - best, length
        step = -(-(high - low) // SHOWN)
        votes: dict[str, list[int]] = {}
        for start in starts[low:high:step]:
            votes.setdefault(backward[start - 1], []).append(start)
        return last - max(votes.values(), key=len)[-1], length


def no_text() -> Text:
    """The text of no sequence."""
    return Text(np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.uint8))


def _common(left: str, right: str) -> int:
    """How many leading characters two strings share."""
    for length, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return length
    return min(len(left), len(right))
