"""What an extraction will take on the disk, told before it starts."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from daari_mlx.ground.files import free_bytes

SEQUENCE_BYTES = 400  # a sequence's place in its shard's arrays, and its share of the files' heads


@dataclass(frozen=True)
class Estimate:
    """Bytes that an extraction puts on the disk.

    Attributes:
        kept: the shards, with the rendered rows and the teacher's answers.
        passing: unreduced states, there until the projection is fitted.
        states: how many states the shards hold.
        at_most: the teacher's answers are still to come and were taken at their longest.
    """

    kept: int
    passing: int
    states: int
    at_most: bool

    @classmethod
    def of(
        cls,
        sequences: int,
        states: int,
        prompts: int,
        tokens: int,
        *,
        width: int,
        dimensions: int,
        sample: int,
        at_most: bool,
    ) -> Estimate:
        """Of the number of sequences, of states, of tokens before them, and of tokens that are recorded as rendered.

        Args:
            width: of a state.
            dimensions: of a reduced state.
            sample: how many states pass unreduced.
            at_most: the answers are still to come.
        """
        row = 2 * min(dimensions, width) + 4
        answers = 12 * states if at_most else 0  # as indented JSON
        kept = states * row + (prompts + tokens) * 4 + sequences * SEQUENCE_BYTES + answers
        return cls(kept, min(sample, states) * (4 * width + 4), states, at_most)

    def text(self, folder: Path, done: int) -> str:
        """One line: what is needed, what is free, and whether that is enough; ``done`` bytes are there already."""
        free = free_bytes(folder)
        left = max(0, self.kept + self.passing - done)
        line = (
            f"disk: {'at most ' if self.at_most else 'about '}{_size(self.kept)} for {self.states:,} states and "
            f"{_size(self.passing)} until the projection is fitted; {_size(left)} of it to write, {_size(free)} free"
        )
        if left > free:
            line += f"\nwarning: {_size(left - free)} too little: it {'may stop' if self.at_most else 'will stop'} "
            line += "when the disk is full, and goes on from there once there is room"
        return line


def held_bytes(folder: Path) -> int:
    """What lies in a folder, which others may be writing to."""
    count = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            count += path.stat().st_size if path.is_file() else 0
    return count


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
