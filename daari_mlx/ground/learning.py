"""What lies beside the graph of a path that is learnt in, and whether a process learns there now."""

from __future__ import annotations

from pathlib import Path

from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.lock import holder

LOG, BASE, LOCK = "answers.log", "base", "lock"
FEWEST = 4  # answers that a graph is made of


def busy(option: str) -> str:
    """What to say where another process learns, of a path that an option names; with ``{folder}`` and ``{who}``."""
    return f"Another process learns in {{folder}}: {{who}}. Wait until it ends, or give another path to {option}."


def learnt_folder(path: str | Path) -> Path:
    """What stands beside the graph at a path once something was learnt there."""
    path = Path(path)
    return path.with_name(path.name + ".learnt")


def check_nobody_learns(path: str | Path, option: str) -> None:
    """See that no process learns at a path, whose graph would take the place of what is written there.

    Args:
        option: that names the path, for the message.

    Raises:
        DaariError: one does.
    """
    folder = learnt_folder(path)
    if (who := holder(folder / LOCK)) is not None:
        raise DaariError(busy(option).format(folder=folder, who=who))
