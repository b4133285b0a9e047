"""What a command that learns in a folder says of it: what it begins with, what is learnt at its end, what counts it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from daari_mlx import learner_for
from daari_mlx.cli.main import app
from daari_mlx.learn.kept import Kept
from daari_mlx.show import learnt as told


def asked(path: Path, count: int) -> Path:
    path.write_text("".join(json.dumps({"prompt": f"Free entry {k}"}) + "\n" for k in range(count)))
    return path


def do(model: Path, data: Path, *options: object) -> Any:
    args = ["map", "--model", model, "--data", data, "--out", data.with_suffix(".out"), "--max-tokens", 6, *options]
    found = CliRunner().invoke(app, [str(a) for a in args])
    assert found.exit_code == 0, found.output
    return found


def test_map_tells_what_is_learnt_before_and_after(tiny_teacher_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "my.graph"
    first = do(tiny_teacher_path, asked(tmp_path / "one.jsonl", 1), "--learn", path)
    assert f"learning in {path}: it begins with nothing" in first.stderr
    assert f"1 answer is learnt in {path}; 4 make a graph" in first.stderr
    second = do(tiny_teacher_path, asked(tmp_path / "many.jsonl", 6), "--learn", path, "--json")
    assert (
        "it begins with 1 answer learnt before" in second.stderr and f"7 answers are learnt in {path}" in second.stderr
    )
    assert json.loads(second.stdout)["rows"] == 6


def test_where_nothing_is_kept_nothing_is_told_of_a_folder(tiny_teacher_path: Path, tmp_path: Path) -> None:
    assert "learn" not in do(tiny_teacher_path, asked(tmp_path / "rows.jsonl", 1), "--learn").stderr


def test_chat_tells_it_too(tiny_teacher_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "my.graph"
    args = ["chat", "--model", tiny_teacher_path, "--learn", path, "-m", 4]
    found = CliRunner().invoke(app, [str(a) for a in args], input="hello\n")
    assert found.exit_code == 0, found.output
    assert "it begins with nothing" in found.stderr and f"1 answer is learnt in {path}" in found.stderr


@pytest.mark.parametrize(
    "kept, wanted",
    [
        (None, "nothing is learnt in g"),
        (Kept(0, 0), "0 answers are learnt in g; 4 make a graph"),
        (Kept(3, 3), "3 answers are learnt in g; 4 make a graph"),
        (Kept(29, 9), "29 answers are learnt in g; daari-mlx learn g counts the newest 9 too"),
        (Kept(1200, 0), "1,200 answers are learnt in g"),
    ],
)
def test_the_end_tells_what_is_to_do(kept: Kept | None, wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("daari_mlx.learn.kept.kept_at", lambda path: kept)
    assert told.ends_text("g") == wanted


def test_a_compiled_graph_to_begin_with_is_told(compiled: Any) -> None:
    teacher = compiled.teacher
    learner = learner_for(teacher.model, teacher.tokenizer, graph=compiled.graph)
    assert told.begins_text(learner, "g") == "learning in g: it begins with a compiled graph"
