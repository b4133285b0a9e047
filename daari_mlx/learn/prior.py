"""How far sources are trusted before answers were counted here: as counted on other corpora, part of the package."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

from daari_mlx.graph.arbiter import Arbiter
from daari_mlx.graph.source import NAMES, cells

FILE = Path(__file__).with_name("prior.npz")


@cache
def prior() -> Arbiter:
    """The arbiter of graphs of few answers, fitted on several corpora by ``scripts/make_prior.py``."""
    with np.load(FILE) as arrays:
        odds = np.split(arrays["odds"], np.cumsum([cells(name) for name in NAMES])[:-1])
        return Arbiter(NAMES, tuple(odds), arrays["weights"])


def save(arbiter: Arbiter, path: Path = FILE) -> None:
    """Write what :func:`prior` reads."""
    np.savez_compressed(path, odds=np.concatenate(arbiter.odds), weights=arbiter.weights)
