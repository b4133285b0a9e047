"""Token texts that a person can read in a terminal: invisible characters shown, bytes told, columns kept.

Nothing that a teacher says reaches the terminal as an order: control characters become their pictures.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Any

from rich.cells import cell_len

SPACE, ELLIPSIS, BASE = "·", "…", "◌"  # BASE carries an accent that would sit on the column before it
ISOLATE, END_ISOLATE = "\u2068", "\u2069"  # what is between them does not turn the columns around
PICTURES = {code: chr(0x2400 + code) for code in range(32)} | {0x7F: "␡"}
INVISIBLE = {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"}
# these too: fillers, vowels that are not written, variation selectors
BLANK = {0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0, 0x16FE4, 0x1D159}
BLANK |= {*range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)}
# they take no column on an emoji, and none alone; two of these are a flag, one is none
SKIN_TONES, FLAG_HALVES = frozenset(map(chr, range(0x1F3FB, 0x1F400))), frozenset(map(chr, range(0x1F1E6, 0x1F200)))
COLOURS = re.compile(r"\033\[[0-9;]*m")  # what styled text is wrapped in
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
    before = ""  # the character that a mark would sit on, where there is one
    flag = False  # whether half a flag waits for its other half
    for character, following in zip(text, [*text[1:], ""], strict=False):
        if character == " ":
            shown = space
        elif character == space or _must_be_told(character):
            shown = PICTURES.get(ord(character)) or _told(character)
        elif character in FLAG_HALVES:
            second, flag = flag, not flag and following in FLAG_HALVES
            shown = character if flag or second else _told(character)
        elif cell_len(character) or _joins(before, character):
            shown = character
        else:
            shown = BASE + character if unicodedata.category(character)[0] == "M" else _told(character)
        yield shown
        before = character if character != " " and shown in (character, BASE + character) else ""


def _must_be_told(character: str) -> bool:
    """Whether a character gives an order, shows nothing, or looks like a sign of ours."""
    code = ord(character)
    return unicodedata.category(character) in INVISIBLE or code in BLANK or 0x2400 <= code < 0x2422


def _told(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _joins(before: str, character: str) -> bool:
    """Whether a character that takes no column of its own is seen on the one before."""
    if not before:
        return False
    if character in SKIN_TONES:
        return unicodedata.category(before) == "So" and cell_len(before) == 2
    return unicodedata.category(character)[0] == "M" or (_is_hangul(character) and _is_hangul(before))


def _is_hangul(character: str) -> bool:
    return unicodedata.name(character, "").startswith("HANGUL")


def width(text: str) -> int:
    """How many columns a visible text takes in a terminal, its colours left out."""
    return cell_len(COLOURS.sub("", text))


def fit(text: str, columns: int) -> str:
    """A visible text in at most so many columns, at least 1; ``…`` where it was cut."""
    if width(text) <= columns:
        return text
    shown = next(fold(text, columns - 1))
    return shown + ELLIPSIS if width(shown) < columns else ELLIPSIS


def fold(text: str, columns: int) -> Iterator[str]:
    """A visible text in pieces of at most so many columns, parted behind a space where there is one late enough.

    What shows as one is not parted, and gets a piece of its own where it is wider itself. The pieces join to ``text``.
    """
    piece: list[str] = []
    for shown in _shown_as_one(text):
        if piece and width("".join([*piece, shown])) > columns:
            space = next((place for place in range(len(piece), 0, -1) if piece[place - 1] == " "), 0)
            cut = space if space > len(piece) // 2 else len(piece)
            yield "".join(piece[:cut])
            piece = piece[cut:]
        piece.append(shown)
    if piece:
        yield "".join(piece)


def _shown_as_one(text: str) -> Iterator[str]:
    """Each character with the marks and colours behind it; flags, which are two characters."""
    last = ""
    for part in re.findall(f"{COLOURS.pattern}|.", text, re.DOTALL):
        if last and (not width(part) or (part in FLAG_HALVES and last in FLAG_HALVES)):
            last += part
            continue
        if last:
            yield last
        last = part
    if last:
        yield last


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
