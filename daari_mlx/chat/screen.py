"""What a chat shows: the answer on stdout, everything about it on stderr, dim and no wider than the terminal."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from daari_mlx.ground.legible import PICTURES, fold, width
from daari_mlx.show.shades import Attribution, is_dumb, shade

if TYPE_CHECKING:
    from daari_mlx.decode.responses import GenerationResponse

SEPARATOR = " · "
NARROW = 79  # columns, where the terminal's width is not known
LONG_PREFILL = 256  # prompt tokens from which on a line says that they are being read
# A terminal takes control characters as orders, so they are shown as their pictures there: ESC as ␛.
_HARMLESS = {code: sign for code, sign in PICTURES.items() if chr(code) not in "\n\t"}
_HARMLESS |= dict.fromkeys(range(0x80, 0xA0), "\ufffd")


def quiet(text: str) -> None:
    """A line about the chat: to stderr, dim where that is a terminal with colours and NO_COLOR is unset."""
    dim = sys.stderr.isatty() and not os.environ.get("NO_COLOR") and not is_dumb()
    shown = in_lines(text) if sys.stderr.isatty() else text
    print(f"\033[2m{shown}\033[0m" if dim else shown, file=sys.stderr, flush=True)


def plain(text: str) -> None:
    """Something that was asked for, such as a table: to stderr, as bright as the rest and as it is."""
    print(text, file=sys.stderr, flush=True)


def columns() -> int:
    """The width of the terminal."""
    return shutil.get_terminal_size((NARROW, 24)).columns


def in_lines(figures: str) -> str:
    """A line in as many as the terminal needs, parted between figures, else between words."""
    room, lines = columns(), [""]
    for figure in figures.split(SEPARATOR):
        joined = f"{lines[-1]}{SEPARATOR}{figure}" if lines[-1] else figure
        if width(joined) <= room:
            lines[-1] = joined
        else:
            lines.extend(piece.rstrip() for piece in fold(figure, room))
    return "\n".join(line for line in lines if line)


class AnswerText:
    """Prints an answer as it streams.

    Args:
        tokenizer: mlx-lm's wrapper.
        drafts: shade each drafted token by its source.
    """

    def __init__(self, tokenizer: Any, *, drafts: bool) -> None:
        self.text = ""
        self._attribution = Attribution(tokenizer) if drafts else None
        self._terminal = sys.stdout.isatty()

    def show(self, response: GenerationResponse) -> None:
        """Print the text of the next response."""
        self.text += response.text
        pieces: list[tuple[str, str | None]] = [(response.text, None)]
        if self._attribution is not None:
            pieces = self._attribution.split(response.token, response.source, response.text)
        for text, source in pieces:
            print(shade(_harmless(text), source) if self._terminal else text, end="")
        sys.stdout.flush()


def _harmless(text: str) -> str:
    return text.translate(_HARMLESS)


@contextmanager
def prefill_line(shown: bool) -> Iterator[Any]:
    """A callback of (prompt tokens done, prompt tokens) that says that a long prompt is being read, while it is."""
    drawn = False

    def wipe() -> None:
        nonlocal drawn
        if drawn:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
        drawn = False

    def progress(done: int, total: int) -> None:
        nonlocal drawn
        wipe()
        if done < total and total >= LONG_PREFILL:
            drawn = True
            print(f"reading the prompt: {done:,} of {total:,} tokens", end="", file=sys.stderr, flush=True)

    try:
        yield progress if shown and sys.stderr.isatty() and not is_dumb() else lambda *_: None
    finally:
        wipe()
