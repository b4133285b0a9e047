"""Where learning is kept: the graph at its path, and beside it the log of answers that it is folded from.

``GRAPH`` is a graph as ``compile`` writes it, usable by every command. ``GRAPH.learnt`` holds ``answers.log``;
``base``, the graph that learning began with, where there was one; and ``lock``, which one process holds at a time. The
graph can always be made anew of the other two.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from daari_mlx.graph.artifact import CONFIG, check_target, load_folder, read_stats, save_graph
from daari_mlx.graph.graph import Graph
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.files import put_back, read_json, whole
from daari_mlx.ground.learning import BASE, LOCK, LOG, busy, learnt_folder
from daari_mlx.ground.lock import Lock
from daari_mlx.learn.kept import is_of_a_log, until_in
from daari_mlx.learn.log import Log


class Store:
    """One path, held by this process until :meth:`close`.

    Args:
        path: of the graph.

    Raises:
        DaariError: another process learns there; something else stands there; a file of it is damaged.
    """

    def __init__(self, path: str | Path) -> None:
        self.path, self.folder = Path(path), learnt_folder(path)
        check_target(self.path, option="--learn")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = Lock(self.folder / LOCK, os.urandom(8).hex(), busy("--learn"))
        self._log: Log | None = None
        try:
            put_back(self.path)
            put_back(self.folder / BASE)
            self.graph = load_folder(self.path) if self.path.exists() else None
            if (self.folder / LOG).exists():
                self._log = Log(self.folder / LOG, {})
            if self.graph is not None and self._is_not_of_the_log():
                self._begin_with_what_lies_there()
            self.base = load_folder(self.folder / BASE) if (self.folder / BASE).exists() else None
        except BaseException:
            self.close()
            raise

    def _is_not_of_the_log(self) -> bool:
        """Whether the graph at the path holds what no log does: it was compiled, or learnt elsewhere."""
        return self._log is None or not is_of_a_log(read_stats(self.path))

    def _begin_with_what_lies_there(self) -> None:
        """Keep the graph at the path as what learning began with.

        Raises:
            DaariError: it was made of a learnt graph, and the log may hold what it counted.
        """
        base = self.folder / BASE
        if base.exists() and _arrays_hash(base) == _arrays_hash(self.path):
            return
        if self._log is not None and self._log.answers and "learnt" in read_stats(self.path):
            raise DaariError(
                f"The graph at {self.path} was made of a learnt one, by --update or merge, and may know answers that "
                f"{self.folder} holds: they would count twice. Move the graph away, or give its new place to --learn."
            )
        with whole(base, folder=True) as beside:
            shutil.copytree(self.path, beside)

    def begin_with(self, graph: Graph) -> None:
        """Take a compiled graph as what learning begins with.

        Raises:
            DaariError: it began with something else.
        """
        if self.base is None and self.graph is None and self._log is None:
            save_graph(graph, self.folder / BASE, {})
            self.base = graph
        elif self.base is None or self.base.teacher != graph.teacher or not _equal(self.base, graph):
            raise DaariError(
                f"What was learnt in {self.path} did not begin with the graph that --graph names: leave --graph out, "
                "or give another path to --learn."
            )

    def open(self, about: dict[str, Any]) -> Log:
        """The log; ``about`` says whose it is, where there is none yet."""
        if self._log is None:
            self._log = Log(self.folder / LOG, about)
        return self._log

    @property
    def about(self) -> dict[str, Any] | None:
        """Whose answers the log holds; None where there is none."""
        return None if self._log is None else self._log.about

    def until(self) -> float:
        """When the newest answer was said that the graph at the path was counted of; 0 where there is none."""
        return 0.0 if self.graph is None else until_in(read_stats(self.path))

    def save(self, graph: Graph, stats: dict[str, Any]) -> None:
        """Replace the graph at the path.

        Raises:
            DaariError: the disk is full; the one before stays.
        """
        save_graph(graph, self.path, stats, learnt=True)
        self.graph = graph

    def close(self) -> None:
        """Let another process learn here."""
        if self._log is not None:
            self._log.close()
        self._lock.release()


def _arrays_hash(folder: Path) -> Any:
    return read_json(folder / CONFIG, "graph's config.json").get("arrays_sha256")


def _equal(one: Graph, other: Graph) -> bool:
    from daari_mlx.graph.arrays import to_arrays

    mine, theirs = to_arrays(one), to_arrays(other)
    return all(mine[name].tobytes() == theirs[name].tobytes() for name in mine)
