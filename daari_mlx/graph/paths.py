"""Stage 5, anchored paths: what the teacher went on to say from each node, told as places in the corpus's text."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from daari_mlx.ground.types import IntArray

REACH = 24  # tokens of a path
END = 255  # the kind of a step that was never taken


@dataclass(frozen=True)
class Paths:
    """The commonest continuation of every (node, token chosen there); with K of those:

    Attributes:
        key: ``(K,)`` int64, sorted and distinct: ``node * V + token``.
        place: ``(K,)`` int32, where in the text the token stands whose continuation is the path.
        kinds: ``(K, REACH)`` uint8, for each step of the path which share of what had followed it until then goes on
            with it, see :func:`daari_mlx.graph.cells.kind`; ``END`` from where nothing follows.
    """

    key: NDArray[np.int64]
    place: IntArray
    kinds: NDArray[np.uint8]

    @cached_property
    def find(self) -> dict[int, int]:
        """The row of each key."""
        return {key: row for row, key in enumerate(self.key.tolist())}

    @cached_property
    def places(self) -> list[int]:
        """``place`` as a list."""
        return self.place.tolist()

    @cached_property
    def steps(self) -> list[bytes]:
        """``kinds`` as one byte string a path: items of it are read one by one."""
        return [row.tobytes() for row in self.kinds]


def no_paths() -> Paths:
    """No paths at all."""
    return Paths(np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros((0, REACH), np.uint8))
