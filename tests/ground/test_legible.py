"""Whatever a token holds can be seen in a terminal, gives it no orders, and keeps the columns."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.tokenizer_utils import (
    BPEStreamingDetokenizer,
    NaiveStreamingDetokenizer,
    SPMStreamingDetokenizer,
    TokenizerWrapper,
)
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

from daari_mlx.ground.legible import BYTES, END_ISOLATE, ISOLATE, Words, fit, fold, isolated, padded, visible, width

TEXTS = [
    "plain text",
    " 漢字 and 😀 👩\u200d👩",
    "שלום, ಕನ್ನಡ!",
    "a\n\tb\r",
    "e\u0301 ❤\ufe0f",
    "\ufeff\u202e<|im_end|>",
]
# what is nothing by itself: marks, joiners, selectors, fillers, halves of letters and flags
PARTS = "\u0301\u20e3\u200d\ufe0f\u180b\u17b4\u115f\u3164\u1161\u11a8\U0001f3fb\U0001f1e6\U0001f1e8\u0cbe\u3099"
LIKELY = "\n\t\x1b\x9b\u200b\ufeff\u202e漢😀👍ᄒ한שم· ␊" + PARTS
ODD = st.text(st.one_of(st.characters(), st.sampled_from(LIKELY)), max_size=40)


@given(ODD)
def test_nothing_is_invisible_and_nothing_is_an_order(text: str) -> None:
    shown = visible(text)
    assert all(unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zs", "Zl", "Zp") for c in shown)
    assert (width(shown) > 0) == bool(text)


@given(st.text(LIKELY, max_size=8), st.text(LIKELY, max_size=8))
def test_what_takes_no_column_is_only_shown_where_it_joins(before: str, after: str) -> None:
    """Each piece of a text that is shown as one takes columns, so that nothing sits on what stands before it."""
    pieces = list(fold(visible(before + after), 1))
    assert all(width(piece) > 0 for piece in pieces)
    assert sum(map(width, pieces)) == width("".join(pieces))


def test_every_character_takes_columns_by_itself() -> None:
    """All to which a terminal gives none, but for the planes that are empty or hold ideographs only."""
    codes = [*range(0x3400), *range(0xA000, 0xAC00), *range(0xD7A4, 0x20000), *range(0xE0000, 0xE0200)]
    bare = [chr(code) for code in codes if width(chr(code)) == 0]
    assert len(bare) > 1000
    assert [ascii(character) for character in bare if width(visible(character)) == 0] == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (" a b", "·a·b"),
        ("\n\t\r\0", "␊␉␍␀"),
        ("\x1b[31m\x7f\x9b", "␛[31m␡\\x9b"),
        ("\u200b\ufeff\u202e\xa0\u3000", "\\u200b\\ufeff\\u202e\\xa0\\u3000"),
        ("\U000e0041\U0010ffff", "\\U000e0041\\U0010ffff"),
        ("\u0301x e\u0301", "◌\u0301x·e\u0301"),  # an accent by itself would sit on the column before it
        ("\n\u0301", "␊◌\u0301"),
        ("❤\ufe0f\u3164", "❤\\ufe0f\\u3164"),
        ("\u200d1\ufe0f\u20e3", "\\u200d1\\ufe0f◌\u20e3"),
        ("a\u0301\u0301 \u0301\u0301·\u0301", "a\u0301\u0301·◌\u0301\u0301\\xb7◌\u0301"),
        ("👍\U0001f3fb\U0001f3fb", "👍\U0001f3fb\\U0001f3fb"),  # a tone needs something to tint, and tints it once
        ("\U0001f3fb a\U0001f3fb", "\\U0001f3fb·a\\U0001f3fb"),
        ("🇮🇳🇮 🇳", "🇮🇳\\U0001f1ee·\\U0001f1f3"),  # half a flag is none
        ("하\u11ab \u1112\u1161\u11ab", "하\u11ab·\u1112\u1161\u11ab"),
        ("\u1161a\u11ab\u115f\u1160\uffa0", "\\u1161a\\u11ab\\u115f\\u1160\\uffa0"),
        ("\u17b4\u180b\U000e0100\u2800", "\\u17b4\\u180b\\U000e0100\\u2800"),
        ("·␊", "\\xb7\\u240a"),  # what is no space and no line end does not look like one
        ("漢字 שלום 😀 ಕನ್ನಡ", "漢字·שלום·😀·ಕನ್ನಡ"),
    ],
)
def test_signs(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_running_text_keeps_its_spaces() -> None:
    assert visible("a b·c\n", " ") == "a b·c␊"


@given(ODD, st.integers(1, 30), st.booleans())
def test_a_cell_takes_exactly_its_columns(text: str, columns: int, right: bool) -> None:
    cell = padded(visible(text), columns, right=right)
    assert width(cell) == columns
    assert width(fit(visible(text), columns)) <= columns
    assert cell.count(ISOLATE) == cell.count(END_ISOLATE)


@given(ODD, st.integers(2, 30))
def test_folded_text_is_the_text_and_fits(text: str, columns: int) -> None:
    pieces = list(fold(visible(text, " "), columns))
    assert "".join(pieces) == visible(text, " ")
    assert all(0 < width(piece) <= columns for piece in pieces if piece.strip())


def test_lines_are_parted_between_words() -> None:
    assert list(fold("how much they sell", 10)) == ["how much ", "they sell"]
    assert list(fold("a verylongword", 8)) == ["a verylo", "ngword"]


def test_what_shows_as_one_is_not_parted() -> None:
    text = "ಕಾಕಾ e\u0301e\u0301 👍\U0001f3fb🇮🇳\033[2m漢\033[0m字"
    assert [list(fold(text, columns)) for columns in (1, 2)] == [
        ["ಕಾ", "ಕಾ", " ", "e\u0301", "e\u0301", " ", "👍\U0001f3fb", "🇮🇳\033[2m", "漢\033[0m", "字"],
        ["ಕಾಕಾ", " e\u0301", "e\u0301 ", "👍\U0001f3fb", "🇮🇳\033[2m", "漢\033[0m", "字"],
    ]
    assert width(text) == 14


def test_text_from_right_to_left_turns_nothing_around() -> None:
    assert isolated("a שלום") == f"{ISOLATE}a שלום{END_ISOLATE}"
    assert isolated("مرحبا")[0] == ISOLATE
    assert isolated("12 a 漢") == "12 a 漢"
    assert padded("שלום", 3) == f"{ISOLATE}של…{END_ISOLATE}"  # what is cut is cut within


def byte_level() -> Any:
    """Byte for byte, with one merge and one added token that is spelt like bytes."""
    vocabulary = {c: n for n, c in enumerate(sorted(ByteLevel.alphabet()))} | {"Ġa": 256}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[("Ġ", "a")]))
    core.pre_tokenizer, core.decoder = ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    core.add_special_tokens(["<|im_end|>", "é"])
    return TokenizerWrapper(PreTrainedTokenizerFast(tokenizer_object=core), BPEStreamingDetokenizer)


def sentence_pieces() -> Any:
    """Pieces with a sign for the space, and a token for each byte."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "▁a", "<|im_end|>"]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    core = Tokenizer(models.BPE(vocabulary, [("▁", "a")], unk_token="<unk>", byte_fallback=True))
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    core.add_special_tokens(["<|im_end|>"])
    return TokenizerWrapper(PreTrainedTokenizerFast(tokenizer_object=core), SPMStreamingDetokenizer)


@pytest.mark.parametrize("make", [byte_level, sentence_pieces])
@pytest.mark.parametrize("text", TEXTS)
def test_tokens_join_to_the_text_they_came_from(make: Any, text: str) -> None:
    tokenizer = make()
    ids = tokenizer.encode(text, add_special_tokens=False)
    words = Words(tokenizer)
    assert words(ids) == text == tokenizer.decode(ids, skip_special_tokens=False)
    assert all(words([token]) for token in ids)


@pytest.mark.parametrize("make", [byte_level, sentence_pieces])
def test_bytes_that_are_no_character_are_told(make: Any) -> None:
    tokenizer = make()
    ids = tokenizer.encode("漢", add_special_tokens=False)
    words = Words(tokenizer)
    assert [words([token]) for token in ids] == ["\\xe6", "\\xbc", "\\xa2"]
    assert words(ids[1:]) == "\\xbc\\xa2"
    assert words([*tokenizer.encode(" a", add_special_tokens=False)]) == " a"


def test_an_added_token_is_not_taken_for_bytes() -> None:
    tokenizer = byte_level()
    assert Words(tokenizer)([tokenizer.convert_tokens_to_ids("é")]) == "é"


def test_other_vocabularies_are_decoded_token_by_token() -> None:
    core = Tokenizer(models.WordLevel({"<unk>": 0, "hi": 1, "漢": 2}, unk_token="<unk>"))
    words = Words(TokenizerWrapper(PreTrainedTokenizerFast(tokenizer_object=core), NaiveStreamingDetokenizer))
    assert [words([1]), words([2])] == ["hi", "漢"]


@pytest.mark.parametrize("make", [byte_level, sentence_pieces])
def test_a_token_that_no_vocabulary_knows_is_told_by_its_id(make: Any) -> None:
    assert Words(make())([99_999, 2**70]) == f"<99999><{2**70}>"


def test_bytes_are_spelt_as_the_tokenizers_library_spells_them() -> None:
    assert set(BYTES) == set(ByteLevel.alphabet())
    assert all(decoders.ByteLevel().decode([c]) == chr(byte) for c, byte in BYTES.items() if byte < 128)
    assert sorted(BYTES.values()) == list(range(256))
