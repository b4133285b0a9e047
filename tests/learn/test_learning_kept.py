"""What is learnt at a path: another process goes on with it, a kill loses nothing but the newest, two are told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daari_mlx import SpecEngine, batch_generate, generate, learner_for, load_graph, map_rows
from daari_mlx.graph.artifact import read_stats, save_graph
from daari_mlx.ground.errors import DaariError
from daari_mlx.learn.heard import Heard, heard
from daari_mlx.learn.learner import Learner
from daari_mlx.learn.log import Log
from daari_mlx.learn.start import learner_at
from daari_mlx.learn.store import LOG, learnt_folder

ABOUT = {"teacher": {"vocab_size": 60}, "layer": "final"}


def answer(seed: int, tokens: int = 12, width: int = 16) -> Heard:
    """An invented answer with states."""
    random = np.random.default_rng(seed)
    found = heard(
        random.integers(0, 60, 5).tolist(),
        random.integers(0, 60, tokens).tolist(),
        [random.normal(size=(tokens + 1, width))],
        at=1000.0 + seed,
    )
    assert found is not None
    return found


def tell(learner: Learner, seeds: range) -> None:
    width = learner.base.hidden_size
    for seed in seeds:
        one = answer(seed, width=width)
        learner.hear(one.prompt.tolist(), one.answer.tolist(), [one.states])


def test_an_answer_comes_back_as_it_was() -> None:
    one = answer(3)
    back = Heard.of_bytes(one.to_bytes())
    assert back.at == one.at and not back.reduced and back.lead == 1
    for name in ("prompt", "answer", "states"):
        np.testing.assert_array_equal(getattr(back, name), getattr(one, name))
    for damaged in (b"", one.to_bytes()[:-1], one.to_bytes() + b"x"):
        with pytest.raises(ValueError):
            Heard.of_bytes(damaged)


def test_states_that_are_not_those_of_the_tokens_teach_nothing() -> None:
    assert heard([1], [2, 3], [np.ones((5, 4))], 0.0) is None
    assert heard([1], [2, 3], [np.full((2, 4), np.nan)], 0.0) is None
    assert heard([1], [], [np.ones((1, 4))], 0.0) is None


def test_a_log_cut_anywhere_keeps_all_whole_answers_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "answers.log"
    log = Log(path, ABOUT)
    ends = [log.nbytes]
    for seed in range(4):
        log.append(answer(seed))
        ends.append(log.nbytes)
    log.close()
    data = path.read_bytes()
    for end in [ends[0], ends[0] + 3, *range(ends[1], ends[3], 37), ends[4] - 1]:
        path.write_bytes(data[:end])
        log = Log(path, {})
        whole = sum(place <= end for place in ends) - 1
        assert [one.at for one in log.answers] == [1000.0 + seed for seed in range(whole)]
        log.append(answer(9))
        log.close()
        again = Log(path, {})
        assert [one.at for one in again.answers][-1] == 1009.0 and len(again.answers) == whole + 1
        again.close()


def test_what_is_no_log_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "answers.log"
    path.write_text("my notes")
    with pytest.raises(DaariError, match="no log"):
        Log(path, ABOUT)
    assert path.read_text() == "my notes"


def test_another_process_goes_on_with_what_was_learnt(tiny_teacher: tuple[Any, Any], tmp_path: Path) -> None:
    path = tmp_path / "graph"
    first = learner_for(*tiny_teacher, path=path, beside=False)
    tell(first, range(6))
    known = first.snapshot.graph
    first.close()
    load_graph(path).check()
    assert read_stats(path)["learnt"]["answers"] == 4
    second = learner_for(*tiny_teacher, path=path, beside=False)
    assert len(second.memory) == 6
    np.testing.assert_array_equal(second.snapshot.graph.text, known.text)
    np.testing.assert_array_equal(second.snapshot.graph.exemplars.place, known.exemplars.place)
    tell(second, range(6, 9))
    assert len(second.memory) == 9
    second.close()


def test_two_processes_on_one_path_are_told(tiny_teacher: tuple[Any, Any], tmp_path: Path) -> None:
    first = learner_for(*tiny_teacher, path=tmp_path / "graph")
    with pytest.raises(DaariError, match=f"Another process learns in .* process {os.getpid()} .*--learn"):
        learner_for(*tiny_teacher, path=tmp_path / "graph")
    first.close()
    learner_for(*tiny_teacher, path=tmp_path / "graph").close()


def test_a_compiled_graph_stays_what_learning_began_with(compiled: Any, tmp_path: Path) -> None:
    teacher, path = (compiled.teacher.model, compiled.teacher.tokenizer), tmp_path / "graph"
    save_graph(compiled.graph, path, compiled.stats)
    for turn in range(2):
        learner = learner_for(*teacher, path=path, beside=False)
        tell(learner, range(5 * turn, 5 * turn + 5))
        learner.fold()
        learner.close()
    assert learner.base.support.sum() == compiled.graph.support.sum()
    added = sum(len(one.answer) for one in learner.memory.answers)
    assert load_graph(path).support.sum() == compiled.graph.support.sum() + added


def test_a_graph_compiled_anew_at_the_path_is_begun_with(compiled: Any, tmp_path: Path) -> None:
    teacher, path = (compiled.teacher.model, compiled.teacher.tokenizer), tmp_path / "graph"
    learner = learner_for(*teacher, path=path, beside=False)
    tell(learner, range(5))
    learner.close()
    save_graph(compiled.graph, path, compiled.stats)
    again = learner_for(*teacher, path=path, beside=False)
    assert again.base.size == compiled.graph.size and len(again.memory) == 5
    again.close()


def test_the_log_stays_within_its_bytes(tiny_teacher: tuple[Any, Any], tmp_path: Path) -> None:
    path = tmp_path / "graph"
    learner = learner_for(*tiny_teacher, path=path, beside=False, memory_bytes=30_000, max_bytes=150_000)
    for turn in range(8):
        tell(learner, range(10 * turn, 10 * turn + 10))
    learner.fold()
    learner.close()
    assert learner.memory.forgotten > 0
    assert (learnt_folder(path) / LOG).stat().st_size <= 31_000
    assert sum(file.stat().st_size for file in path.iterdir()) <= 150_000


def test_a_log_is_folded_without_its_teacher(tiny_teacher: tuple[Any, Any], tmp_path: Path) -> None:
    path = tmp_path / "graph"
    learner = learner_for(*tiny_teacher, path=path, beside=False)
    tell(learner, range(25))
    learner.close()
    offline = learner_at(path)
    stats = offline.fold(held_out=True)
    offline.close()
    assert stats["learnt"]["answers"] == 25 and stats["held_out"]["answers"] > 0
    assert learner_for(*tiny_teacher, path=path).snapshot.graph.size == load_graph(path).size


def test_a_closed_learner_is_refused_and_what_it_hears_is_told(tiny_teacher: tuple[Any, Any], tmp_path: Path) -> None:
    learner = learner_for(*tiny_teacher, path=tmp_path / "graph", beside=False)
    engine = SpecEngine(tiny_teacher[0], tokenizer=tiny_teacher[1], learn=learner)
    tell(learner, range(5))
    engine.generate_chat([{"role": "user", "content": "hello"}], max_tokens=3)
    learner.close()
    learner.close()
    assert learner.trouble is None
    uses: list[Callable[[], Any]] = [
        lambda: generate(*tiny_teacher, [1, 2, 3], learn=learner, max_tokens=3),
        lambda: batch_generate(*tiny_teacher, [[1, 2, 3]], learn=learner, max_tokens=3),
        lambda: SpecEngine(tiny_teacher[0], tokenizer=tiny_teacher[1], learn=learner),
        lambda: engine.generate_chat([{"role": "user", "content": "hello"}], max_tokens=3),
        lambda: list(map_rows(*tiny_teacher, [{"prompt": "hello"}], learn=learner, max_tokens=3)),
        lambda: learner.fold(),
    ]
    for use in uses:
        with pytest.raises(DaariError, match=r"was closed, .* not kept in .*graph"):
            use()
    tell(learner, range(5, 6))
    assert "closed before an answer ended" in str(learner.trouble)
    again = learner_for(*tiny_teacher, path=tmp_path / "graph")
    assert len(again.memory) == 6
    again.close()


def test_a_learner_that_keeps_nothing_goes_on_after_close(tiny_teacher: tuple[Any, Any]) -> None:
    learner = learner_for(*tiny_teacher, beside=False)
    learner.close()
    tell(learner, range(5))
    assert learner.trouble is None and learner.fold()["learnt"]["answers"] == 5
    generate(*tiny_teacher, [1, 2, 3], learn=learner, max_tokens=3)


def test_nothing_to_fold_is_told(tmp_path: Path) -> None:
    with pytest.raises(DaariError, match="Nothing was learnt"):
        learner_at(tmp_path / "graph")


CHILD = """
import sys, daari_mlx
sys.path.insert(0, sys.argv[2])
from mlx_lm import load
from daari_mlx import learner_for
from test_learning_kept import tell
learner = learner_for(*load(sys.argv[3]), path=sys.argv[1], memory_bytes=40_000)
start = len(learner.memory)
print("ready", flush=True)
for seed in range(start, 10**6):
    tell(learner, range(seed, seed + 1))
    print(seed, flush=True)
"""


def test_a_kill_at_any_moment_loses_the_newest_answers_at_most(tiny_teacher_path: Path, tmp_path: Path) -> None:
    path, random = tmp_path / "graph", np.random.default_rng(0)
    for wait in random.uniform(0.0, 1.5, 3).tolist():
        command = [sys.executable, "-c", CHILD, str(path), str(Path(__file__).parent), str(tiny_teacher_path)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(wait)
        child.send_signal(signal.SIGKILL)
        told = child.stdout.read().split()
        child.wait()
        if path.exists():
            load_graph(path).check()
        folder = learnt_folder(path)
        log = Log(folder / LOG, {})
        if told:  # what was told is in the log, unless it grew too old meanwhile
            last = answer(int(told[-1]), width=log.answers[-1].states.shape[1] if not log.answers[-1].reduced else 64)
            assert any(np.array_equal(one.prompt, last.prompt) for one in log.answers[-2:])
        log.close()
