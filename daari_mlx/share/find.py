"""From the name of a graph to the graph: a folder here, or a repository on the Hub, read once until it changes."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from daari_mlx.graph.artifact import ARRAYS, CONFIG, LIMITS, STATS, load_folder, read_stats
from daari_mlx.graph.graph import Graph
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.given import check_name
from daari_mlx.ground.learning import FEWEST, LOG, learnt_folder
from daari_mlx.ground.regular import read_bytes, what_is
from daari_mlx.share.hub import fetch
from daari_mlx.share.repo import Absent, Repo, parse_repo


def graph_folder(graph: str | Path, revision: str | None = None) -> Path:
    """Where a graph lies: a folder that exists, else the files of a Hub repository in the Hub's own cache.

    Args:
        graph: a folder, or ``user/name`` or ``user/name@revision`` on the Hub, which is asked once a process.
        revision: of a repository: a branch, tag or commit.

    Raises:
        DaariError: there is neither, or only answers to learn from; the Hub does not give it; a revision was given of a
            folder, or twice.
    """
    check_name(graph, "graph")
    if os.path.exists(graph):
        if revision is not None:
            raise DaariError(f"{graph} is a folder here and has no revision {revision!r}: leave it out.")
        return Path(graph)
    if what_is(learnt_folder(graph) / LOG) is not None:
        raise DaariError(
            f"There is no graph at {graph} yet, but answers are learnt there: daari-mlx learn {graph} makes one of "
            f"{FEWEST} or more."
        )
    repo = parse_repo(str(graph))
    if repo is None:
        raise DaariError(
            f"There is no graph at {graph}: give the folder that daari-mlx compile wrote, or a Hub repository as "
            "user/name."
        )
    if revision is not None and repo.revision is not None:
        raise DaariError(f"Two revisions were given, {repo.revision!r} and {revision!r}: give one.")
    try:
        return fetch(Repo(repo.name, revision or repo.revision), LIMITS, needed=(CONFIG, ARRAYS))
    except Absent as error:  # it may have been meant for a folder
        raise DaariError(f"There is no folder {str(graph)!r} here, so it was looked for on the Hub. {error}") from error


def load_graph(path: str | Path, *, revision: str | None = None) -> Graph:
    """Read a graph and check all of it.

    Args:
        path: its folder, or a Hub repository (see :func:`graph_folder`).
        revision: of a repository.

    Raises:
        DaariError: it is missing, of another format version, truncated, altered, or holds values out of range.
    """
    return load_folder(graph_folder(path, revision))


def graph_of(graph: Graph | str | Path) -> Graph:
    """A graph that may be given by name; what lies in a folder is read once, until it changes.

    Raises:
        DaariError: as :func:`load_graph`.
    """
    if isinstance(graph, Graph):
        return graph
    folder = graph_folder(graph)
    return _read_once(str(folder), _content(folder))


@lru_cache(maxsize=4)
def _read_once(path: str, _: Any) -> Graph:
    return load_folder(path)


def _content(folder: Path) -> tuple[Any, ...]:
    """What tells that a graph was replaced: its config, which holds hashes, and which file its arrays are.

    Times alone do not: a graph may be replaced within a tick of the clock, and copies keep the time of the original.
    """
    if what_is(folder / CONFIG) is None or what_is(folder / ARRAYS) is None:
        return ()  # the reader says what is wrong
    arrays = os.stat(folder / ARRAYS)
    which = arrays.st_dev, arrays.st_ino, arrays.st_size, arrays.st_mtime_ns, arrays.st_ctime_ns
    return read_bytes(folder / CONFIG, "graph's config.json", limit=LIMITS[CONFIG]), *which


def load_stats(graph: str | Path) -> dict[str, Any]:
    """What a graph's compilation counted, its ``compile_stats.json``; nothing where that was not kept.

    Raises:
        DaariError: see :func:`graph_folder`; it is damaged.
    """
    folder = graph_folder(graph)
    return read_stats(folder) if (folder / STATS).exists() else {}
