"""A conversation in a file: rows that ``compile --data`` reads, one an answer; the last row is all of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from daari_mlx.chat.conversation import Conversation, Message
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.learning import check_nobody_learns
from daari_mlx.ground.regular import FILE, FOLDER, read_text, what_is

FORCE = "--force"


def write_rows(path: Path, rows: list[dict[str, list[Message]]], force: bool) -> None:
    """Write rows to a new file.

    Args:
        force: replace a file that is there.

    Raises:
        DaariError: something is there, or is being learnt there, or it cannot be written.
    """
    from daari_mlx.ground.files import whole

    if (found := what_is(path)) == FOLDER:
        raise DaariError(f"{path} is a folder: give the name of a file in it.")
    if found not in (None, FILE):
        raise DaariError(f"{path} is {found}: choose another name.")
    if found is not None and not force:
        raise DaariError(f"{path} is there already: choose another name, or replace it with /save {path} {FORCE}")
    check_nobody_learns(path, "/save")
    if not path.parent.is_dir():
        raise DaariError(f"There is no folder {path.parent} for {path.name}: make it, or give another place.")
    try:
        with whole(path) as beside:
            beside.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows), encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise DaariError(f"Cannot write {path}: {getattr(error, 'strerror', None) or error}.") from error


def read_conversation(path: Path) -> Conversation:
    """The conversation of a file's last row.

    Raises:
        DaariError: there is no file, or its last row is no conversation of texts, user and assistant in turn.
    """
    rows = read_text(path, "conversation").splitlines()
    try:
        messages: Any = json.loads(rows[-1])["messages"]
        system = [m["content"] for m in messages[:1] if m["role"] == "system"]
        turns = [{"role": m["role"], "content": m["content"]} for m in messages[len(system) :]]
    except (ValueError, RecursionError, IndexError, KeyError, TypeError) as error:
        raise DaariError(f"The last line of {path} is no chat: give a file that /save wrote.") from error
    in_turn = [turn["role"] for turn in turns] == ["user", "assistant"] * (len(turns) // 2)
    if not turns or not in_turn or not all(isinstance(text, str) for text in [*system, *(t["content"] for t in turns)]):
        raise DaariError(
            f"The last line of {path} is no chat of texts, user and assistant in turn: give a file that /save wrote."
        )
    return Conversation(system[0] if system else None, turns)
