"""Token texts that a person can read in a terminal: invisible characters shown, bytes told, columns kept.

Nothing that a teacher says reaches the terminal as an order: control characters become their pictures.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from typing import Any

from rich.cells import cell_len

SPACE, ELLIPSIS, BASE = "·", "…", "◌"  # BASE carries an accent that would sit on the column before it
ISOLATE, END_ISOLATE = "\u2068", "\u2069"  # what is between them does not turn the columns around
PICTURES = {code: chr(0x2400 + code) for code in range(32)} | {0x7F: "␡"}
INVISIBLE = {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"}
BLANK = {0x034F, 0x115F, 0x1160, 0x2800, 0x3164, 0xFFA0, *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)}  # too
RIGHT_TO_LEFT = {"R", "AL", "AN"}
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
# byte-level vocabularies spell each byte as a printable character
BYTES = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + row): byte for row, byte in enumerate(_OTHERS)}


class Words:
    """Token ids to text, one by one: also of tokens that hold no whole character.

    Args:
        tokenizer: mlx-lm's wrapper.
    """

    def __init__(self, tokenizer: Any) -> None:
        from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, SPMStreamingDetokenizer

        self._tokenizer = tokenizer
        self._byte_level = isinstance(tokenizer.detokenizer, BPEStreamingDetokenizer)
        self._sentence_pieces = isinstance(tokenizer.detokenizer, SPMStreamingDetokenizer)
        self._added = frozenset(getattr(tokenizer, "added_tokens_decoder", ()))

    def __call__(self, tokens: Iterable[int]) -> str:
        """The text of some tokens, with ``\\xe2`` for each byte at either end that is no whole character."""
        return b"".join(map(self._bytes, tokens)).decode("utf-8", "backslashreplace")

    def _bytes(self, token: int) -> bytes:
        piece = self._piece(token)
        if isinstance(piece, bytes):
            return piece
        if piece is None:
            return f"<{token}>".encode()
        if token not in self._added:
            if self._byte_level and all(character in BYTES for character in piece):
                return bytes(BYTES[character] for character in piece)
            if self._sentence_pieces and piece.startswith("<0x"):
                return bytes([int(piece[3:5], 16)])
            if self._sentence_pieces:
                piece = piece.replace("▁", " ")
            elif not self._byte_level:
                piece = str(self._tokenizer.decode([token])) or piece
        return piece.encode("utf-8", "backslashreplace")

    def _piece(self, token: int) -> str | bytes | None:
        """What the vocabulary calls a token; None where a head is wider than the vocabulary."""
        try:
            piece: str | bytes | None = self._tokenizer.convert_ids_to_tokens(token)
        except (IndexError, KeyError, OverflowError):
            return None
        return piece


def visible(text: str, space: str = SPACE) -> str:
    """``text`` with a sign for every character that could not be seen: ``␊``, ``\\u200b``.

    A character that looks like one of these signs is written as ``\\u240a``.

    Args:
        space: what is shown for a space.
    """
    return "".join(_signs(text, space))


def _signs(text: str, space: str) -> Iterator[str]:
    before = False  # whether an accent finds something to sit on
    for character in text:
        code, category = ord(character), unicodedata.category(character)
        if character == " ":
            yield space
        elif code in PICTURES:
            yield PICTURES[code]
        elif category in INVISIBLE or code in BLANK or character == space or 0x2400 <= code < 0x2422:
            yield f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
        elif category[0] == "M" and not before:
            yield BASE + character
        else:
            yield character
        before = category[0] not in "CZ" and code not in BLANK


def width(text: str) -> int:
    """How many columns a visible text takes in a terminal."""
    return cell_len(text)


def fit(text: str, columns: int) -> str:
    """A visible text in at most so many columns, at least 1; ``…`` where it was cut."""
    if width(text) <= columns:
        return text
    shown = next(fold(text, columns - 1))
    return shown + ELLIPSIS if width(shown) < columns else ELLIPSIS


def fold(text: str, columns: int) -> Iterator[str]:
    """A visible text in pieces of at most so many columns, parted behind a space where there is one late enough.

    A character that is wider itself gets a piece of its own. The pieces join to ``text``.
    """
    piece = ""
    for character in text:
        if piece and width(piece + character) > columns:
            space = piece.rfind(" ") + 1
            cut = space if space > len(piece) // 2 else len(piece)
            yield piece[:cut]
            piece = piece[cut:]
        piece += character
    if piece:
        yield piece


def isolated(text: str) -> str:
    """``text``, kept from turning around what stands beside it where it is written from right to left."""
    turns = any(unicodedata.bidirectional(character) in RIGHT_TO_LEFT for character in text)
    return f"{ISOLATE}{text}{END_ISOLATE}" if turns else text


def padded(text: str, columns: int, *, right: bool = False) -> str:
    """A visible text cut or filled up to exactly so many columns.

    Args:
        right: put it at the right end of them.
    """
    shown = fit(text, columns)
    room = " " * (columns - width(shown))
    return room + isolated(shown) if right else isolated(shown) + room
