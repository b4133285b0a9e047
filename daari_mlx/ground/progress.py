"""The progress bar of every long stage, with rate and time left, and notes: on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any


def bar(
    iterable: Iterable[Any] | None = None,
    *,
    total: float | None = None,
    desc: str,
    unit: str,
    initial: float = 0,
    delay: float = 0.5,
    shown: bool = True,
) -> Any:
    """A tqdm bar on stderr; nothing is drawn for work that ends within ``delay`` seconds.

    Args:
        iterable: what to loop over, or None for a bar that is moved by ``.update(n)``.
        total: how many ``unit`` there are; None where it is not known.
        desc: what is being done, in words.
        unit: the unit of the rate that is shown, e.g. ``"tok"``.
        initial: how many were done in an earlier run.
        shown: whether to draw it at all.
    """
    from huggingface_hub.utils import tqdm

    return tqdm(
        iterable,
        total=total,
        desc=desc,
        unit=unit,
        initial=initial,
        file=sys.stderr,
        disable=not shown,
        delay=delay,
        dynamic_ncols=True,
        unit_scale=unit == "tok",
        mininterval=0.2,
    )


def note(text: str) -> None:
    """A line for the person at the terminal, never for the program that reads the result: to stderr."""
    print(text, file=sys.stderr, flush=True)
