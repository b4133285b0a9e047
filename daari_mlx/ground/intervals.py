"""How sure a share or a ratio is, given how much was counted."""

from __future__ import annotations

from math import sqrt

Z = 1.96  # of a 95 % interval


def wilson(hits: int, tries: int) -> tuple[float, float]:
    """The 95 % score interval (Wilson) of a share; (0, 1) without tries."""
    if tries == 0:
        return 0.0, 1.0
    share, square = hits / tries, Z * Z / tries
    middle = (share + square / 2) / (1 + square)
    half = Z * sqrt(share * (1 - share) / tries + square / (4 * tries)) / (1 + square)
    return max(0.0, middle - half), min(1.0, middle + half)
