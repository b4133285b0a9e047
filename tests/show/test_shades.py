"""Each character of a streamed answer has the colour of the source that drafted its token."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.tokenizer_utils import NaiveStreamingDetokenizer, TokenizerWrapper

from daari_mlx.graph.source import NAMES
from daari_mlx.show.shades import COLOURS, Attribution, shade

SAID = 'Fünf Hunde 🐕‍🦺 sind da:\n\n  {"ಕನ್ನಡ": \'שלום\', "x": 12.5}  日本語。 a b  c'


@pytest.fixture(params=["its own", "naive"])
def tokenizer(request: pytest.FixtureRequest, tiny_teacher: tuple[Any, Any]) -> Any:
    own = tiny_teacher[1]
    return own if request.param == "its own" else TokenizerWrapper(own._tokenizer, NaiveStreamingDetokenizer)


def spans(tokenizer: Any, ids: list[int]) -> list[tuple[str, str]]:
    """Each character and its token, from the decoded beginnings: a character belongs to the token that completes it."""
    found: list[tuple[str, str]] = []
    for end in range(1, len(ids) + 1):
        text = tokenizer.decode(ids[:end]).rstrip("\ufffd")
        found += [(character, str(end - 1)) for character in text[len(found) :]]
    return found


def characters(pieces: list[tuple[str, str | None]]) -> list[tuple[str, str | None]]:
    return [(character, source) for text, source in pieces for character in text]


@pytest.mark.parametrize("delay", [0, 1, 5])
def test_every_character_has_its_tokens_source(tokenizer: Any, delay: int) -> None:
    """Also where text comes several tokens late, as it does before a stop that it may begin."""
    ids = tokenizer.encode(SAID, add_special_tokens=False)
    detokenizer = tokenizer.detokenizer
    detokenizer.reset()
    attribution, held, found = Attribution(tokenizer), [], []
    for number, token in enumerate(ids):
        detokenizer.add_token(token)
        held.append(detokenizer.last_segment)
        text = held.pop(0) if len(held) > delay else ""
        found += characters(attribution.split(token, str(number), text))
    detokenizer.finalize()
    rest = "".join(held) + detokenizer.last_segment
    end = next(iter(tokenizer.eos_token_ids))
    found += characters(attribution.split(end, "the end", rest))
    assert "".join(character for character, _ in found) == SAID
    assert found == spans(tokenizer, ids)


@given(st.lists(st.tuples(st.integers(3, 600), st.text(max_size=4)), max_size=12))
def test_pieces_join_to_the_text_whatever_it_is(tiny_teacher: tuple[Any, Any], said: list[tuple[int, str]]) -> None:
    attribution = Attribution(tiny_teacher[1])
    for token, text in said:
        pieces = attribution.split(token, "copy", text)
        assert "".join(piece for piece, _ in pieces) == text and all(piece for piece, _ in pieces)


def test_every_source_has_a_colour_and_the_teacher_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert set(NAMES) <= set(COLOURS)
    assert len({COLOURS[name] for name in NAMES}) == len(NAMES)
    assert shade("x", None) == "x" and shade("", "copy") == ""
    assert shade("x", "copy") == "\x1b[38;5;28mx\x1b[0m"


def test_colours_stand_out_from_a_light_and_a_dark_ground() -> None:
    """Contrast as the accessibility guidelines define it: 3 : 1 at the least for both."""
    for name, colour in COLOURS.items():
        steps = (*divmod((colour - 16) // 6, 6), (colour - 16) % 6)
        linear = [(((0, 95, 135, 175, 215, 255)[s] / 255 + 0.055) / 1.055) ** 2.4 if s else 0.0 for s in steps]
        luminance = sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
        assert 1.05 / (luminance + 0.05) > 3 and (luminance + 0.05) / 0.05 > 3, name
