"""A path that is learnt in: who else would write there is refused before any work; nothing counts twice."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_learning_kept import tell
from typer.testing import CliRunner

from daari_mlx import learner_for, load_graph, save_graph
from daari_mlx.chat.saved import write_rows
from daari_mlx.cli.main import app
from daari_mlx.graph.artifact import read_stats
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.lock import holder
from daari_mlx.learn.kept import kept_at
from daari_mlx.share.publish import pull

NO_MODEL = "no/such-model"  # a command that came as far as to load it would say so


def run(*args: object) -> str:
    found = CliRunner().invoke(app, [str(a) for a in args])
    assert found.exit_code == 0, found.output
    return found.output


def refused(*args: object) -> str:
    found = CliRunner().invoke(app, [str(a) for a in args])
    assert found.exit_code == 1, found.output
    return " ".join(found.output.split())


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"Free entry {k}"}) + "\n" for k in range(4)))
    return path


@pytest.fixture
def learnt(tiny_teacher: tuple[Any, Any], tmp_path: Path) -> Path:
    """A graph of six answers; the last two of them are in its log alone."""
    path = tmp_path / "my.graph"
    learner = learner_for(*tiny_teacher, path=path, beside=False)
    tell(learner, range(6))
    learner.close()
    return path


@pytest.fixture
def busy(tiny_teacher: tuple[Any, Any], learnt: Path) -> Iterator[Path]:
    """The same, where somebody learns."""
    learner = learner_for(*tiny_teacher, path=learnt, beside=False)
    yield learnt
    learner.close()


WRITERS: dict[str, Callable[[Path, Path], list[Any]]] = {
    "update": lambda path, rows: ["compile", "--update", path, "--data", rows, "--model", NO_MODEL],
    "compile": lambda path, rows: [
        *("compile", "--force", "--graph-path", path, "--data", rows, "--model", NO_MODEL),
    ],
    "merge": lambda path, rows: ["merge", path, path, "--force", "--graph-path", path],
    "learn": lambda path, rows: ["learn", path],
    "generate": lambda path, rows: ["generate", "--learn", path, "--model", NO_MODEL],
    "chat": lambda path, rows: ["chat", "--learn", path, "--model", NO_MODEL],
    "map": lambda path, rows: ["map", "--learn", path, "--model", NO_MODEL, "--data", rows, "--out", f"{rows}.out"],
    "server": lambda path, rows: ["server", "--learn", path, "--share-learning", "--model", NO_MODEL],
}


@pytest.mark.parametrize("command", WRITERS)
def test_where_a_process_learns_another_command_is_refused_before_any_work(
    busy: Path, rows: Path, tmp_path: Path, command: str
) -> None:
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    said = refused(*WRITERS[command](busy, rows))
    assert f"Another process learns in {busy}.learnt: process {os.getpid()}" in said.replace("- ", "-"), said
    assert "Wait until it ends" in said
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before


@pytest.mark.parametrize("command", ["tier", "map"])
def test_nothing_else_takes_the_place_of_a_graph_that_is_being_learnt(
    tiny_teacher: tuple[Any, Any], rows: Path, tmp_path: Path, command: str
) -> None:
    path = tmp_path / "new.graph"
    learner = learner_for(*tiny_teacher, path=path)
    assert "Another process learns in" in refused(command, "--model", NO_MODEL, "--data", rows, "--out", path)
    with pytest.raises(DaariError, match=r"learns in .* /save"):
        write_rows(path, [], force=True)
    learner.close()
    assert not path.exists()


def test_no_function_writes_where_a_process_learns(busy: Path) -> None:
    with pytest.raises(DaariError, match="Another process learns in"):
        save_graph(load_graph(busy), busy, {})
    with pytest.raises(DaariError, match="Another process learns in"):
        pull("some/graph", busy, replace=True)


def test_a_lock_that_is_looked_at_is_left_as_it_is(busy: Path, learnt: Path, tmp_path: Path) -> None:
    lock = Path(f"{busy}.learnt") / "lock"
    assert str(os.getpid()) in str(holder(lock)) and lock.exists()
    assert holder(tmp_path / "none") is None
    (tmp_path / "left").write_text("by a killed process")
    assert holder(tmp_path / "left") is None


def test_who_learns_can_write_where_it_learns(tiny_teacher: tuple[Any, Any], learnt: Path) -> None:
    learner = learner_for(*tiny_teacher, path=learnt, beside=False)
    assert learner.fold()["learnt"]["answers"] == 6
    learner.close()
    assert kept_at(learnt) == (6, 0)


@pytest.mark.parametrize("way", ["update", "update elsewhere", "merge"])
def test_what_was_learnt_is_added_to_at_another_path_alone(
    learnt: Path, tiny_teacher: tuple[Any, Any], tiny_teacher_path: Path, rows: Path, tmp_path: Path, way: str
) -> None:
    other, new = tmp_path / "other.graph", tmp_path / "new.graph"
    learner = learner_for(*tiny_teacher, path=other, beside=False)
    tell(learner, range(20, 25))
    learner.close()
    asked = ["--data", rows, "--max-tokens", 8]
    update = ["compile", "--update", learnt, *asked, "--model"]
    to = {
        "update": [*update, NO_MODEL],
        "update elsewhere": [*update, NO_MODEL, "--force", "--graph-path", other],
        "merge": ["merge", learnt, other, "--force", "--graph-path", learnt],
    }[way]
    target = other if way == "update elsewhere" else learnt
    before = load_graph(target).support.sum()
    said = refused(*to)
    assert f"daari-mlx learn {target}" in said and "--graph-path" in said
    assert load_graph(target).support.sum() == before
    instead = ["merge", learnt, other] if way == "merge" else [*update, tiny_teacher_path]
    assert f"daari-mlx learn {learnt} counts" in " ".join(run(*instead, "--graph-path", new).split())
    stats = read_stats(new)
    assert stats["learnt"]["answers"] == 4 + (4 if way == "merge" else 0)
    assert stats["settings"]["answers"] == ("learnt" if way == "merge" else "teacher")
    run("compile", "--update", new, *asked, "--model", tiny_teacher_path)  # it has no log of its own


def test_a_graph_made_of_a_learnt_one_is_begun_with_and_never_counted_beside_its_log(
    learnt: Path, tiny_teacher: tuple[Any, Any], tiny_teacher_path: Path, rows: Path, tmp_path: Path
) -> None:
    new = tmp_path / "new.graph"
    update = ("compile", "--update", learnt, "--data", rows, "--max-tokens", 8, "--model", tiny_teacher_path)
    run(*update, "--graph-path", new)
    began = load_graph(new).support.sum()
    for turn in range(3):  # below and above the number of answers that a graph is made of
        learner = learner_for(*tiny_teacher, path=new, beside=False)
        tell(learner, range(30 + 2 * turn, 32 + 2 * turn))
        learner.close()
    run("learn", new)
    assert load_graph(new).support.sum() == began + 6 * 12
    moved = tmp_path / "moved.graph"
    run(*update, "--graph-path", moved)
    (learnt).rename(tmp_path / "gone")
    moved.rename(learnt)
    with pytest.raises(DaariError, match="would count twice"):
        learner_for(*tiny_teacher, path=learnt)
    assert kept_at(learnt) == (6, 6)
