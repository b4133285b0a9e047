"""Several processes on one extraction, over MLX's own ``mx.distributed``; alone, a process never touches it.

Who does what is decided from the files that are there, so ranks may share a folder or have one each, and a resumed run
may have another number of them.
"""

from __future__ import annotations

import hashlib
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from daari_mlx.ground import blas
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.files import whole

CHUNK = 1 << 26  # bytes that go over the wire at once
# what mlx.launch (ring, jaccl, nccl) and the usual MPIs set in the processes that they start
_LAUNCHED = ("MLX_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")


class Alone:
    """The only process: it does everything, and there is nobody to tell."""

    rank, size = 0, 1
    lockstep = False

    def mine(self, paths: list[Path]) -> list[int]:
        """The indices of those files that this process has to make."""
        return [k for k, path in enumerate(paths) if not path.exists()]

    def gather(self, paths: list[Path], *, everyone: bool = False) -> None:
        """Bring the files that other ranks made to rank 0, or to ``everyone``; folders that are shared have them."""

    def told(self, text: str) -> str:
        """What rank 0 says, on every rank."""
        return text

    def agree(self, error: Exception | None = None) -> None:
        """Go on when all ranks come here without an error.

        Raises:
            DaariError: another rank has one; where it is this rank's own, that is raised.
        """
        if error is not None:
            raise error


class Ranks(Alone):
    """One of several processes that ``mlx.launch`` or ``mpirun`` started.

    Args:
        group: what ``mx.distributed.init()`` gives.
        lockstep: the ranks hold one teacher together, so all run every forward, and rank 0's folder counts;
            else each does its share of the corpus.
    """

    def __init__(self, group: mx.distributed.Group, *, lockstep: bool = False) -> None:
        self._group = group
        self.rank, self.size = group.rank(), group.size()
        self.lockstep = lockstep

    def mine(self, paths: list[Path]) -> list[int]:
        """Split: every ``size``-th of the files that no rank has; in lockstep: all that rank 0 has not."""
        there = self._presence(paths)
        if self.lockstep:
            return [int(k) for k in np.flatnonzero(~there[0])]
        return [int(k) for k in np.flatnonzero(~there.any(axis=0))[self.rank :: self.size]]

    def gather(self, paths: list[Path], *, everyone: bool = False) -> None:
        """Send each file that rank 0 (or anybody, for ``everyone``) lacks from the lowest rank that has it."""
        there = self._presence(paths)
        served = there.all(axis=0) if everyone else there[0]
        for k in np.flatnonzero(there.any(axis=0) & ~served):
            owner = int(np.argmax(there[:, k]))
            content = self._spread(paths[k].read_bytes() if self.rank == owner else b"")
            if not there[self.rank, k] and (everyone or self.rank == 0):
                with whole(paths[k], needed=len(content)) as beside:
                    beside.write_bytes(content)

    def told(self, text: str) -> str:
        """What rank 0 says, on every rank."""
        return self._spread(text.encode() if self.rank == 0 else b"").decode()

    def agree(self, error: Exception | None = None) -> None:
        """Go on when all ranks come here without an error."""
        failed = self._all(np.array([error is not None], np.uint8))[:, 0]
        if error is not None:
            raise error
        if failed.any():
            raise DaariError(f"Rank {int(np.argmax(failed))} stopped; its message says why.")

    def on_this_machine(self) -> int:
        """How many of the ranks run on the machine that this one runs on."""
        name = np.frombuffer(hashlib.sha256(socket.gethostname().encode()).digest(), np.uint8)
        return int((self._all(name) == name).all(axis=1).sum())

    def _presence(self, paths: list[Path]) -> Any:
        """``(size, len(paths))`` bool: which rank sees which file."""
        if not paths:
            return np.zeros((self.size, 0), bool)
        return self._all(np.array([path.exists() for path in paths], np.uint8)).astype(bool)

    def _all(self, row: Any) -> Any:
        """Every rank's ``(n,)`` array: ``(size, n)``."""
        with _peers():
            return np.array(mx.distributed.all_gather(mx.array(row), group=self._group)).reshape(self.size, -1)

    def _spread(self, content: bytes) -> bytes:
        """The one rank's bytes that are not empty, on every rank."""
        size = int(self._all(np.array([len(content)], np.int64)).max())
        parts = []
        for start in range(0, size, CHUNK):
            sent = np.zeros(min(CHUNK, size - start), np.uint8)
            if content:
                sent[:] = np.frombuffer(content, np.uint8, len(sent), start)
            with _peers():
                parts.append(np.array(mx.distributed.all_sum(mx.array(sent), group=self._group)).tobytes())
        return b"".join(parts)


def launched() -> bool:
    """Whether this process was started as one of several, by the environment that launchers set."""
    return any(name in os.environ for name in _LAUNCHED)


def crew(*, lockstep: bool = False) -> Alone:
    """This process's place: one of several ranks where it was launched so, else alone.

    Ranks of one machine share its cores between them.

    Raises:
        DaariError: the other ranks cannot be reached.
    """
    if not launched():
        return Alone()
    with _peers():
        group = mx.distributed.init()
    if group.size() == 1:
        return Alone()
    ranks = Ranks(group, lockstep=lockstep)
    if "MLX_RANK" in os.environ:
        calm_launcher()
    blas.share(ranks.on_this_machine())
    return ranks


def calm_launcher() -> None:
    """Fill this process's stdin where it is a pipe, so that mlx.launch waits instead of taking a core to itself.

    The launcher of MLX 0.32 asks in an endless loop whether a rank's stdin takes more, which an empty pipe always does.
    Ranks read nothing from it: mlx.launch never ends it. Only Linux lets the reading end be opened for writing; other
    systems go on as they were.
    """
    with suppress(OSError):
        if stat.S_ISFIFO(os.fstat(0).st_mode):
            pipe = os.open("/proc/self/fd/0", os.O_WRONLY | os.O_NONBLOCK)
            with suppress(BlockingIOError), os.fdopen(pipe, "wb", buffering=0) as end:
                while end.write(b"\n" * 4096):
                    pass


@contextmanager
def _peers() -> Iterator[None]:
    """What MLX raises when a rank is gone, in words."""
    try:
        yield
    except RuntimeError as error:
        raise DaariError(
            f"Another rank of this launch is gone or cannot be reached ({error}). What was written is whole: start "
            "the same launch again, it goes on from there."
        ) from error
