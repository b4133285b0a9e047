"""What is no regular file and no folder, made in a test's own folder."""

from __future__ import annotations

import os
import socket
from pathlib import Path

KINDS = (
    "a pipe",
    "a socket",
    "a link to a pipe",
    "a link to a socket",
    "a link that leads nowhere",
    "a circle of links",
)


def make(kind: str, path: Path) -> Path:
    """Put one at ``path``; what a link leads to stands beside it."""
    beside = path.with_name(f"{path.name}.led-to")
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a socket":
        _bind(path)
    elif kind == "a circle of links":
        path.symlink_to(beside)
        beside.symlink_to(path)
    else:
        if "nowhere" not in kind:
            make(kind.removeprefix("a link to "), beside)
        path.symlink_to(beside)
    return path


def seen(path: Path) -> list[tuple[str, int, int]]:
    """What lies in the folder of ``path``, by name, kind and inode: equal where nothing was made, lost or replaced."""
    return sorted(
        (found.name, found.stat(follow_symlinks=False).st_mode, found.inode()) for found in os.scandir(path.parent)
    )


def _bind(path: Path) -> None:
    before = os.getcwd()
    os.chdir(path.parent)  # a socket's address holds no long path
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(before)
