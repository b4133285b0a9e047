"""--learn on the command line, with a folder and without; its log folded and told."""

from __future__ import annotations

import errno
import json
import os
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from test_learning_kept import answer as made_up
from typer.testing import CliRunner

from daari_mlx.cli.main import app
from daari_mlx.cli.options.names import LearnName
from daari_mlx.cli.words import VALUES, with_values
from daari_mlx.graph.artifact import ARRAYS
from daari_mlx.learn.log import Log
from daari_mlx.learn.store import LOG, learnt_folder


def run(*args: object) -> Any:
    found = CliRunner().invoke(app, [str(a) for a in args])
    assert found.exit_code == 0, found.output
    return found


def answer(model: Path, *options: object) -> tuple[str, dict[str, Any]]:
    """What it says, and its figures."""
    asked = ("--ignore-chat-template", "-p", "Free entry now", "-m", 16, "--num-draft-tokens", 6, "--json")
    lines = run("generate", "--model", model, *asked, "--verbose", "False", *options).stdout.splitlines()
    record = json.loads(lines[-1])
    return record["text"], record


def test_what_is_learnt_in_a_folder_is_drafted_folded_and_told(tiny_teacher_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "my.graph"
    plain, alone = answer(tiny_teacher_path)
    found = [answer(tiny_teacher_path, "--learn", path) for _ in range(5)]
    assert {text for text, _ in found} == {plain}
    assert found[-1][1]["tokens_per_forward"] > 2 * alone["tokens_per_forward"]
    assert "learnt from" in run("learn", path).stdout
    told = json.loads(run("inspect", path, "--json").stdout)
    assert told["learnt"]["answers"] == 5


def test_what_drafts_in_a_chat_is_named_before_and_after_its_folder_is_there(tmp_path: Path) -> None:
    for exists in (False, True):
        for name in ("my.graph", "learnt"):
            if exists:
                (tmp_path / name).mkdir(exist_ok=True)
        learnt = LearnName(str(tmp_path / "learnt"))
        assert learnt.named(None) == "what it learns, kept in learnt"
        begun = "my.graph" if exists else str(tmp_path / "my.graph")
        assert learnt.named(str(tmp_path / "my.graph")) == f"{begun} and what it learns, kept in learnt"
        assert learnt.named("alice/sms") == "alice/sms and what it learns, kept in learnt"
    assert LearnName(VALUES["--learn"]).named(None) == "what it learns"


def pending(path: Path) -> Path:
    """A path whose log was never folded: who learnt there was killed."""
    learnt_folder(path).mkdir()
    log = Log(learnt_folder(path) / LOG, {"teacher": {"vocab_size": 60}, "layer": "final"})
    for seed in range(10):
        log.append(made_up(seed))
    log.close()
    with (learnt_folder(path) / LOG).open("ab") as file:
        file.write(b"torn")
    return path


def test_a_log_that_waits_is_folded_and_the_same_log_gives_the_same_graph(tmp_path: Path) -> None:
    path = pending(tmp_path / "my.graph")
    assert json.loads(run("learn", path, "--json").stdout)["learnt"]["answers"] == 10
    first = (path / ARRAYS).read_bytes()
    run("learn", path)
    assert (path / ARRAYS).read_bytes() == first
    run("learn", path, "--max-bytes", 120_000)
    assert sum(file.stat().st_size for file in path.iterdir()) <= 120_000


def test_a_fold_that_cannot_be_written_fails_and_leaves_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = pending(tmp_path / "my.graph")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        found = CliRunner().invoke(app, ["learn", str(path)])
    assert found.exit_code == 1 and "disk is full" in found.output and not path.exists()
    run("learn", path)


def test_too_few_answers_are_told(tmp_path: Path) -> None:
    path = tmp_path / "my.graph"
    learnt_folder(path).mkdir()
    log = Log(learnt_folder(path) / LOG, {"teacher": {"vocab_size": 60}, "layer": "final"})
    log.append(made_up(0))
    log.close()
    found = CliRunner().invoke(app, ["learn", str(path)])
    assert found.exit_code == 1 and "answers at least" in found.output


def test_without_a_folder_nothing_is_kept(tiny_teacher_path: Path, tmp_path: Path) -> None:
    plain, _ = answer(tiny_teacher_path)
    assert answer(tiny_teacher_path, "--learn")[0] == plain
    assert not list(tmp_path.iterdir())


def test_an_option_may_stand_without_its_value() -> None:
    assert with_values(["--learn"]) == ["--learn=:memory:"]
    assert with_values(["--learn", "-m", "3"]) == ["--learn=:memory:", "-m", "3"]
    assert with_values(["--learn", "my.graph", "-m"]) == ["--learn", "my.graph", "-m"]
    assert with_values([]) == []


def test_two_drafters_are_refused_before_a_model_is_loaded() -> None:
    for command, drafter in product(("generate", "chat"), (["--drafter", "lookup"], ["--draft-model", "small"])):
        found = CliRunner().invoke(app, [command, "--model", "no/such-model", *drafter, "--learn"])
        assert found.exit_code == 1 and "leave the other drafter out" in found.output


def test_what_is_no_log_is_told_before_the_model_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "my.graph"
    learnt_folder(path).mkdir()
    (learnt_folder(path) / LOG).write_text("my notes")
    found = CliRunner().invoke(app, ["generate", "--model", "no/such-model", "--learn", str(path)])
    assert found.exit_code == 1 and "no log of learnt answers" in found.output
