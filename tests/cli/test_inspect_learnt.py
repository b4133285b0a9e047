"""What inspect tells of a graph that is learnt, updated or merged: its newer answers, and why it promises nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_learning_kept import tell
from test_learnt_paths import refused, run

from daari_mlx import learner_for, load_graph, save_graph
from daari_mlx.graph.artifact import read_stats
from daari_mlx.ground.errors import DaariError
from daari_mlx.learn.kept import kept_at
from daari_mlx.measure.prospect import kept_outlook


def learn(teacher: tuple[Any, Any], path: Path, seeds: range, fold: bool = False) -> Path:
    """Learn from invented answers, a few of which are then in the log alone."""
    learner = learner_for(*teacher, path=path, beside=False)
    tell(learner, seeds)
    if fold:
        learner.fold()
    learner.close()
    return path


def view_of(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("inspect", path, "--json").splitlines()[-1])
    return found


def one_line(*args: object) -> str:
    return " ".join(run(*args).split())


@pytest.mark.parametrize("count, more", [(5, 1), (21, 3)])
def test_answers_that_a_graph_lacks_are_told_with_what_counts_them(
    tiny_teacher: tuple[Any, Any], tmp_path: Path, count: int, more: int
) -> None:
    path = learn(tiny_teacher, tmp_path / "my.graph", range(count), fold=True)
    assert view_of(path)["newer_answers"] == 0 and "newer answer" not in run("inspect", path)
    learn(tiny_teacher, path, range(count, count + more))
    assert view_of(path)["newer_answers"] == more and kept_at(path) == (count + more, more)
    shown = one_line("inspect", path)
    are = "answer is" if more == 1 else "answers are"
    assert f"{count} answers, " in shown and f"{more} newer {are} learnt there: daari-mlx learn" in shown
    few = count < 20
    missing = view_of(path)["held_out_missing"]
    assert f"daari-mlx learn {path}" in missing and "compile" not in missing
    assert ("answer more" in missing) == few and ("tells what it promises" in missing) != few
    told = run("learn", path)
    assert ("answer more" in told) == few
    assert (view_of(path)["held_out"] is None) == few and view_of(path)["newer_answers"] == 0
    if not few:
        assert "from what was learnt" in view_of(path)["held_out_from"]


@pytest.mark.parametrize("count, wanted", [(0, "0 answers are"), (1, "1 answer is"), (3, "3 answers are")])
def test_where_only_answers_are_it_is_told_how_many_make_a_graph(
    tiny_teacher: tuple[Any, Any], tmp_path: Path, count: int, wanted: str
) -> None:
    path = learn(tiny_teacher, tmp_path / "my.graph", range(count))
    assert f"{wanted} learnt there; 4 make a graph" in refused("inspect", path)
    for command in (["push", path, "me/it", "--public"], ["merge", path, path, "--graph-path", tmp_path / "new"]):
        assert f"answers are learnt there: daari-mlx learn {path}" in refused(*command)
    with pytest.raises(DaariError, match=r"answers are learnt there: daari-mlx learn .* makes one of 4 or more"):
        load_graph(path)


def test_what_is_learnt_on_top_of_a_graph_is_not_sent_to_a_count_that_tells_nothing(
    compiled: Any, tmp_path: Path
) -> None:
    teacher, path = (compiled.teacher.model, compiled.teacher.tokenizer), tmp_path / "my.graph"
    save_graph(compiled.graph, path, compiled.stats)
    learn(teacher, path, range(21), fold=True)
    missing = view_of(path)["held_out_missing"]
    assert "on top of another graph" in missing and "daari-mlx learn" not in missing


def test_a_graph_that_was_updated_or_merged_says_why_it_keeps_no_answers(
    tiny_teacher: tuple[Any, Any], tiny_teacher_path: Path, tmp_path: Path
) -> None:
    path = learn(tiny_teacher, tmp_path / "my.graph", range(4))
    rows, updated, merged = tmp_path / "rows.jsonl", tmp_path / "updated", tmp_path / "merged"
    rows.write_text("".join(json.dumps({"prompt": f"Free entry {k}"}) + "\n" for k in range(3)))
    asked = ("--data", rows, "--max-tokens", 4, "--model", tiny_teacher_path)
    said = one_line("compile", "--update", path, *asked, "--graph-path", updated)
    assert "the 3 that --update added are too few to hold some out (20 are enough): add more" in said
    assert "4 answers, " in one_line("inspect", updated)
    assert "neither of the graphs that were merged" in one_line("merge", path, updated, "--graph-path", merged)
    assert read_stats(merged)["learnt"]["answers"] == 8


@pytest.mark.parametrize("damage", [{"learnt": 3}, {"learnt": {"answers": "x"}}, {"settings": []}, {"added": [1]}])
def test_odd_figures_are_passed_over(damage: dict[str, Any]) -> None:
    stats = {"settings": {"corpus": "learnt", "answers": "learnt"}, "learnt": {"answers": 30}, **damage}
    outlook, missing = kept_outlook(stats, "g")
    assert outlook is None and missing
