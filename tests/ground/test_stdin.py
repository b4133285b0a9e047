"""Text from stdin: in its own encoding, within bounds, or an error in one line."""

from __future__ import annotations

import io
import sys

import pytest

from daari_mlx.ground import stdin
from daari_mlx.ground.errors import DaariError


def feed(monkeypatch: pytest.MonkeyPatch, data: bytes, encoding: str = "utf-8", errors: str = "strict") -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding=encoding, errors=errors))


def test_text_comes_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    feed(monkeypatch, "ದಾರಿ\r\n\r\n  x".encode())
    assert stdin.read_all("prompt") == "ದಾರಿ\n\n  x"
    feed(monkeypatch, "ದಾರಿ\r\n\r\n  x".encode())
    assert list(stdin.read_lines("chat")) == ["ದಾರಿ", "", "  x"]
    feed(monkeypatch, b"caf\xe9", "latin-1")
    assert stdin.read_all("prompt") == "café"


@pytest.mark.parametrize(
    ("encoding", "errors"), [("utf-8", "strict"), ("utf-8", "surrogateescape"), ("ascii", "strict")]
)
def test_bytes_that_are_no_text_are_told(encoding: str, errors: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for read in (stdin.read_all, lambda what: list(stdin.read_lines(what))):
        feed(monkeypatch, b"a\ncaf\xe9\n", encoding, errors)
        with pytest.raises(DaariError, match=r"thing from stdin is no (UTF-8|ASCII)"):
            read("thing")


def test_what_never_ends_fills_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdin, "MAX_SMALL", 100)
    for read in (stdin.read_all, lambda what: list(stdin.read_lines(what))):
        feed(monkeypatch, b"x" * 100)
        assert "".join(read("thing")) == "x" * 100
        feed(monkeypatch, b"x" * 101)
        with pytest.raises(DaariError, match="thing from stdin is longer than 100 characters"):
            read("thing")
