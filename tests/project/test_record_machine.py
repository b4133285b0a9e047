"""scripts/record: one command times a machine, and what it writes can be shown to anybody."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest
import record_machine

from daari_mlx.cost.curves import CURVES
from daari_mlx.graph.artifact import read_stats


def test_one_command_writes_a_record_with_nothing_personal_in_it(
    tiny_teacher_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"ROWS": 24, "SINGLE": 2, "BATCHED": 3, "SIZES": [1, 2]}.items():
        monkeypatch.setattr(record_machine, name, value)
    monkeypatch.setenv("DAARI_MLX_CACHE", str(tmp_path / "cache"))
    assert record_machine.main(["--model", str(tiny_teacher_path), "--out", str(tmp_path / "out")]) == 0
    (path,) = (tmp_path / "out").glob("*.json")
    text = path.read_text(encoding="utf-8")
    record = json.loads(text)
    assert record["single"]["identity"]["failed"] == 0 and record["single"]["n"] == 2
    assert [size["rows"] for size in record["batched"]["sizes"]] == [1, 2]
    assert all(size["failed"] == 0 for size in record["batched"]["sizes"])
    assert record["probe"]["rows"] and set(record["predicted"]) <= {record_machine.HERE, *CURVES}
    for personal in (str(tmp_path), str(Path.home()), platform.node(), str(tiny_teacher_path)):
        assert personal not in text
    assert record["model"]["name"] == "a folder's model"
    assert record["compile_seconds"] == sum(read_stats(tmp_path / "out" / "graph")["seconds"].values()) > 0
    told = capsys.readouterr().out
    assert str(path) in told and record_machine.WHERE in told and " at once: " in told


def test_a_model_is_named_as_the_hub_names_it_and_a_folder_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "amina" / "my-model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert record_machine.name_of("user/model") == "user/model"
    for folder in ("amina/my-model", str(tmp_path / "amina"), "./amina"):
        assert record_machine.name_of(folder) == "a folder's model"
    monkeypatch.setattr("sys.platform", "darwin")
    assert record_machine.name_of(None) == record_machine.MAC_MODEL
    monkeypatch.setattr("sys.platform", "linux")
    assert record_machine.name_of(None) == "demo teacher"


def test_a_model_that_is_none_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert record_machine.main(["--model", str(tmp_path / "none"), "--out", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("error: ")
