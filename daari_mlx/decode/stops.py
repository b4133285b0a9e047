"""Stop strings: an answer ends where its text first holds one of them, however tokens and rounds cut the text.

mlx-lm's server looks for a stop's own tokens; another way to spell it goes on. Here the text itself is looked at.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.given import check_text


def stop_list(stop: Any) -> list[str]:
    """The stop strings of an option that may be one string, several, or None.

    Raises:
        DaariError: one of them is empty or no text.
    """
    stops = [stop] if isinstance(stop, str) else stop
    if stops is None:
        return []
    if not isinstance(stops, Sequence) or not all(isinstance(s, str) and s for s in stops):
        raise DaariError(f"stop is {stop!r}: give a text, or a list of texts, none of them empty.")
    for text in stops:
        check_text(text, "stop")
    return list(stops)


class StopText:
    """The text of an answer that ends where it first holds one of some stops, and how much of it may be shown.

    The stop itself is not shown. Text that may be the beginning of a stop comes with a later token, once that is
    decided.

    Args:
        detokenizer: mlx-lm's, of this answer alone.
        stops: at least one text.
    """

    def __init__(self, detokenizer: Any, stops: list[str]) -> None:
        self._detokenizer, self._stops = detokenizer, stops
        self._text, self._until, self._shown = "", 0, 0  # all text; how much of it is safe; how much was shown
        detokenizer.reset()

    def take(self, token: int | None, last: bool) -> tuple[str, bool]:
        """The text that may be shown with this token and was not yet, and whether a stop was completed.

        Args:
            token: the next one; None for an end token, which has no text.
            last: the answer ends with it.
        """
        stopped = token is not None and self._add(token)
        if last and not stopped:
            self._detokenizer.finalize()
            self._text = self._detokenizer.text
            self._until = len(self._text)
        segment = self._text[self._shown : self._until]
        self._shown = max(self._shown, self._until)
        return segment, stopped

    def _add(self, token: int) -> bool:
        """Whether a stop is there now. A detokenizer holds text back too, so it is looked at as if it ended here."""
        self._detokenizer.add_token(token)
        self._text = self._detokenizer.text
        ended = copy.copy(self._detokenizer)
        ended.finalize()
        whole = ended.text
        places = [place for stop in self._stops if (place := whole.find(stop, self._shown)) >= 0]
        if places:
            self._text, self._until = whole, min(places)
            return True
        self._until = len(self._text) - max(_begins(self._text[self._shown :], stop) for stop in self._stops)
        return False


def _begins(text: str, stop: str) -> int:
    """The length of the longest beginning of ``stop``, short of all of it, that ``text`` ends with."""
    longest = min(len(stop) - 1, len(text))
    return next((length for length in range(longest, 0, -1) if text.endswith(stop[:length])), 0)
