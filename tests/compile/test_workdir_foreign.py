"""A folder that is no workdir is never filled, and so never removed after a compilation."""

from __future__ import annotations

from pathlib import Path

import pytest

from daari_mlx.compile.workdir import Plan, Workdir
from daari_mlx.ground.errors import DaariError

PLAN = Plan({"weights": "w"}, "c", 1, "reference", 8, "final", 4, 0)


def test_a_folder_with_other_things_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("precious")
    with pytest.raises(DaariError, match=r"notes\.txt"):
        Workdir(tmp_path).begin(PLAN)
    assert [found.name for found in tmp_path.iterdir()] == ["notes.txt"]


def test_an_empty_folder_and_one_of_a_run_killed_at_its_start_are_taken(tmp_path: Path) -> None:
    (tmp_path / "extract.json.partial").write_text("{")
    Workdir(tmp_path).begin(PLAN)
    assert Workdir(tmp_path).read_plan() == PLAN
