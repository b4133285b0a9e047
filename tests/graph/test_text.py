"""Token ids as code points."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from daari_mlx.graph.codepoints import BREAK_CHARACTER, MAX_TOKEN, as_text

# among them what is no character in UTF-16 (surrogates), what needs two of its units, and the last id of all
ODD = [0, 1, 9, 10, 0xD7FF, 0xD800, 0xDBFF, 0xDC00, 0xDFFF, 0xE000, 0xFFFF, 0x10000, 0x10FFFD, 0x10FFFE]


@given(st.lists(st.sampled_from(ODD) | st.integers(0, MAX_TOKEN - 1)))
def test_every_id_is_one_character_and_none_is_the_break(tokens: list[int]) -> None:
    text = as_text(tokens)
    assert [ord(c) for c in text] == tokens
    assert BREAK_CHARACTER not in text and ord(BREAK_CHARACTER) == MAX_TOKEN
