"""Ranks find each other beside MLX, so that each is ended when another is gone (see :mod:`daari_mlx.teacher.watch`).

All ranks connect to rank 0, whose address they learn from the launcher's environment and through MLX; a secret that
goes the same way shows that it is they.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daari_mlx.teacher import watch

if TYPE_CHECKING:
    from daari_mlx.teacher.ranks import Ranks

PATIENCE = 5.0  # seconds to wait for one connection
SECRET = 16  # bytes
# a machine that is lost closes no connection: after so many seconds of silence, and so often, it is asked
_ASK = {"TCP_KEEPIDLE": 3, "TCP_KEEPALIVE": 3, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 4}


class Watched:
    """This process, which is to become a rank, watched from outside from now on."""

    def __init__(self) -> None:
        self._control, control = socket.socketpair()
        self._signals, signals = socket.socketpair()
        self._signals.setblocking(False)  # the interpreter's signal handler must not wait
        with control, signals:
            theirs = [control.fileno(), signals.fileno()]
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", watch.__file__, *map(str, [os.getpid(), *theirs])],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=theirs,
                start_new_session=True,  # Ctrl-C is for the rank
            )

    def meet(self, ranks: Ranks) -> list[int]:
        """Connect with the other ranks, who do the same.

        Returns:
            Those that could not reach rank 0, so that their death shows only in MLX.
        """
        self._control.sendall(f"rank {ranks.rank}\n".encode())
        found = _connect(ranks)
        missing: list[int] = json.loads(ranks.told(json.dumps([k for k in range(1, ranks.size) if k not in found])))
        if ranks.rank in missing:
            found = {}
        line = f"watch {' '.join(map(str, found))}\n".encode()
        if found:
            socket.send_fds(self._control, [line], [c.fileno() for c in found.values()])
        else:
            self._control.sendall(line)
        for connection in found.values():  # the watch has its own handle on each
            connection.close()
        return missing

    @contextmanager
    def hears_signals(self) -> Iterator[None]:
        """Signals that should end this process do so from outside in here, where Python may not run to hear them."""
        if threading.current_thread() is not threading.main_thread() or self._process.poll() is not None:
            yield
            return
        unheard = [s for s in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(s) is signal.SIG_DFL]
        for number in unheard:
            signal.signal(number, signal.default_int_handler)
        before = signal.set_wakeup_fd(self._signals.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            for number in unheard:
                signal.signal(number, signal.SIG_DFL)

    def end(self, word: str) -> None:
        """Nobody waits for this rank any more.

        Args:
            word: ``"done"``, or ``"stopped"`` where the others cannot go on without it.
        """
        with suppress(OSError), self._control:
            self._control.sendall(f"{word}\n".encode())


def _connect(ranks: Ranks) -> dict[int, socket.socket]:
    """Connections by rank: rank 0's to the others, theirs to rank 0 (or none)."""
    here = ranks.on_this_machine() == ranks.size
    server = None
    if ranks.rank == 0:
        server = socket.create_server(("127.0.0.1" if here else "", 0), backlog=ranks.size)
    offer: dict[str, Any] = {}
    if server is not None:
        port, secret = server.getsockname()[1], secrets.token_hex(SECRET)
        offer = {"host": socket.gethostname(), "addresses": _addresses(), "port": port, "secret": secret}
    offer = json.loads(ranks.told(json.dumps(offer)))
    reached = None if server is not None else _reach(offer, ranks.rank)
    calling = ranks.flags(server is None and reached is not None)
    if server is None:
        return {} if reached is None else {0: reached}
    with server:
        return _answer(server, sum(calling), offer["secret"])


def _reach(offer: dict[str, Any], rank: int) -> socket.socket | None:
    """A connection to rank 0, by the first of its addresses that answers."""
    near = ["127.0.0.1"] if offer["host"] == socket.gethostname() else []
    for address in near + offer["addresses"]:
        with suppress(OSError):
            connection = socket.create_connection((address, offer["port"]), timeout=PATIENCE)
            connection.sendall(bytes.fromhex(offer["secret"]) + rank.to_bytes(4, "big"))
            return _kept(connection)
    return None


def _answer(server: socket.socket, count: int, secret: str) -> dict[int, socket.socket]:
    """``count`` connections from ranks; callers without the secret are hung up on."""
    found: dict[int, socket.socket] = {}
    server.settimeout(PATIENCE)
    with suppress(TimeoutError):
        while len(found) < count:
            connection, _ = server.accept()
            said = _read(connection, SECRET + 4)
            if secrets.compare_digest(said[:SECRET].hex(), secret) and len(said) == SECRET + 4:
                found[int.from_bytes(said[SECRET:], "big")] = _kept(connection)
            else:
                connection.close()
    return found


def _read(connection: socket.socket, size: int) -> bytes:
    """So many bytes, or fewer where no more come."""
    connection.settimeout(PATIENCE)
    said = b""
    with suppress(OSError):
        while len(said) < size and (more := connection.recv(size - len(said))):
            said += more
    return said


def _kept(connection: socket.socket) -> socket.socket:
    """A connection that closes within seconds of the other machine's loss, too."""
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _ASK.items():
        if hasattr(socket, name):  # systems differ
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return connection


def _addresses() -> list[str]:
    """Where other machines may reach rank 0, which this is: what the launcher names, then what this machine knows."""
    named = [os.environ.get("NCCL_HOST_IP", ""), os.environ.get("MLX_JACCL_COORDINATOR", "").rpartition(":")[0]]
    with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):  # of no use to MLX either
        named += [a.rpartition(":")[0] for a in json.loads(Path(os.environ["MLX_HOSTFILE"]).read_text())[0]]
    with suppress(OSError):
        named += [str(known[4][0]) for known in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)]
    return [address for address in dict.fromkeys(named) if address]
