"""One run a folder: a lock that ends with its process, however that ends, and names it to others."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.regular import FILE, read_text, what_is

BUSY = "The workdir {folder} is being filled by {who}. Wait until it ends, or name another --workdir."
MAX_HOLDER = 64 << 10  # bytes; what a holder writes about itself is far shorter
# file systems without locks: the run goes on without one
_NO_LOCKS = {errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS, errno.EINVAL}
_HELD = {errno.EWOULDBLOCK, errno.EACCES}


class Lock:
    """A lock file that this process holds until :meth:`release` or its end, by SIGKILL too.

    Args:
        path: the lock file; its folder must exist.
        run: a name of the run. Processes of one run may hold the lock together: the first one lets them by
            :meth:`share`, then each takes it under the same name.
        busy: the message where another run holds it, with ``{folder}`` and ``{who}``.

    Raises:
        DaariError: another run holds it, and the message names its process; or it is no regular file.
    """

    def __init__(self, path: Path, run: str, busy: str = BUSY) -> None:
        self._path, self._busy = path, busy
        self.joined = False
        """Whether another process of this run had it already."""
        while True:
            if (found := what_is(path)) not in (None, FILE) or os.path.islink(path):
                raise DaariError(f"The lock {path} is {found}: remove it, or name another folder.")
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW, 0o644)
            try:
                self._take(run)
                if _is(path, self._file):
                    break  # else its last holder has removed it meanwhile: the lock is on a file that is gone
            except BaseException:
                os.close(self._file)
                raise
            os.close(self._file)
        if not self.joined:
            self._write(run)

    def _take(self, run: str) -> None:
        found = _read(self._path)
        self.joined = found.get("run") == run
        try:
            fcntl.flock(self._file, (fcntl.LOCK_SH if self.joined else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return
            if error.errno not in _HELD:
                raise
            raise DaariError(self._busy.format(folder=self._path.parent, who=_who(found))) from None

    def _write(self, run: str) -> None:
        holder = {
            "run": run,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": time.strftime("%Y-%m-%d %H:%M:%S"),
            "command": " ".join([os.path.basename(sys.argv[0]), *sys.argv[1:]])[:200],
        }
        with suppress(OSError):  # on a full disk the lock holds without a name
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, json.dumps(holder).encode(), 0)

    def share(self) -> None:
        """Let further processes of this run take it too."""
        with suppress(OSError):
            fcntl.flock(self._file, fcntl.LOCK_SH)

    def release(self) -> None:
        """Give it back; the first of a run's processes removes the file."""
        if not self.joined:
            self._path.unlink(missing_ok=True)
        os.close(self._file)


def holder(path: Path) -> str | None:
    """Who holds a lock alone, in words; None where nobody does. The lock is left as it is."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:  # there is none; of another kind of file, whoever takes the lock tells
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return _who(_read(path)) if error.errno in _HELD else None
    finally:
        os.close(file)
    return None


def _who(found: dict[str, Any]) -> str:
    """What a holder wrote about itself, in words."""
    if not found:
        return "another process"
    return f"process {found.get('pid')} on {found.get('host')}, since {found.get('since')} ({found.get('command')})"


def _is(path: Path, file: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(file))
    except FileNotFoundError:
        return False


def _read(path: Path) -> dict[str, Any]:
    """What the holder wrote about itself; empty where that cannot be read."""
    try:
        found = json.loads(read_text(path, "lock", limit=MAX_HOLDER))
    except (DaariError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
