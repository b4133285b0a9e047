"""A process beside each rank that ends it when another rank is gone, whatever the rank waits for.

A rank that waits for another one waits inside MLX, where Python is not heard and nothing gives up: so its end comes
from outside. Each rank's watch hears from the rank itself and, over TCP, from rank 0's watch; rank 0's hears from all
and passes on what it hears. A rank that ends without a word, however it does, closes its connection. This file is run
as a script of its own and imports the standard library only.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
import time
from contextlib import suppress

START = 300.0  # seconds until all ranks are started and MLX has connected them
MEET = 60.0  # seconds from then until they have found each other beside MLX
MOST = 253  # connections that one message can carry
GRACE = 2.0  # seconds in which a rank whose peer is gone may end by itself, with a message of its own
RESUME = "What was written is whole: start the same launch again, it goes on from there."
WORDS = {
    "gone": "Rank {rank} of this launch is gone.",
    "stopped": "Rank {rank} stopped; its message says why.",
    "late": "The ranks of this launch did not find each other in time: one is gone, or was not started.",
}


class Watch:
    """The watch of one rank.

    Args:
        process: its process id.
        control: what it says comes here in lines: ``rank RANK`` for its number when MLX has connected it, ``watch
            RANK ...`` with the connections to those ranks, then ``done`` or ``stopped``.
    """

    def __init__(self, process: int, control: socket.socket) -> None:
        self.rank, self.process = -1, process
        self._control = control
        self._peers: dict[int, socket.socket] = {}
        self._heard: dict[int, bytes] = {}  # a line that has not come whole
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ)
        self._done = False
        self._running = True  # the rank
        self._deadline: float | None = time.monotonic() + START
        self._why = WORDS["late"]

    def run(self) -> None:
        """Until the rank has ended; rank 0's until all have."""
        while self._running or self._peers:
            left = None if self._deadline is None else self._deadline - time.monotonic()
            if left is not None and left <= 0:
                self._end_rank()
                return
            for key, _ in self._selector.select(left):
                if key.fileobj is self._control:
                    self._hear_rank()
                elif key.data in self._peers:
                    self._hear_peer(key.data)

    def _hear_rank(self) -> None:
        try:
            said, connections, _, _ = socket.recv_fds(self._control, 1 << 16, MOST)
        except OSError:
            said, connections = b"", []
        for word, *ranks in (line.split() for line in said.decode().splitlines()):
            if word == "rank":
                self.rank, self._deadline = int(ranks[0]), time.monotonic() + MEET
            elif word == "watch":
                self._deadline = None
                for rank, connection in zip(map(int, ranks), connections, strict=True):
                    self._peers[rank] = socket.socket(fileno=connection)
                    self._heard[rank] = b""
                    self._selector.register(self._peers[rank], selectors.EVENT_READ, rank)
            else:  # done or stopped
                self._done, self._deadline = word == "done", None
                self._tell_all(f"{word} {self.rank}")
        if not said:
            self._selector.unregister(self._control)
            self._running = False
            if not (self._done and self.rank == 0):  # rank 0's watch serves the others until they are done
                for rank in list(self._peers):
                    self._drop(rank)

    def _say(self) -> None:
        with suppress(OSError):
            os.write(2, f"error: {self._why} {RESUME}\n".encode())

    def _hear_peer(self, peer: int) -> None:
        try:
            said = self._peers[peer].recv(1 << 12)
        except OSError:
            said = b""
        if not said:
            self._lost(peer, "gone", peer)
            return
        *lines, self._heard[peer] = (self._heard[peer] + said).split(b"\n")
        for line in lines:
            word, number = line.decode().split()
            if word == "done":
                self._drop(peer)
            else:
                self._lost(int(number), word, peer)

    def _lost(self, rank: int, how: str, teller: int) -> None:
        """``rank`` is gone, as the connection to ``teller`` shows."""
        self._drop(teller)
        self._tell_all(f"{how} {rank}")
        if self._running and not self._done and self._deadline is None:
            self._why = WORDS[how].format(rank=rank)
            self._deadline = time.monotonic() + GRACE

    def _tell_all(self, line: str) -> None:
        for connection in self._peers.values():
            with suppress(OSError):  # that it is closed is read next
                connection.sendall(line.encode() + b"\n")

    def _drop(self, peer: int) -> None:
        connection = self._peers.pop(peer, None)
        if connection is not None:
            self._selector.unregister(connection)
            connection.close()

    def _end_rank(self) -> None:
        if os.getppid() == self.process:  # else it has ended, and the number may be another's
            self._say()
            os.kill(self.process, signal.SIGKILL)


def main() -> None:
    """``watch.py PROCESS DESCRIPTOR``."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # they are meant for the rank
        signal.signal(number, signal.SIG_IGN)
    process, descriptor = map(int, sys.argv[1:])
    Watch(process, socket.socket(fileno=descriptor)).run()


if __name__ == "__main__":
    main()
