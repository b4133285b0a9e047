"""What was typed in earlier chats: one file, for its owner's eyes only."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from prompt_toolkit import history

from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.regular import check_new_file, read_bytes

KEPT = 1000  # of the newest entries
MAX_BYTES = 256 << 20  # of a file that is read; it is cut long before, unless it is no history
NAME = "chat_history.jsonl"


class History(history.History):
    """The lines of a history file: a JSON text each, so that an entry of several lines stays one.

    Several chats may run at once: each appends its own. A folder that cannot be written, or a damaged file, costs the
    history and nothing else.

    Args:
        path: the file; made with mode 0600, its folder with 0700, where they are not there yet.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.kept = True  # False once it could not be written

    def append_string(self, string: str) -> None:
        """Nothing: what an editor held is not yet a message; :meth:`remember` takes that."""

    def remember(self, entry: str) -> None:
        """Keep a message, for this chat and the next ones, unless it says the last one again."""
        if self.get_strings()[-1:] != [entry]:
            super().append_string(entry)

    def load_history_strings(self) -> Iterator[str]:
        """The entries of earlier chats, newest first."""
        return reversed(self.earlier())

    def store_string(self, string: str) -> None:
        """Keep one more in the file."""
        self._write([string], os.O_APPEND)

    def earlier(self) -> list[str]:
        """The entries in the file, oldest first; a file that has grown long is cut to its newest ones."""
        try:
            lines = read_bytes(self.path, "history", limit=MAX_BYTES).decode("utf-8", "replace").splitlines()
        except DaariError:
            return []
        entries = [entry for line in lines if (entry := _entry(line)) is not None]
        if len(entries) > 2 * KEPT:
            self._write(entries[-KEPT:], os.O_TRUNC)
        return entries[-KEPT:]

    def _write(self, entries: list[str], how: int) -> None:
        data = "".join(json.dumps(entry) + "\n" for entry in entries).encode()
        try:
            check_new_file(self.path, "the history")
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | how, 0o600)
            try:
                os.fchmod(file, 0o600)  # also where another umask or an older version made it
                os.write(file, data)
            finally:
                os.close(file)
        except (DaariError, OSError):
            self.kept = False


def _entry(line: str) -> str | None:
    try:
        entry = json.loads(line)
        if not isinstance(entry, str) or not entry or "\0" in entry:
            return None
        entry.encode()  # half a surrogate pair is no text
    except (ValueError, RecursionError):
        return None
    return entry
