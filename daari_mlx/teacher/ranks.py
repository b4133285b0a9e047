"""Several processes on one extraction, over MLX's own ``mx.distributed``; alone, a process never touches it.

Who does what is decided from the files that are there, so ranks may share a folder or have one each, and a resumed run
may have another number of them.
"""

from __future__ import annotations

import hashlib
import os
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

import mlx.core as mx
import numpy as np

from daari_mlx.ground import blas
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.evaluated import evaluated
from daari_mlx.ground.files import whole
from daari_mlx.teacher.peers import Watched
from daari_mlx.teacher.watch import RESUME

CHUNK = 1 << 26  # bytes that go over the wire at once
_BACKENDS = ("[ring]", "[jaccl]", "[nccl]", "[mpi]")  # how MLX's words begin when a rank is gone
# what mlx.launch (ring, jaccl, nccl) and the usual MPIs set in the processes that they start
_LAUNCHED = ("MLX_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")


class Alone:
    """The only process: it does everything, and there is nobody to tell.

    To be entered by ``with``: leaving without an error says that this one's part is done, leaving with one that the
    others cannot go on.
    """

    rank, size = 0, 1
    lockstep = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        pass

    def mine(self, paths: list[Path]) -> list[int]:
        """The indices of those files that this process has to make."""
        return [k for k, path in enumerate(paths) if not path.exists()]

    def gather(self, paths: list[Path], *, everyone: bool = False) -> None:
        """Bring the files that other ranks made to rank 0, or to ``everyone``; folders that are shared have them."""

    def told(self, text: str) -> str:
        """What rank 0 says, on every rank."""
        return text

    def each(self, text: str) -> list[str]:
        """What each rank says, by rank, on every rank."""
        return [text]

    def agree(self, error: Exception | None = None) -> None:
        """Go on when all ranks come here without an error.

        Raises:
            DaariError: another rank has one; where it is this rank's own, that is raised.
        """
        if error is not None:
            raise error

    def in_turn(self, work: Callable[[], None]) -> None:
        """Do ``work`` on one rank after the other, for what would get in its own way where ranks share a folder.

        Raises:
            DaariError, OSError: of this rank's work; DaariError where another rank's failed.
        """
        work()

    def still_together(self) -> None:
        """Before something is written that the ranks made together: MLX may give anything where a rank is gone.

        Raises:
            DaariError: one is.
        """


class Ranks(Alone):
    """One of several processes that ``mlx.launch`` or ``mpirun`` started.

    Args:
        group: what ``mx.distributed.init()`` gives.
        watched: ends this process when another rank is gone.
        lockstep: the ranks hold one teacher together, so all run every forward, and rank 0's folder counts;
            else each does its share of the corpus.
    """

    def __init__(self, group: mx.distributed.Group, watched: Watched, *, lockstep: bool = False) -> None:
        self._group = group
        self.rank, self.size = group.rank(), group.size()
        self.lockstep = lockstep
        self._watched = watched
        missing = watched.meet(self)
        if missing and self.rank == 0:
            print(
                f"Rank 0 cannot be reached on a port beside MLX's from rank {', '.join(map(str, missing))}: when a "
                "rank is gone, these may wait until you end them.",
                file=sys.stderr,
            )

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._watched.end("done" if error is None else "stopped")
        if isinstance(error, RuntimeError) and str(error).startswith(_BACKENDS):
            raise _in_words(error) from error

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
            if everyone:
                self.in_turn(partial(_write, paths[k], content))
            elif self.rank == 0:
                _write(paths[k], content)

    def told(self, text: str) -> str:
        """What rank 0 says, on every rank."""
        return self._spread(text.encode() if self.rank == 0 else b"").decode()

    def each(self, text: str) -> list[str]:
        """What each rank says, on every rank."""
        return [self._spread(text.encode() if rank == self.rank else b"").decode() for rank in range(self.size)]

    def agree(self, error: Exception | None = None) -> None:
        """Go on when all ranks come here without an error."""
        failed = self.flags(error is not None)
        if error is not None:
            raise error
        if any(failed):
            raise DaariError(f"Rank {failed.index(True)} stopped; its message says why.")

    def in_turn(self, work: Callable[[], None]) -> None:
        """Do ``work`` on rank 0, then on rank 1, and so on."""
        for rank in range(self.size):
            error: Exception | None = None
            if rank == self.rank:
                try:
                    work()
                except (DaariError, OSError) as found:
                    error = found
            self.agree(error)

    def still_together(self) -> None:
        """In lockstep: all ranks are there."""
        if self.lockstep:
            self.agree()

    def flags(self, mine: bool) -> list[bool]:
        """What each rank says."""
        return [bool(flag) for flag in self._all(np.array([mine], np.uint8))[:, 0]]

    def on_this_machine(self) -> int:
        """How many of the ranks run on the machine that this one runs on."""
        name = np.frombuffer(hashlib.sha256(socket.gethostname().encode()).digest(), np.uint8)
        return int((self._all(name) == name).all(axis=1).sum())

    def _presence(self, paths: list[Path]) -> Any:
        """``(size, len(paths))`` bool: which rank sees which file, when all have made what they make."""
        if not paths:
            return np.zeros((self.size, 0), bool)
        self.agree()
        return self._all(np.array([path.exists() for path in paths], np.uint8)).astype(bool)

    def _all(self, row: Any) -> Any:
        """Every rank's ``(n,)`` array: ``(size, n)``."""
        return self._evaluated(mx.distributed.all_gather, row).reshape(self.size, -1)

    def _spread(self, content: bytes) -> bytes:
        """The one rank's bytes that are not empty, on every rank."""
        size = int(self._all(np.array([len(content)], np.int64)).max())
        parts = []
        for start in range(0, size, CHUNK):
            sent = np.zeros(min(CHUNK, size - start), np.uint8)
            if content:
                sent[:] = np.frombuffer(content, np.uint8, len(sent), start)
            parts.append(self._evaluated(mx.distributed.all_sum, sent).tobytes())
        return b"".join(parts)

    def _evaluated(self, collective: Any, given: Any) -> Any:
        """What a collective call of MLX gives, as a NumPy array."""
        with _peers(self._watched):
            return evaluated(collective(mx.array(given), group=self._group))


def launched() -> bool:
    """Whether this process was started as one of several, by the environment that launchers set."""
    return any(name in os.environ for name in _LAUNCHED)


def crew(*, lockstep: bool = False) -> Alone:
    """This process's place, to be entered by ``with``: one of several ranks where it was launched so, else alone.

    Ranks of one machine share its cores between them. When another rank is gone, this process is ended within seconds,
    whatever it waits for.

    Raises:
        DaariError: the other ranks cannot be reached.
    """
    if not launched():
        return Alone()
    watched = Watched()
    try:
        with _peers(watched):
            group = mx.distributed.init()
    except BaseException:
        watched.end("stopped")
        raise
    if group.size() == 1:
        watched.end("done")
        return Alone()
    ranks = Ranks(group, watched, lockstep=lockstep)
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


def _write(path: Path, content: bytes) -> None:
    """Write a file where there is none: where ranks share a folder, another may have written it meanwhile."""
    if not path.exists():
        with whole(path, needed=len(content)) as beside:
            beside.write_bytes(content)


@contextmanager
def _peers(watched: Watched) -> Iterator[None]:
    """What MLX raises when a rank is gone, in words; signals are heard by the watch."""
    try:
        with watched.hears_signals():
            yield
    except RuntimeError as error:
        raise _in_words(error) from error


def _in_words(error: RuntimeError) -> DaariError:
    return DaariError(f"Another rank of this launch is gone or cannot be reached ({error}). {RESUME}")
