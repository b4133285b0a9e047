"""The progress bar of every long stage, with rate and time left, and notes: on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from threading import Timer
from typing import Any, Self

Told = Callable[[float, float], None]  # called with (done, end), see Bar.unit
_ROUNDING = 1e-6  # of shares that are added up


class _Units(float):
    """So many units, some of them in part: the bar shows the parts, the text next to it whole units."""

    def __str__(self) -> str:
        return str(int(self + _ROUNDING))


@cache
def _drawn() -> Any:
    """A tqdm bar that counts in :class:`_Units`."""
    from huggingface_hub.utils import tqdm

    class Drawn(tqdm):
        n = property(lambda self: self._units, lambda self, n: setattr(self, "_units", _Units(n)))

        @property
        def format_dict(self) -> Any:
            """No rate, and so no time left, before one whole unit is done."""
            told = super().format_dict
            return told if int(told["n"] + _ROUNDING) else told | {"rate": 0}

        def begin(self: Any) -> None:
            """Draw it where nothing was drawn yet."""
            if self.last_print_t == self.start_t:
                self.last_print_t = self._time()  # so that closing ends the line
                self.refresh()

    return Drawn


class Bar:
    """What :func:`bar` gives: a loop over items, or a bar that is moved by hand, to be entered by ``with``.

    It never stands beyond its total. When the work ends without an error, what was announced and not needed falls
    away: the bar is full.

    Attributes:
        n: units that are done, parts of units included.
        items: what to loop over, where the bar is not moved by hand.
        total: how many there are; None where it is not known.
    """

    def __init__(self, drawn: Any, items: Iterable[Any]) -> None:
        self._begin: Timer | None = None
        if not drawn.disable and drawn.delay > 0:  # a first unit may take minutes
            self._begin = Timer(drawn.delay, drawn.begin)
            self._begin.daemon = True
            self._begin.start()
        self._drawn, self._items = drawn, items
        self.n: float = 0
        self.total: float | None = drawn.total

    def update(self, units: float = 1) -> None:
        """So many more units are done, or parts of units."""
        self._move(self.n + units)

    def unit(self, size: float = 1) -> Told:
        """Something to do that takes long by itself.

        Args:
            size: how many units it stands for.

        Returns:
            A function to be told of (done, end): how far it is. Where its end is not known yet (less than 1), the bar
            waits for it.
        """
        share = 0.0

        def reach(done: float, end: float) -> None:
            nonlocal share
            reached = size * min(done / end, 1) if end >= 1 else 0.0
            if reached > share:
                moved, share = reached - share, reached
                self._move(self.n + moved)

        return reach

    def expect(self, units: float) -> None:
        """So many units are left from here on, whatever was said before."""
        self.total = self._drawn.total = round(self.n) + units

    def note(self, text: str) -> None:
        """Say something behind the bar."""
        self._drawn.set_postfix_str(text, refresh=False)

    def close(self, *, finished: bool = True) -> None:
        """Leave the bar as it stands, or full where the work is ``finished``."""
        if self._begin is not None:
            self._begin.cancel()
            self._begin.join()
        if finished and self.total is not None:
            self.n = self.total = round(self.n)
            self._drawn.n, self._drawn.total = self.n, self.total
        self._drawn.close()

    def _move(self, to: float) -> None:
        if self.total is not None:
            to = min(to, self.total)
        moved, self.n = to - self.n, to
        self._drawn.update(moved)

    def __iter__(self) -> Iterator[Any]:
        with self:
            for item in self._items:
                yield item
                self.update()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        self.close(finished=kind is None)


_QUIET = ContextVar("quiet", default=False)


@contextmanager
def quiet() -> Iterator[None]:
    """Draw no bars within the block: for work that a person does not wait for."""
    token = _QUIET.set(True)
    try:
        yield
    finally:
        _QUIET.reset(token)


def bar(
    items: Sequence[Any] = (),
    *,
    total: float | None = None,
    desc: str,
    unit: str,
    delay: float = 0.5,
    shown: bool = True,
) -> Bar:
    """A tqdm bar on stderr; nothing is drawn for work that ends within ``delay`` seconds, and whatever lasts is drawn.

    The time left follows from all that was done so far, and is not told before one whole unit is done.

    Args:
        items: what to loop over, where the bar is not moved by hand.
        total: how many ``unit`` there are; None where it is not known.
        desc: what is being done, in words.
        unit: the unit of the rate that is shown, e.g. ``"tok"``.
        shown: whether to draw it at all.
    """
    drawn = _drawn()(
        total=len(items) or total,
        desc=desc,
        unit=unit,
        file=sys.stderr,
        disable=not shown or _QUIET.get(),
        delay=delay,
        dynamic_ncols=True,
        unit_scale=unit == "tok",
        mininterval=0.2,
        smoothing=0,
        miniters=0,
    )
    return Bar(drawn, items)


def note(text: str) -> None:
    """A line for the person at the terminal, never for the program that reads the result: to stderr."""
    print(text, file=sys.stderr, flush=True)
