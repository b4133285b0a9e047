"""What may befall a path that is learnt at: full disks, damaged records, other teachers' graphs, a second process."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daari_mlx.graph.artifact import read_stats, save_graph
from daari_mlx.graph.graph import Graph
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.files import OLD
from daari_mlx.learn import remembered
from daari_mlx.learn.fold import fold, nothing_known
from daari_mlx.learn.heard import Heard, heard
from daari_mlx.learn.learner import Learner
from daari_mlx.learn.log import Log
from daari_mlx.learn.prior import prior
from daari_mlx.learn.remembered import Remembered
from daari_mlx.learn.start import learner_at
from daari_mlx.learn.store import BASE, LOG, Store, learnt_folder

ABOUT: dict[str, Any] = {"teacher": {"vocab_size": 60}, "layer": "final"}
WIDTH = 16


def answer(seed: int, tokens: int = 12) -> Heard:
    random = np.random.default_rng(seed)
    states = [random.normal(size=(tokens + 1, WIDTH))]
    found = heard(random.integers(0, 60, 5).tolist(), random.integers(0, 60, tokens).tolist(), states, 1000.0 + seed)
    assert found is not None
    return found


def learner(path: Path, **options: Any) -> Learner:
    """Of no teacher: as if answers of one were heard."""
    graph = replace(nothing_known(WIDTH, 60, "final", prior()), teacher=ABOUT["teacher"])
    return Learner(graph, store=Store(path), beside=False, **options)


def tell(one: Learner, seeds: range) -> None:
    for seed in seeds:
        said = answer(seed)
        one.hear(said.prompt.tolist(), said.answer.tolist(), [said.states])


def said(log: Log) -> list[float]:
    return [one.at for one in log.answers]


def full(*_: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_loses_nothing_once_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "graph"
    one = learner(path)
    tell(one, range(2))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        patch.setattr(os, "fsync", full)
        tell(one, range(2, 30))
        assert one.trouble is not None and len(one.memory) == 30
    one.close()
    again = learner(path)
    assert len(again.memory) == 30
    again.close()


def test_half_a_record_that_a_full_disk_took_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, write = Log(tmp_path / LOG, ABOUT), os.write
    log.append(answer(0))
    size = log.nbytes
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda file, data: write(file, data[: len(data) // 2]))
        with pytest.raises(OSError, match="to its end"):
            log.append(answer(1))
    assert log.nbytes == size
    log.append(answer(2))
    log.close()
    assert said(Log(tmp_path / LOG, {})) == [1000.0, 1002.0]


def test_states_stay_whole_in_a_log_that_could_not_be_written_reduced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log never holds reduced states without what reduced them."""
    monkeypatch.setattr(remembered, "RAW_ROWS", 13 * 6)
    log = Log(tmp_path / LOG, ABOUT)
    kept = Remembered(1 << 20, WIDTH, None, log)
    for seed in range(6):
        kept.hear(answer(seed))
    graph = fold(kept.known().answers, nothing_known(WIDTH, 60, "final", prior()), None).graph
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        kept.settle(graph.nodes.projection)
    assert kept.projection is None and kept.trouble is not None and "disk is full" in kept.trouble
    kept.hear(answer(6))
    kept.settle(graph.nodes.projection)
    assert kept.projection is graph.nodes.projection and all(one.reduced for one in kept.memory.answers)
    kept.hear(answer(7))
    log.close()
    again = Remembered(1 << 20, WIDTH, None, Log(tmp_path / LOG, {}))
    assert len(again.memory) == 8 and all(one.reduced for one in again.memory.answers)


def test_a_graph_of_other_directions_than_its_log_is_not_drafted_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between reducing the log and keeping the graph that it was reduced for."""
    path = tmp_path / "graph"
    one = learner(path)
    tell(one, range(4))
    tell(one, range(4, 9))
    assert path.exists()
    monkeypatch.setattr(remembered, "RAW_ROWS", 1)
    monkeypatch.setattr(Store, "save", full)
    with pytest.raises(OSError):
        one.fold()
    assert one.memory.answers[0].reduced
    one.close()
    monkeypatch.undo()
    again = learner(path)
    assert len(again.memory) == 9 and again.snapshot.graph.size == 1 and again.snapshot.earlier
    tell(again, range(9, 10))
    assert again.snapshot.graph.support.sum() == 10 * 12
    again.close()


def test_answers_that_come_while_a_log_is_written_anew_are_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(tmp_path / LOG, ABOUT)
    kept = Remembered(20 * answer(0).nbytes, WIDTH, None, log)
    for seed in range(18):
        kept.hear(answer(seed))
    flush, came = os.fsync, iter([19])

    def meanwhile(file: int) -> None:
        flush(file)
        for seed in came:
            kept.hear(answer(seed))

    def check() -> None:
        expected = [one.at for one in kept.memory.answers]
        assert [one.at for one in kept.newest()] == expected
        found = Log(tmp_path / LOG, {})
        assert said(found) == expected
        found.close()

    monkeypatch.setattr(os, "fsync", meanwhile)
    kept.hear(answer(18))  # now it is crowded
    kept.tidy()
    assert kept.memory.forgotten == 3 and kept.memory.answers[-1].at == 1019.0
    check()
    came = iter(range(20, 26))  # so many that some of those which are written are forgotten meanwhile
    for seed in (30, 31):
        kept.hear(answer(seed))
    kept.tidy()
    kept.tidy()
    assert kept.memory.answers[-1].at == 1025.0
    check()
    log.close()


def test_the_log_is_within_its_bytes_without_a_single_fold(tmp_path: Path) -> None:
    path, most = tmp_path / "graph", 20_000
    one = learner(path, memory_bytes=most, clock=lambda: 0.0)
    one._spent = 1e9  # nothing may be counted
    file = learnt_folder(path) / LOG
    head = file.stat().st_size
    for seed in range(120):
        tell(one, range(seed, seed + 1))
        assert file.stat().st_size <= most + head and one.memory.nbytes <= most
    one.close()
    assert said(Log(file, {})) == [one.at for one in one.memory.answers]


def test_a_damaged_record_costs_itself_alone(tmp_path: Path) -> None:
    log, ends = Log(tmp_path / LOG, ABOUT), []
    for seed in range(5):
        ends.append(log.nbytes)
        log.append(answer(seed))
    log.close()
    data = bytearray((tmp_path / LOG).read_bytes())
    data[ends[2] + 40] ^= 1
    (tmp_path / LOG).write_bytes(data)
    again = Log(tmp_path / LOG, {})
    assert said(again) == [1000.0, 1001.0, 1003.0, 1004.0]
    assert again.trouble is not None and "1 record" in again.trouble
    again.append(answer(5))
    again.close()
    assert said(Log(tmp_path / LOG, {}))[-1] == 1005.0


def test_zeros_that_a_lost_power_left_are_cut_off(tmp_path: Path) -> None:
    log = Log(tmp_path / LOG, ABOUT)
    log.append(answer(0))
    size = log.nbytes
    log.close()
    with (tmp_path / LOG).open("ab") as file:
        file.write(bytes(4096))
    again = Log(tmp_path / LOG, {})
    assert said(again) == [1000.0] and again.nbytes == size
    again.close()


def test_a_learnt_graph_without_its_log_is_what_learning_goes_on_from(tmp_path: Path) -> None:
    path = tmp_path / "graph"
    one = learner(path)
    tell(one, range(8))
    one.fold()
    one.close()
    (learnt_folder(path) / LOG).unlink()
    store = Store(path)
    assert store.base is not None and store.base.support.sum() == 8 * 12
    again = Learner(store.base, store=store, beside=False)
    tell(again, range(8, 13))
    again.fold()
    assert again.snapshot.graph.support.sum() == 13 * 12
    again.close()


@pytest.mark.parametrize("name", ["graph", f"graph.learnt/{BASE}"])
def test_a_folder_that_a_kill_left_aside_is_put_back(tmp_path: Path, name: str) -> None:
    path = tmp_path / "graph"
    one = learner(path)
    tell(one, range(6))
    one.fold()
    save_graph(one.snapshot.graph, learnt_folder(path) / BASE, {})
    one.close()
    there = tmp_path / name
    there.rename(there.with_name(there.name + OLD))
    store = Store(path)
    assert isinstance(store.graph, Graph) and store.base is not None and there.exists()
    store.close()


def test_a_graph_of_another_teacher_is_refused_though_its_log_is_gone(
    tiny_teacher: tuple[Any, Any], tmp_path: Path
) -> None:
    from daari_mlx import learner_for

    path = tmp_path / "graph"
    one = learner(path)  # whose teacher is no teacher
    tell(one, range(6))
    one.fold()
    one.close()
    with pytest.raises(DaariError, match="another"):
        learner_for(*tiny_teacher, path=path)
    (learnt_folder(path) / LOG).unlink()
    with pytest.raises(DaariError, match="another"):
        learner_for(*tiny_teacher, path=path)
    assert read_stats(path)["learnt"]["answers"] == 6  # and it is as it was


def test_another_process_is_told_who_learns_there(tmp_path: Path) -> None:
    path = tmp_path / "graph"
    one = learner(path)
    tell(one, range(6))
    command = "import sys; from daari_mlx.learn.start import learner_at; learner_at(sys.argv[1])"
    found = subprocess.run([sys.executable, "-c", command, str(path)], capture_output=True, text=True)
    assert found.returncode == 1 and f"process {os.getpid()}" in found.stderr
    one.close()
    learner_at(path).close()
