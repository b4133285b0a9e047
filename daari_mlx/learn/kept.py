"""What is learnt at a path, seen from outside: how many answers its log holds, and which of them its graph lacks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from daari_mlx.compile.joined import settings_of
from daari_mlx.graph.artifact import STATS, read_stats
from daari_mlx.ground.counted import counted
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.learning import FEWEST, LOG, learnt_folder
from daari_mlx.ground.regular import FILE, what_is
from daari_mlx.learn.log import times

CORPUS = "learnt"  # in the settings of a graph: it was made of a log


class Kept(NamedTuple):
    """How many answers a log holds, and how many of them the graph at its path was not counted of."""

    answers: int
    newer: int


def kept_at(path: str | Path) -> Kept | None:
    """What is kept of learning at a path; None where no log can be read. Nothing is changed, and no lock is needed.

    Raises:
        DaariError: what stands there is no log.
    """
    log = learnt_folder(path) / LOG
    if what_is(log) != FILE or not os.access(log, os.R_OK):
        return None
    found = times(log)
    stats = read_stats(path) if what_is(Path(path) / STATS) == FILE else {}
    until = until_in(stats) if is_of_a_log(stats) else 0.0
    return Kept(len(found), sum(at > until for at in found))


def is_of_a_log(stats: dict[str, Any]) -> bool:
    """Whether a graph was made of a log, and of nothing that no log holds but its base."""
    return settings_of(stats).get("corpus") == CORPUS


def until_in(stats: dict[str, Any]) -> float:
    """When the newest answer was said that a graph was counted of; 0 where that is not known."""
    learnt = stats.get("learnt")
    until = learnt.get("until") if isinstance(learnt, dict) else None
    return float(until) if isinstance(until, (int, float)) else 0.0


def answers_are(count: int) -> str:
    """So many answers, as a sentence about them begins."""
    return f"{counted(count, 'answer')} {'is' if count == 1 else 'are'}"


def check_is_made(path: str | Path) -> None:
    """See that where answers are learnt there is a graph of them too.

    Raises:
        DaariError: there is none yet; how many answers there are, and what makes one.
    """
    kept = None if what_is(path) is not None else kept_at(path)
    if kept is None:
        return
    are = answers_are(kept.answers)
    how = f"daari-mlx learn {path} makes a graph of them." if kept.answers >= FEWEST else f"{FEWEST} make a graph."
    raise DaariError(f"There is no graph at {path} yet: {are} learnt there; {how}")


def check_counts_once(path: str | Path, *sources: dict[str, Any]) -> None:
    """See that a graph made of others is not written where a log holds answers that these may know.

    Args:
        path: where it is to be written.
        sources: the ``compile_stats.json`` of the others.

    Raises:
        DaariError: the log's answers would count twice, and what is new would be gone when it is counted next.
    """
    kept = kept_at(path)
    if kept is None or not kept.answers or not any("learnt" in stats for stats in sources):
        return
    raise DaariError(
        f"The graph at {path} is counted of the answers in {learnt_folder(path)}, and a new one there would know them "
        f"twice. To add to what was learnt: daari-mlx learn {path} counts all of it; then give another --graph-path, "
        "and learn there from then on."
    )
