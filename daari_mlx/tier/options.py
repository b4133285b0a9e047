"""How a tier is made, as one record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.option import Option, check_fields, number, whole

GROUP_SIZES = (32, 64, 128)  # of MLX's affine quantisation
BITS = (2, 3, 4, 5, 6, 8)  # of mlx-lm's affine quantisation


def read_bits(value: Any) -> int | None:
    """One of ``BITS``, or ``"none"``."""
    if value in (None, "none"):
        return None
    if str(value) not in map(str, BITS):
        raise ValueError(f"{value!r}: give one of {', '.join(map(str, BITS))}, or none")
    return int(value)


@dataclass(frozen=True)
class TierOptions:
    """How a tier is made; ``bits`` None leaves the weights as they are, ``max_tokens`` are an answer's."""

    bits: Annotated[
        int | None, Option("Bits of the tier's weights; none leaves them as they are.", "N|none", read=read_bits)
    ] = 4
    group_size: Annotated[int, number("How many weights share a scale.", 1)] = 64
    drop_layers: Annotated[
        int | Literal["auto"],
        Option(
            "How many layers to leave out; auto takes the tier that is expected to be fastest.",
            "N|auto",
            read=whole(0, "give a number from 0 on, or auto", "auto"),
        ),
    ] = "auto"
    max_tokens: Annotated[int, number("The longest answer of the teacher.", 1, flags=("--max-tokens", "-m"))] = 64

    def __post_init__(self) -> None:
        """See that each is one that has a meaning."""
        check_fields(self)
        if self.bits is not None and self.group_size not in GROUP_SIZES:
            raise DaariError(f"--group-size is {self.group_size}: MLX quantises in groups of 32, 64 or 128.")
