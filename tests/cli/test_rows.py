"""Rows and template variables at the command line: named fields, what is said of others, what is refused at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_cli import done, failed

from daari_mlx.compile.workdir import Workdir

ROWS = [{"text": "Win a prize", "label": "spam"}, {"text": "Lunch at 12?", "label": "ham"}]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def test_which_field_is_learnt_is_said_and_can_be_chosen(tiny_teacher_path: Path, data: Path, tmp_path: Path) -> None:
    common = ["extract", "--model", tiny_teacher_path, "--data", data, "--answers", "reference", "--workdir"]
    told = done(*common, tmp_path / "texts").stderr
    assert "note: text rows are learnt as a whole" in told and "'label' (in 2 rows)" in told
    named = done(*common, tmp_path / "labels", "--prompt-feature", "text", "--completion-feature", "label").stderr
    assert "note: text rows" not in named
    (texts,), (labels,) = (list(Workdir(tmp_path / name).read_shards()) for name in ("texts", "labels"))
    assert texts.lead.sum() == 0 and labels.lead.sum() == len(ROWS), "an answer has its prompt's last state before it"


@pytest.mark.parametrize("name", ["add_generation_prompt", "return_dict", "tokenize", "continue_final_message"])
@pytest.mark.parametrize("command", ["generate", "chat", "extract", "bench"])
def test_a_name_that_is_no_variable_is_refused_before_a_model_is_loaded(command: str, name: str, data: Path) -> None:
    rest = {"extract": ["--data", data, "--workdir", "w"], "bench": ["--data", data, "--drafter", "lookup"]}
    config = json.dumps({name: True})
    args = [command, "--model", "no/such-model", "--chat-template-config", config, *rest.get(command, [])]
    assert f"chat_template_config has '{name}'" in " ".join(failed(*args, code=2).replace("│", " ").split())


def test_an_array_is_told_once(tiny_teacher_path: Path, data: Path, tmp_path: Path) -> None:
    data.write_text(json.dumps(ROWS, indent=1))
    told = failed("extract", "--model", tiny_teacher_path, "--data", data, "--workdir", tmp_path / "work")
    assert "is one JSON array" in told and "bad row" not in told and not (tmp_path / "work").exists()
