"""README's picture of the page is taken of a page that answers."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import make_page_picture
import pytest
from graphs import Compiled

from daari_mlx.ground.errors import DaariError


def test_the_picture_is_of_a_finished_answer(
    compiled: Compiled, tiny_teacher_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    try:
        make_page_picture.find_chromium()
    except DaariError as error:
        pytest.skip(str(error))
    monkeypatch.setenv("DAARI_MLX_CACHE", str(tmp_path / "cache"))
    rows, out = tmp_path / "rows.jsonl", tmp_path / "new" / "page.png"
    turns = [{"role": role, "content": f"{role} says this"} for role in ("system", "user", "assistant")]
    rows.write_text(json.dumps({"messages": turns}) + "\n")
    words = ["--model", tiny_teacher_path, "--graph", compiled.path, "--rows", rows, "--message", "hello", "--out", out]
    assert make_page_picture.main([*map(str, words)]) == 0
    content = out.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n") and len(content) < 300_000
    size = struct.unpack(">II", content[16:24])
    assert size == (make_page_picture.WIDTH * 3 // 2, make_page_picture.HEIGHT * 3 // 2)
    told = capsys.readouterr().out
    assert str(out) in told and " tokens per forward" in told


def test_the_system_prompt_is_the_first_rows(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    for first, expected in (({"messages": [{"role": "system", "content": "S"}]}, "S"),
                            ({"messages": [{"role": "user", "content": "U"}]}, ""), ({"prompt": "P"}, "")):  # fmt: skip
        rows.write_text(json.dumps(first) + "\n")
        assert make_page_picture.system_prompt(rows) == expected


def test_a_graph_that_is_none_is_one_line(
    tiny_teacher_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(make_page_picture, "find_chromium", lambda: ("chromium", "chromedriver"))
    words = ["--model", tiny_teacher_path, "--graph", tmp_path / "none", "--out", tmp_path / "page.png"]
    assert make_page_picture.main([*map(str, words)]) == 1
    assert capsys.readouterr().err.startswith("error: ") and not (tmp_path / "page.png").exists()
