"""Whose states are taken is told by the user: a measured choice among layers gained nothing and is gone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from graphs import write_rows
from typer.testing import CliRunner

from daari_mlx.cli.main import app
from daari_mlx.compile.compiler import compile_graph
from daari_mlx.compile.extract import ExtractOptions, extract
from daari_mlx.compile.workdir import Workdir
from daari_mlx.ground.errors import DaariError
from daari_mlx.teacher.load import Teacher
from daari_mlx.text.data import read_sequences


@pytest.mark.parametrize("command", ["extract", "compile"])
def test_the_command_line_takes_final_or_an_index(command: str) -> None:
    for layer in ("some", "auto"):
        refused = CliRunner().invoke(app, [command, "--model", "m", "--data", "d", "--workdir", "w", "--layer", layer])
        assert refused.exit_code == 2 and "final, or the index" in " ".join(refused.output.split())


def test_a_workdir_that_was_filled_by_a_measured_choice_is_refused(
    tiny_teacher: tuple[Any, Any], tiny_teacher_path: Path, tmp_path: Path
) -> None:
    teacher, workdir = Teacher(*tiny_teacher, str(tiny_teacher_path)), Workdir(tmp_path / "work")
    write_rows(tmp_path / "train.jsonl", 8, seed=11)
    extract(
        teacher, read_sequences(tmp_path / "train.jsonl", teacher.tokenizer).items, workdir, ExtractOptions(layer=1)
    )
    assert compile_graph(workdir).graph.layer == 1
    plan = json.loads(workdir.plan_path.read_text())
    workdir.plan_path.write_text(json.dumps({**plan, "layer": "auto"}))
    with pytest.raises(DaariError, match="--layer auto, which is gone"):
        compile_graph(workdir)
