"""A process beside each rank that ends it when another rank is gone, whatever the rank waits for.

A rank that waits for another one waits inside MLX, where Python is not heard and nothing gives up: so its end comes
from outside. Each rank's watch hears from the rank itself and, over TCP, from rank 0's watch; rank 0's hears from all
and passes on what it hears. A rank that ends without a word, however it does, closes its connection. Signals that a
rank gets while it waits in MLX come to its watch too, which gives the reason before it ends the rank. This file is run
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
from math import inf

START = 300.0  # seconds until all ranks are started and MLX has connected them
MEET = 60.0  # seconds from then until they have found each other beside MLX
MOST = 253  # connections that one message can carry
GRACE = 2.0  # seconds in which a rank whose peer is gone may end by itself, with a message of its own
NOTICE = 0.5  # the same of a rank that was told to stop
RESUME = "What was written is whole: start the same launch again, it goes on from there."
WORDS = {
    "gone": "Rank {rank} of this launch is gone.",
    "stopped": "Rank {rank} stopped; its message says why.",
    "signal": "This rank was told to stop while it waited for the others.",
    "late": "The ranks of this launch did not find each other in time: one is gone, or was not started.",
}


class Watch:
    """The watch of one rank.

    Args:
        process: its process id.
        control: what it says comes here in lines: ``rank RANK`` for its number when MLX has connected it, ``watch
            RANK ...`` with the connections to those ranks, then ``done`` or ``stopped``.
        signals: the numbers of the signals that it gets while Python does not run come here, a byte each.
    """

    def __init__(self, process: int, control: socket.socket, signals: socket.socket) -> None:
        self.rank, self.process = -1, process
        self._control, self._signals = control, signals
        self._peers: dict[int, socket.socket] = {}
        self._heard: dict[int, bytes] = {}  # a line that has not come whole
        self._selector = selectors.DefaultSelector()
        for own in (control, signals):
            self._selector.register(own, selectors.EVENT_READ)
        self._word = ""  # the last one of the rank: done, stopped
        self._running = True  # the rank
        self._deadline: float | None = time.monotonic() + START
        self._why = ""

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
                elif key.fileobj is self._signals:
                    self._hear_signal()
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
                self._word, self._deadline = word, None
                self._tell_all(f"{word} {self.rank}")
        if not said:
            self._rank_ended()

    def _hear_signal(self) -> None:
        said = self._signals.recv(1 << 8)
        if not said:
            self._selector.unregister(self._signals)
        elif {signal.SIGINT, signal.SIGTERM} & set(said):
            self._end_within(NOTICE, WORDS["signal"])

    def _rank_ended(self) -> None:
        self._selector.unregister(self._control)
        self._running = False
        if not self._word and self.rank >= 0:
            self._say(WORDS["gone"].format(rank=self.rank))
        if not (self._word == "done" and self.rank == 0):  # rank 0's watch serves the others until they are done
            for rank in list(self._peers):
                self._drop(rank)

    def _say(self, why: str) -> None:
        with suppress(OSError):
            os.write(2, f"error: {self._why or why} {RESUME}\n".encode())

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
        self._end_within(GRACE, WORDS[how].format(rank=rank))

    def _end_within(self, seconds: float, why: str) -> None:
        """The rank ends in so many seconds at the latest, unless its part is done; the first reason is told."""
        if self._running and self._word != "done":
            self._deadline = min(self._deadline or inf, time.monotonic() + seconds)
            self._why = self._why or why

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
            self._say(WORDS["late"])
            os.kill(self.process, signal.SIGKILL)


def main() -> None:
    """``watch.py PROCESS CONTROL SIGNALS``: a process id and two descriptors."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # they are meant for the rank
        signal.signal(number, signal.SIG_IGN)
    process, *descriptors = map(int, sys.argv[1:])
    Watch(process, *(socket.socket(fileno=descriptor) for descriptor in descriptors)).run()


if __name__ == "__main__":
    main()
