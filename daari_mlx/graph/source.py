"""What a source of draft tokens is: it says, from a context of its own, which token comes next and how sure that is.

A source is started once a round and then pushed along the draft token by token; its ``token`` and ``cell`` are read in
between.
"""

from __future__ import annotations

from math import prod
from typing import Protocol

from daari_mlx.graph.cells import COUNTS, DISTANCES, HABITS, LENGTHS, SHARES
from daari_mlx.ground.types import FloatArray

NAMES = ("path", "edge", "near", "copy", "session")
SHAPES: dict[str, tuple[int, ...]] = {  # how the cells of each are made up, the most telling bucket first
    "path": (SHARES, COUNTS),
    "edge": (SHARES, COUNTS),
    "near": (SHARES, DISTANCES),
    "copy": (HABITS, LENGTHS),
    "session": (LENGTHS,),
}
NO_NODE = -1
LOOK_BACK = 16  # characters that sources look back on
SILENT = -1  # the token of a source that has nothing to say


def cells(name: str) -> int:
    """How many cells a source has: cases whose share of right tokens is counted apart."""
    return prod(SHAPES[name])


class Moment:
    """Where a draft starts from, and how far it has come.

    Attributes:
        anchor: the node of the teacher's true state.
        last: the token chosen there.
        node: the node where the walk stands, ``NO_NODE`` where it is lost.
        said: what was said so far as code points: as much of it as sources look back on, the draft included.
        state: the teacher's true state, reduced, ``(D,)`` float32; None where only its node is known.
    """

    __slots__ = ("anchor", "last", "node", "said", "state")

    def __init__(self, anchor: int, last: int, said: str, state: FloatArray | None = None) -> None:
        self.anchor, self.last, self.said, self.state = anchor, last, said, state
        self.node = NO_NODE


class Source(Protocol):
    """One way of telling what comes next.

    Attributes:
        name: as statistics show it.
        token: the next token, or ``SILENT``.
        cell: which case this is, in ``[0, cells(name))``; meaningless while silent.
    """

    name: str
    token: int
    cell: int

    def start(self, moment: Moment) -> None:
        """Look up the first token of a draft."""
        ...

    def push(self, token: int, moment: Moment) -> None:
        """Go on behind ``token``, which was drafted; ``moment.said`` ends with it."""
        ...
