"""A graph as named arrays, and back: the table of contents of ``graph.safetensors``."""

from __future__ import annotations

from typing import Any

import numpy as np

from daari_mlx.graph.arbiter import Arbiter
from daari_mlx.graph.cells import STEPS
from daari_mlx.graph.exemplars import Coarse, Exemplars
from daari_mlx.graph.graph import Graph
from daari_mlx.graph.nodes import Nodes, Projection
from daari_mlx.graph.paths import Paths
from daari_mlx.graph.source import NAMES, cells
from daari_mlx.ground.errors import DaariError

DTYPES: dict[str, type] = {  # of every array in the file, as in memory
    "projection.mean": np.float32,
    "projection.basis": np.float32,
    "nodes.centroids": np.float32,
    "nodes.support": np.int32,
    "nodes.habits": np.uint8,
    "edges.start": np.int32,
    "edges.token": np.int32,
    "edges.probability": np.float32,
    "steps.key": np.int64,
    "steps.node": np.int32,
    "text": np.int32,
    "paths.key": np.int64,
    "paths.place": np.int32,
    "paths.kinds": np.uint8,
    "exemplars.states": np.int8,
    "exemplars.unit": np.float32,
    "exemplars.place": np.int32,
    "exemplars.bounds": np.float32,
    "arbiter.odds": np.float32,
    "arbiter.weights": np.float32,
    "prompts": np.uint64,
}

LATER = {name: 4 for name in DTYPES if name.startswith("exemplars.")}  # the format that an array came with


def to_arrays(graph: Graph) -> dict[str, np.ndarray]:
    """The arrays of a graph by the names of ``DTYPES``."""
    return {
        "projection.mean": graph.nodes.projection.mean,
        "projection.basis": graph.nodes.projection.basis,
        "nodes.centroids": graph.nodes.centroids,
        "nodes.support": graph.support,
        "nodes.habits": graph.habits,
        "edges.start": graph.edge_start,
        "edges.token": graph.edge_token,
        "edges.probability": graph.edge_probability,
        "steps.key": graph.step_key,
        "steps.node": graph.step_node,
        "text": graph.text,
        "paths.key": graph.paths.key,
        "paths.place": graph.paths.place,
        "paths.kinds": graph.paths.kinds,
        "exemplars.states": graph.exemplars.states.values,
        "exemplars.unit": graph.exemplars.states.unit,
        "exemplars.place": graph.exemplars.place,
        "exemplars.bounds": graph.exemplars.bounds,
        "arbiter.odds": np.concatenate([odds.ravel() for odds in graph.arbiter.odds]),
        "arbiter.weights": graph.arbiter.weights,
        "prompts": graph.prompts,
    }


def from_arrays(arrays: dict[str, np.ndarray], config: dict[str, Any]) -> Graph:
    """The graph of such arrays; its values are not checked here (see :meth:`Graph.check`).

    Args:
        config: with ``layer``, ``vocab_size``, ``sources`` and ``teacher``.

    Raises:
        DaariError: the arbiter's arrays do not fit the sources.
    """
    return Graph(
        nodes=Nodes(Projection(arrays["projection.mean"], arrays["projection.basis"]), arrays["nodes.centroids"]),
        layer=config["layer"],
        vocab_size=config["vocab_size"],
        edge_start=arrays["edges.start"],
        edge_token=arrays["edges.token"],
        edge_probability=arrays["edges.probability"],
        support=arrays["nodes.support"],
        step_key=arrays["steps.key"],
        step_node=arrays["steps.node"],
        habits=arrays["nodes.habits"],
        text=arrays["text"],
        paths=Paths(arrays["paths.key"], arrays["paths.place"], arrays["paths.kinds"]),
        exemplars=_exemplars(arrays),
        arbiter=_arbiter(arrays, config.get("sources")),
        teacher=config["teacher"],
        prompts=arrays["prompts"],
    )


def _exemplars(arrays: dict[str, np.ndarray]) -> Exemplars:
    """None at all where the file is older than they are."""
    if "exemplars.states" not in arrays:
        return Exemplars()
    states = Coarse(arrays["exemplars.states"], arrays["exemplars.unit"])
    return Exemplars(states, arrays["exemplars.place"], arrays["exemplars.bounds"])


def _arbiter(arrays: dict[str, np.ndarray], names: object) -> Arbiter:
    known = isinstance(names, list) and all(isinstance(name, str) and name in NAMES for name in names)
    if not isinstance(names, list) or not known or not names or len(set(names)) < len(names):
        raise DaariError(f"The graph is damaged: its sources are {str(names)[:80]}, known ones are {list(NAMES)}.")
    odds = arrays["arbiter.odds"]
    sizes = [cells(name) * STEPS for name in names]
    if odds.shape != (sum(sizes),):
        raise DaariError(f"The graph is damaged: its arbiter does not fit its sources {names}.")
    parts = np.split(odds, np.cumsum(sizes)[:-1])
    return Arbiter(tuple(names), tuple(part.reshape(-1, STEPS) for part in parts), arrays["arbiter.weights"])
