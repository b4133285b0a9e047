"""Which part of an answer's text each token gave, and the colour of the source that drafted it."""

from __future__ import annotations

import copy
import os
from collections import deque
from typing import Any

RESET = "\033[0m"
UNDERLINE = "\033[4m"  # where colours are not wanted
# Of the 256 colours, middle ones that stand out from a dark and from a light ground alike (4 : 1 and more).
OTHER = 244
COLOURS = {
    "copy": 28, "edge": 27, "path": 164, "near": 30, "session": 130, "suffix": 30, "prompt": 28, "model": 27,
}  # fmt: skip


def is_dumb() -> bool:
    """Whether the terminal knows no escapes."""
    return os.environ.get("TERM") == "dumb"


def shade(text: str, source: str | None) -> str:
    """``text`` in the colour of the source that drafted it; None, the teacher's own, stays as it is.

    With NO_COLOR set, drafted text is underlined, whatever its source; a dumb terminal shows no difference.
    """
    if source is None or not text or is_dumb():
        return text
    start = UNDERLINE if os.environ.get("NO_COLOR") else f"\033[38;5;{COLOURS.get(source, OTHER)}m"
    return f"{start}{text}{RESET}"


class Attribution:
    """Which token each character of a streamed answer came from.

    A response's text need not be its token's: detokenizers hold text back until a character or a word is whole. So the
    place where each token's text ends is counted apart, by a detokenizer that is asked as if the answer ended there.

    Args:
        tokenizer: mlx-lm's wrapper.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._detokenizer = tokenizer.detokenizer
        self._detokenizer.reset()
        self._ends_answer = frozenset(tokenizer.eos_token_ids)
        self._shown = 0  # characters that came out so far
        self._spans: deque[tuple[int, str | None]] = deque()  # where each span ends, and who drafted it

    def split(self, token: int, source: str | None, text: str) -> list[tuple[str, str | None]]:
        """Take the next response; return its text in pieces, each with the source that drafted it.

        Args:
            token, source, text: of the response; the pieces join to ``text``.
        """
        if token not in self._ends_answer:
            self._detokenizer.add_token(token)
            _ = self._detokenizer.text  # some look at their tokens only when asked
            ended = copy.copy(self._detokenizer)
            ended.finalize()
            # what is no whole character yet belongs to the token that completes it
            self._spans.append((len(ended.text.rstrip("\ufffd")), source))
        pieces: list[tuple[str, str | None]] = []
        while text:
            while self._spans and self._spans[0][0] <= self._shown:
                self._spans.popleft()
            end, whose = self._spans[0] if self._spans else (self._shown + len(text), source)
            part, text = text[: end - self._shown], text[end - self._shown :]
            self._shown += len(part)
            pieces.append((part, whose))
        return pieces
