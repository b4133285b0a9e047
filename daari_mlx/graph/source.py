"""What a source of draft tokens is: it says, from a context of its own, which token comes next and how sure that is.

A source is started once a round and then pushed along the draft token by token. Each time it gives its *voice*: the
token and its case as one integer, so that what all sources say is one short tuple of integers to look up.
"""

from __future__ import annotations

from math import prod
from typing import Protocol

from daari_mlx.graph.cells import COUNTS, DISTANCES, LENGTHS, SHARES
from daari_mlx.ground.types import FloatArray

NAMES = ("edge", "near", "copy")
SHAPES: dict[str, tuple[int, ...]] = {  # how the cells of each are made up, the most telling bucket first
    "edge": (SHARES, COUNTS),
    "near": (SHARES, DISTANCES),
    "copy": (LENGTHS,),
}
NO_NODE = -1
LOOK_BACK = 16  # characters that sources look back on
SILENT = -1  # the voice of a source that has nothing to say, and its token
CELL_BITS = 6  # of a voice: what is above them is the token
CELL = (1 << CELL_BITS) - 1


def cells(name: str) -> int:
    """How many cells a source has: cases whose share of right tokens is counted apart."""
    return prod(SHAPES[name])


assert all(cells(name) <= CELL + 1 for name in NAMES) and len(NAMES) <= 3  # as many as Arbiter.propose asks


class Moment:
    """Where a draft starts from, and how far it has come.

    Attributes:
        anchor: the node of the teacher's true state.
        last: the token chosen there.
        node: the node where the walk stands, ``NO_NODE`` where it is lost.
        said: what was said so far as code points: as much of it as sources look back on, the draft included.
        state: the teacher's true state, reduced, ``(D,)`` float32; None where only its node is known.
        voices: what each source says comes next.
    """

    __slots__ = ("anchor", "last", "node", "said", "state", "voices")

    def __init__(self, anchor: int, last: int, said: str, state: FloatArray | None = None) -> None:
        self.anchor, self.last, self.said, self.state = anchor, last, said, state
        self.node = NO_NODE
        self.voices: list[int] = []


class Source(Protocol):
    """One way of telling what comes next.

    Both methods give its voice: ``token << CELL_BITS | cell``, with the cell in ``[0, cells(name))``, or ``SILENT``.

    Attributes:
        name: as statistics show it.
    """

    name: str

    def start(self, moment: Moment) -> int:
        """Look up the first token of a draft."""
        ...

    def push(self, token: int, moment: Moment) -> int:
        """Go on behind ``token``, which was drafted; ``moment.said`` ends with it."""
        ...
