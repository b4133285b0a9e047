"""Several ranks: each file is made once, rank 0 ends up with all, and the bytes are those of one process."""

from __future__ import annotations

import random
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from bench_ranks_killed import free_ports
from graphs import write_rows
from test_resume import contents
from typer.testing import CliRunner

from daari_mlx.cli.main import app
from daari_mlx.compile.batches import BOUND
from daari_mlx.compile.compiler import compile_graph
from daari_mlx.compile.workdir import Workdir
from daari_mlx.graph.artifact import save_graph
from daari_mlx.ground.errors import DaariError
from daari_mlx.teacher.ranks import Alone, Ranks, crew

# the command line with small shards; {rank} in an argument stands for the rank's number
RUN = """
import os, signal, sys
import daari_mlx
from daari_mlx.compile import answers
from daari_mlx.cli import main as cli
from daari_mlx.compile import extract
extract.PART, extract.SAMPLE_STATES, answers.PART = 2, 60, 3
sys.argv[1:] = [a.replace("{rank}", os.environ.get("MLX_RANK", "0")) for a in sys.argv[1:]]
if sys.argv[1] == os.environ.get("MLX_RANK"):  # this rank dies at its second shard
    calls, read = [], extract.read
    def dying(*given):
        calls.append(1)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return read(*given)
    extract.read = dying
del sys.argv[1]
cli.main()
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "train.jsonl"
    write_rows(path, 14, seed=9)
    return path


Extract = Callable[..., str]


@pytest.fixture(scope="module")
def extracts(data: Path, tiny_teacher_path: Path) -> Extract:
    """Run ``daari-mlx extract`` to a folder, alone or on ranks; give what they printed."""

    def run(work: Path, *options: str, ranks: int = 2, dying: str = "none") -> str:
        command = [sys.executable, "-c", RUN, dying, "extract"]
        command += ["--model", str(tiny_teacher_path), "--data", str(data), "--workdir", str(work)]
        command += ["--answers", "reference", *options]  # the last one given counts
        if ranks > 1:
            launcher = [sys.executable, "-c", "from mlx._distributed_utils.launch import main; main()"]
            launcher += ["-n", str(ranks), "--backend", "ring", "--starting-port", str(free_ports(ranks))]
            command = [*launcher, "--", *command]
        running = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert running.stdout is not None and running.stdin is not None
        with running.stdin:  # open until the end: the launcher would else read from it all the time
            told = running.stdout.read()
        running.stdout.close()
        assert running.wait() == 0 or ranks == 1
        return told

    return run


@pytest.fixture(scope="module")
def reference(extracts: Extract, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process leaves."""
    work = tmp_path_factory.mktemp("reference") / "work"
    extracts(work, ranks=1)
    return work


def graph_bytes(work: Path, target: Path) -> bytes:
    compiled = compile_graph(Workdir(work), nodes=16)
    return (save_graph(compiled.graph, target, compiled.stats) / "graph.safetensors").read_bytes()


# --- launched


@pytest.mark.slow
def test_two_ranks_leave_the_bytes_of_one(extracts: Extract, reference: Path, tmp_path: Path) -> None:
    told = extracts(tmp_path / "work")
    assert told.count("14 sequences") == 1, told
    assert contents(tmp_path / "work") == contents(reference)
    assert graph_bytes(tmp_path / "work", tmp_path / "a") == graph_bytes(reference, tmp_path / "b")


@pytest.mark.slow
def test_ranks_with_folders_of_their_own_bring_all_to_rank_0(
    extracts: Extract, reference: Path, tmp_path: Path
) -> None:
    options = ("--answers", "teacher", "--max-tokens", "8")
    told = extracts(tmp_path / "work{rank}", *options)
    extracts(tmp_path / "alone", *options, ranks=1)
    assert contents(tmp_path / "work0") == contents(tmp_path / "alone"), told
    shards = sorted((tmp_path / "work1" / "shards").iterdir())
    assert 0 < len(shards) < len(list((tmp_path / "work0" / "shards").iterdir()))
    assert not list(tmp_path.rglob("*.lock")) and not (tmp_path / "work1" / "raw").exists()


@pytest.mark.slow
def test_a_rank_that_dies_leaves_work_that_is_resumed(extracts: Extract, reference: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    told = extracts(work, dying="1")
    assert any(words in told for words in ("the same command resumes", "start the same launch again")), told
    assert "Traceback" not in told and not Workdir(work).is_finished()
    assert "14 sequences" in extracts(work, ranks=1)
    assert contents(work) == contents(reference)


@pytest.mark.slow
def test_ranks_with_other_options_are_told_apart(extracts: Extract, tmp_path: Path) -> None:
    told = extracts(tmp_path / "work", "--seed", "{rank}")
    assert "Rank 1 was given another teacher, other data or other options than rank 0" in told
    assert not (tmp_path / "work").exists()


@pytest.mark.slow
def test_a_teacher_over_two_ranks_gives_the_states_of_one(extracts: Extract, reference: Path, tmp_path: Path) -> None:
    told = extracts(tmp_path / "work", "--shard-model", "tensor")
    found, alone = Workdir(tmp_path / "work"), Workdir(reference)
    assert found.is_finished(), told
    assert found.read_plan() == alone.read_plan()  # the fingerprint of the whole teacher with it
    mine, theirs = found.read_projection(), alone.read_projection()
    for one, other in zip(found.read_shards(), alone.read_shards(), strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
        back = [s.reduced.astype(np.float32) @ p.basis.T for s, p in ((one, mine), (other, theirs))]
        assert np.abs(back[0] - back[1]).max() <= 20 * BOUND * np.abs(back[1]).max()


@pytest.mark.slow
def test_ranks_of_one_machine_know_of_each_other() -> None:
    code = (
        "import daari_mlx; from daari_mlx.teacher.ranks import crew\n"
        "with crew() as ranks: print('beside', ranks.on_this_machine())"
    )
    launcher = [sys.executable, "-c", "from mlx._distributed_utils.launch import main; main()"]
    launcher += [
        "-n",
        "2",
        "--backend",
        "ring",
        "--starting-port",
        str(free_ports(2)),
        "--",
        sys.executable,
        "-c",
        code,
    ]
    told = subprocess.run(launcher, input="", capture_output=True, text=True).stdout
    assert told.count("beside 2") == 2, told


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux opens a pipe's reading end for writing")
@pytest.mark.parametrize("kind", ["pipe", "file", "closed"])
def test_the_launcher_is_not_asked_to_write_what_no_rank_reads(kind: str, tmp_path: Path) -> None:
    code = "from daari_mlx.teacher.ranks import calm_launcher; calm_launcher(); print('calm', flush=True)"
    (tmp_path / "file").write_bytes(b"data")
    given = {"pipe": subprocess.PIPE, "file": (tmp_path / "file").open("rb"), "closed": None}[kind]
    closing = ["sh", "-c", 'exec "$@" <&-', "-"] if kind == "closed" else []
    command = [*closing, sys.executable, "-c", code + "; import time; time.sleep(60)"]
    with subprocess.Popen(command, stdin=given, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None and running.stdout.readline() == b"calm\n"
        if running.stdin is not None:  # what mlx.launch waits for without an end
            assert select.select([], [running.stdin], [], 0)[1] == []
        running.kill()
    assert (tmp_path / "file").read_bytes() == b"data"


# --- alone


def test_a_process_that_was_not_launched_never_touches_mlx_distributed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx.distributed, "init", None)
    assert type(crew()) is Alone and type(crew(lockstep=True)) is Alone


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--shard-model", "tensor"], "over several processes, and this is one"),
        (["--shard-model", "tensor", "--adapter-path", "a"], "cannot load adapters"),
        (["--shard-model", "pipeline", "--layer", "1"], "use --layer final"),
    ],
)
def test_a_teacher_is_sharded_only_where_it_can_be(
    options: list[str], told: str, data: Path, tiny_teacher_path: Path, tmp_path: Path
) -> None:
    where = ["--model", str(tiny_teacher_path), "--data", str(data), "--workdir", str(tmp_path / "work")]
    result = CliRunner().invoke(app, ["extract", *where, *options])
    assert result.exit_code == 1 and told in result.stderr


def test_compile_does_not_extract_on_ranks(monkeypatch: pytest.MonkeyPatch, data: Path, tmp_path: Path) -> None:
    monkeypatch.setenv("MLX_RANK", "1")
    options = ["--model", "m", "--data", str(data), "--graph-path", str(tmp_path / "graph")]
    result = CliRunner().invoke(app, ["compile", *options])
    assert result.exit_code == 1 and "compile runs in one process" in result.stderr


# --- who makes what, over threads instead of a network


class Threaded(Ranks):
    """A rank whose collective calls go through memory."""

    def __init__(self, rank: int, size: int, barrier: threading.Barrier, board: list[Any], lockstep: bool) -> None:
        self.rank, self.size, self.lockstep = rank, size, lockstep
        self._barrier, self._board = barrier, board

    def _all(self, row: Any) -> Any:
        self._board[self.rank] = np.array(row)
        self._barrier.wait(timeout=20)
        found = np.stack(self._board)
        self._barrier.wait(timeout=20)
        return found

    def _spread(self, content: bytes) -> bytes:
        self._board[self.rank] = content
        self._barrier.wait(timeout=20)
        found = next((c for c in self._board if c), b"")
        self._barrier.wait(timeout=20)
        return found


def together(size: int, work: Callable[[Ranks], Any], *, lockstep: bool = False) -> list[Any]:
    """What ``work`` gives (or raises) on each rank."""
    barrier, board, found = threading.Barrier(size), [None] * size, [None] * size

    def run(rank: int) -> None:
        try:
            found[rank] = work(Threaded(rank, size, barrier, board, lockstep))
        except (DaariError, OSError) as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("size", [2, 3])
def test_each_missing_file_is_made_by_one_rank_and_reaches_rank_0(tmp_path: Path, size: int, shared: bool) -> None:
    chance = random.Random(size)
    folders = [tmp_path / ("all" if shared else str(rank)) for rank in range(size)]
    for folder in folders:
        folder.mkdir(exist_ok=True)
    for number in range(11):  # what an earlier launch left
        if chance.random() < 0.4:
            (chance.choice(folders) / f"{number}").write_text(f"old {number}")
    before = {p.name for folder in folders for p in folder.iterdir()}

    def work(ranks: Ranks) -> list[int]:
        paths = [folders[ranks.rank] / f"{number}" for number in range(11)]
        made = ranks.mine(paths)
        for number in made:
            paths[number].write_text(f"new {number}")
        ranks.agree()
        ranks.gather(paths)
        assert ranks.mine(paths) == []
        return made

    made = together(size, work)
    assert sorted(n for some in made for n in some) == [n for n in range(11) if f"{n}" not in before]
    assert max(map(len, made)) - min(map(len, made)) <= 1
    for number in range(11):
        kind = "old" if f"{number}" in before else "new"
        assert (folders[0] / f"{number}").read_text() == f"{kind} {number}"
    assert len(list(folders[1].iterdir())) == 11 or not shared


def test_in_lockstep_all_make_what_rank_0_lacks(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"{rank}").mkdir()
    (tmp_path / "0" / "1").touch()
    (tmp_path / "1" / "2").touch()

    def work(ranks: Ranks) -> Any:
        return ranks.mine([tmp_path / f"{ranks.rank}" / f"{k}" for k in range(3)]), ranks.told(f"{ranks.rank}")

    assert together(2, work, lockstep=True) == [([0, 2], "0")] * 2


def test_only_ranks_of_the_same_machine_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {0: "one", 1: "other", 2: "one"}
    machine = threading.local()
    monkeypatch.setattr(socket, "gethostname", lambda: names[machine.rank])

    def work(ranks: Ranks) -> int:
        machine.rank = ranks.rank
        return ranks.on_this_machine()

    assert together(3, work) == [2, 1, 2]


def test_files_for_everyone_reach_everyone(tmp_path: Path) -> None:
    def work(ranks: Ranks) -> bytes:
        path = tmp_path / f"{ranks.rank}" / "file"
        if ranks.rank == 1:
            path.parent.mkdir()
            path.write_bytes(b"some")
        ranks.gather([path], everyone=True)
        return path.read_bytes()

    assert together(3, work) == [b"some"] * 3


@pytest.mark.parametrize("folders", ["aaa", "abb", "aba", "abc"])
def test_ranks_that_share_a_folder_never_write_a_file_at_once(
    folders: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is late with what it makes for all, and the others look for it before it is there."""
    writing: dict[str, int] = {}
    written: list[str] = []

    @contextmanager
    def watched(path: Path, needed: int | None = None) -> Iterator[Path]:
        writing[str(path)] = writing.get(str(path), 0) + 1
        time.sleep(0.05)
        assert writing[str(path)] == 1, "another rank writes this file too"
        yield path
        writing[str(path)] -= 1
        written.append(path.parent.name)

    monkeypatch.setattr("daari_mlx.teacher.ranks.whole", watched)

    def work(ranks: Ranks) -> str:
        path = tmp_path / folders[ranks.rank] / "file"
        path.parent.mkdir(exist_ok=True)
        for _ in ranks.mine([path]):
            time.sleep(0.2)
            path.write_text("made")
        ranks.gather([path], everyone=True)
        return path.read_text()

    assert together(3, work) == ["made"] * 3
    assert sorted(written) == sorted(set(folders) - {"a"})


def test_ranks_take_turns(tmp_path: Path) -> None:
    order: list[int] = []

    def work(ranks: Ranks) -> None:
        ranks.in_turn(lambda: order.append(ranks.rank))
        ranks.in_turn(lambda: (tmp_path / "none").stat() if ranks.rank == 1 else order.append(ranks.rank))

    found = together(3, work)
    assert order == [0, 1, 2, 0] and isinstance(found[1], OSError)
    assert str(found[0]) == str(found[2]) == "Rank 1 stopped; its message says why."


def test_one_rank_that_fails_stops_all(tmp_path: Path) -> None:
    def work(ranks: Ranks) -> None:
        ranks.agree(DaariError("mine") if ranks.rank == 1 else None)

    assert [str(error) for error in together(3, work)] == [
        "Rank 1 stopped; its message says why.",
        "mine",
        "Rank 1 stopped; its message says why.",
    ]
