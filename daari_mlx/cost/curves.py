"""T(m) of machines that others measured and published: what a draft would gain there, by replay.

Nothing is claimed beyond the rows that were measured: drafts are held within them, so a curve that ends early shows
less than its machine may give. Between measured rows times are taken to be linear.
"""

from __future__ import annotations

from dataclasses import dataclass

from daari_mlx.cost.length import Cost
from daari_mlx.ground.errors import DaariError


@dataclass(frozen=True)
class Curve:
    """One machine's T(m)/T(1).

    Attributes:
        name: what it is called by.
        cost: the curve.
        source: what was measured, and where that is told.
    """

    name: str
    cost: Cost
    source: str

    @property
    def most(self) -> int:
        """The longest draft whose forward was measured."""
        return self.cost.rows[-1] - 1


CURVES = {
    curve.name: curve
    for curve in (
        Curve("linear", Cost((1, 33), (1.0, 2.44)), "T(m)/T(1) = 1 + 0.045 (m - 1): fits 2 cores of Linux, OpenBLAS"),
        Curve(
            "m3-max-4bit",
            Cost((1, 2, 4, 6, 8, 10, 12, 16, 32, 33), (1.0, 1.0, 1.28, 2.04, 2.5, 3.94, 3.94, 3.95, 3.98, 7.8)),
            "4-bit, M3 Max, one large op: ml-explore/mlx#3863",
        ),
        Curve(
            "m5-max-70b-4bit",
            Cost((1, 3, 5, 8, 12, 16), (1.0, 1.12, 1.48, 2.25, 3.2, 3.9)),
            "4-bit 70B, M5 Max, whole model: ml-explore/mlx#3791",
        ),
        Curve(
            "m4-pro-4bit",
            Cost((1, 2, 3, 4, 6, 8), (1.0, 1.03, 1.22, 1.47, 2.07, 2.69)),
            "4-bit, M4 Pro, one op: ml-explore/mlx#3839",
        ),
        Curve("m3-ultra-bf16", Cost((1, 2, 16), (1.0, 2.0, 2.0)), "bf16, M3 Ultra: ml-explore/mlx#4265"),
        Curve(
            "linux-openblas",
            Cost((1, 2, 4, 8, 12, 16, 32), (1.0, 1.2, 1.2, 1.4, 1.7, 1.7, 2.6)),
            "float32 135M, 2 cores of Linux, OpenBLAS with jemalloc: measured by this project",
        ),
    )
}


def choose_curves(name: str) -> list[Curve]:
    """The curve of this name, or all of them for ``"all"``.

    Raises:
        DaariError: there is none.
    """
    if name == "all":
        return list(CURVES.values())
    if name not in CURVES:
        raise DaariError(f"There is no curve {name!r}: known are {', '.join(CURVES)}, or 'all'.")
    return [CURVES[name]]


def published_for(device: str, quantised: bool) -> str:
    """The published curve to start from on a machine that nobody has timed yet.

    Args:
        device: ``"cpu"`` or ``"gpu"``, as MLX calls it.
        quantised: whether the model's weights are.
    """
    if device == "cpu":
        return "linux-openblas"
    return "m3-max-4bit" if quantised else "m3-ultra-bf16"
