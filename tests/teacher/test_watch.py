"""A rank that is gone, however it went, ends the others within seconds, whatever they wait for."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from bench_ranks_killed import free_ports, trials

from daari_mlx.teacher import peers, watch

ENDS = 60.0  # seconds: far more than it takes, far less than for ever
RANK = """
import ctypes, os, signal, sys, time
import daari_mlx
from daari_mlx.ground.errors import DaariError
from daari_mlx.teacher import ranks

def wait():  # in native code, which keeps Python's lock and is not woken by signals, as the worst of MLX might
    print("waits", flush=True)
    c, lock = ctypes.PyDLL(None), ctypes.create_string_buffer(128)
    c.pthread_mutex_lock(lock)
    c.pthread_mutex_lock(lock)

{before}
with ranks.crew() as crew:
    {work}
print("out", flush=True)
{after}
"""
Run = Callable[..., list[subprocess.Popen[str]]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Start ranks without a launcher, so that nobody ends them."""

    def start(work: str, ranks: int, *, before: str = "", after: str = "") -> list[subprocess.Popen[str]]:
        first = free_ports(ranks)
        hosts = tmp_path / "hosts.json"
        hosts.write_text(json.dumps([[f"127.0.0.1:{first + rank}"] for rank in range(ranks)]))
        code = RANK.format(work=work, before=before, after=after)
        return [
            subprocess.Popen(
                [sys.executable, "-c", code],
                env=os.environ | {"MLX_RANK": f"{rank}", "MLX_HOSTFILE": str(hosts)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(ranks)
        ]

    return start


GONE, STOPPED = "Rank {} of this launch is gone.", "Rank {} stopped; its message says why."


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "victim", "told"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", 0, GONE),
        ("os.kill(os.getpid(), signal.SIGKILL)", 2, GONE),
        ("os.abort()", 1, GONE),
        ("raise ValueError", 1, STOPPED),
        ("sys.exit(3)", 0, STOPPED),
    ],
)
def test_a_rank_that_goes_ends_the_others_in_their_waits(way: str, victim: int, told: str, run: Run) -> None:
    processes = run(f"crew.agree(); time.sleep(0.3) if crew.rank == {victim} else wait(); {way}", 3)
    for rank, process in enumerate(processes):
        _, errors = process.communicate(timeout=ENDS)
        assert process.returncode != 0
        if rank != victim:
            assert f"error: {told.format(victim)} {watch.RESUME}" in errors


@pytest.mark.slow
def test_a_rank_that_is_done_ends_nobody(run: Run) -> None:
    processes = run("crew.agree()", 3, after=f"time.sleep({watch.GRACE} * 2 * (crew.rank == 0))")
    assert [process.communicate(timeout=ENDS)[0].strip() for process in processes] == ["out"] * 3
    assert [process.returncode for process in processes] == [0, 0, 0]


@pytest.mark.slow
def test_what_mlx_gives_when_a_rank_is_gone_is_not_taken_for_an_answer(run: Run) -> None:
    """np.array of such an array gives what happens to be in memory, without an error."""
    work = """
    crew.agree()
    if crew.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    for call in (lambda: crew.agree(), lambda: crew.told("text")):
        try:
            call()
            print("answered", flush=True)
        except DaariError as error:
            print("refused", flush=True)
"""
    first, _ = run(work, 2)
    said = first.communicate(timeout=ENDS)[0].split()
    assert "answered" not in said and "refused" in said


@pytest.mark.slow
@pytest.mark.parametrize("handler", ["default_int_handler", "SIG_DFL"])
def test_a_signal_is_heard_in_a_collective(handler: str, run: Run) -> None:
    """As mlx.launch sends it, whether or not the command has a handler of its own for it."""
    work = f"""
    signal.signal(signal.SIGTERM, signal.{handler})
    crew.agree()
    if crew.rank == 1:
        wait()
    print("waits", flush=True)
    crew.agree()
"""
    first, second = run(work, 2)
    for process in (first, second):
        assert process.stdout is not None and process.stdout.readline() == "waits\n"
    time.sleep(0.5)
    first.send_signal(signal.SIGTERM)
    told = [process.communicate(timeout=ENDS)[1] for process in (first, second)]
    assert (first.returncode, second.returncode) == (-signal.SIGKILL, -signal.SIGKILL)
    assert f"error: This rank was told to stop while it waited for the others. {watch.RESUME}" in told[0]
    assert f"error: {GONE.format(0)} {watch.RESUME}" in told[1]


@pytest.mark.slow
def test_ranks_that_cannot_reach_rank_0_are_told_and_work_all_the_same(run: Run) -> None:
    before = "from daari_mlx.teacher import peers; peers._reach = lambda offer, rank: None"
    outcomes = [process.communicate(timeout=ENDS) for process in run("crew.agree()", 2, before=before)]
    assert [out.strip() for out, _ in outcomes] == ["out", "out"]
    assert "Rank 0 cannot be reached on a port beside MLX's from rank 1" in outcomes[0][1]


def test_strangers_are_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "PATIENCE", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        offer = {"host": "elsewhere", "addresses": ["127.0.0.1"], "port": server.getsockname()[1], "secret": "ab" * 16}
        strangers = [socket.create_connection(server.getsockname()) for _ in range(3)]
        strangers[0].sendall(b"GET / HTTP/1.1\r\n\r\n")
        strangers[1].sendall(bytes(peers.SECRET + 4))
        reached = peers._reach(offer, 7)
        assert reached is not None
        found = peers._answer(server, 2, offer["secret"])  # as if one more had said that it reached us
        assert list(found) == [7]
        found[7].sendall(b"x")
        assert reached.recv(1) == b"x"
        assert all(stranger.recv(1) == b"" for stranger in strangers)
        for connection in (*strangers, reached, found[7]):
            connection.close()
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert peers._reach({**offer, "port": port}, 7) is None


def test_ranks_that_never_find_each_other_are_ended(tmp_path: Path) -> None:
    hasty = tmp_path / "watch.py"
    hasty.write_text(Path(watch.__file__).read_text().replace(f"START = {watch.START}", "START = 0.5"))
    code = f"""
import time
from daari_mlx.teacher import peers, watch
watch.__file__ = {str(hasty)!r}
watched = peers.Watched()
time.sleep(300)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=ENDS)
    assert done.returncode == -signal.SIGKILL and "did not find each other in time" in done.stderr


@pytest.mark.slow
def test_killed_at_random_moments_no_rank_hangs() -> None:
    found = trials(3, 2, rows=24, seed=1)
    assert found["sound"] == found["tried"], found["failures"]
