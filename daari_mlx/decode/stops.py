"""Stop strings: an answer ends where its text first holds one of them, however tokens and rounds cut the text.

mlx-lm's server looks for a stop's own tokens; another way to spell it goes on. Here the text itself is looked at.
"""

from __future__ import annotations

import copy
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from daari_mlx.ground.errors import DaariError

if TYPE_CHECKING:
    from daari_mlx.decode.generate import GenerationResponse

Responses = Generator["GenerationResponse", None, None]


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
    return list(stops)


def until_stop(responses: Responses, tokenizer: Any, stops: list[str]) -> Responses:
    """The responses up to the token with which the text first holds one of ``stops``.

    The stop itself is not among the text. Text that may be the beginning of a stop comes with a later response, once
    that is decided; so there still is one response a token. Nothing behind the last of them was counted, and the cache
    is as exact as it is after ``close()``.

    Args:
        responses: of one answer.
        tokenizer: mlx-lm's wrapper.
        stops: at least one text.
    """
    text = _Text(tokenizer.detokenizer, stops)
    try:
        for response in responses:
            if response.token not in tokenizer.eos_token_ids:
                text.add(response.token)
            if text.stopped:
                responses.close()  # the cache is exact before the last response is out
                response.finish_reason = "stop"
            elif response.finish_reason is not None:
                text.finish()
            response.text = text.take()
            yield response
            if text.stopped:
                return
    finally:
        responses.close()


class _Text:
    """The text of an answer, and how much of it may be shown."""

    def __init__(self, detokenizer: Any, stops: list[str]) -> None:
        self.stopped = False
        self._detokenizer, self._stops = detokenizer, stops
        self._text, self._until, self._shown = "", 0, 0  # all text; how much of it is safe; how much was shown
        detokenizer.reset()

    def add(self, token: int) -> None:
        """Take a token. A detokenizer holds text back too, so that the text is looked at as if it ended here."""
        self._detokenizer.add_token(token)
        self._text = self._detokenizer.text
        ended = copy.copy(self._detokenizer)
        ended.finalize()
        whole = ended.text
        places = [place for stop in self._stops if (place := whole.find(stop, self._shown)) >= 0]
        if places:
            self._text, self._until, self.stopped = whole, min(places), True
        else:
            self._until = len(self._text) - max(_begins(self._text[self._shown :], stop) for stop in self._stops)

    def finish(self) -> None:
        """There is no more to come: all text may be shown."""
        self._detokenizer.finalize()
        self._text = self._detokenizer.text
        self._until = len(self._text)

    def take(self) -> str:
        """The text that may be shown and was not yet."""
        segment = self._text[self._shown : self._until]
        self._shown = max(self._shown, self._until)
        return segment


def _begins(text: str, stop: str) -> int:
    """The length of the longest beginning of ``stop``, short of all of it, that ``text`` ends with."""
    longest = min(len(stop) - 1, len(text))
    return next((length for length in range(longest, 0, -1) if text.endswith(stop[:length])), 0)
