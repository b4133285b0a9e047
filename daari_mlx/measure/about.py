"""What a record says of the machine, the versions and what was measured."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from daari_mlx.cost import probe
from daari_mlx.draft.drafter import Drafter
from daari_mlx.graph.artifact import versions
from daari_mlx.graph.graph import Graph
from daari_mlx.ground import blas
from daari_mlx.teacher.fingerprint import describe
from daari_mlx.teacher.load import Teacher


def environment() -> dict[str, Any]:
    """Where this runs."""
    return {
        "commit": _commit(),
        "versions": versions(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": probe.chip(),
        "blas": blas.status().name,
        "load_average": os.getloadavg()[0],
    }


def subject(teacher: Teacher, graph: Graph | None, drafter: Drafter | None) -> dict[str, Any]:
    """What is measured."""
    known = probe.load(teacher.model)
    return {
        "teacher": {
            "source": teacher.source,
            "adapter_path": teacher.adapter_path,
            "is": describe(teacher.fingerprint()),
        },
        "drafter": None if drafter is None else {"is": type(drafter).__name__, **getattr(drafter, "about", {})},
        "graph": None
        if graph is None
        else {
            "nodes": graph.size,
            "edges": len(graph.edge_token),
            "steps": len(graph.step_key),
            "layer": graph.layer,
        },
        "cost": None if known is None else {"rows": known.cost.rows, "relative": known.cost.relative},
    }


def _commit() -> str | None:
    """The commit of this source, ``-dirty`` where it was changed; None outside its own repository."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        # it may lie, installed, within a repository that knows nothing of it
        known = [*git, "ls-files", "--error-unmatch", Path(__file__).name]
        subprocess.run(known, check=True, capture_output=True)
        described = [*git, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        return subprocess.run(described, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
