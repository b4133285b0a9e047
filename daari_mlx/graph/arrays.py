"""A graph as named arrays, and back: the table of contents of ``graph.safetensors``."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from daari_mlx.graph.arbiter import Arbiter, scenes_of
from daari_mlx.graph.exemplars import Coarse, Exemplars
from daari_mlx.graph.graph import MAX_WEIGHT, Graph, require
from daari_mlx.graph.nodes import Nodes, Projection
from daari_mlx.graph.source import NAMES, cells
from daari_mlx.ground.errors import DaariError

DTYPES: dict[str, type] = {  # of every array in the file, as in memory
    "projection.mean": np.float32,
    "projection.basis": np.float32,
    "nodes.centroids": np.float32,
    "nodes.support": np.int32,
    "edges.start": np.int32,
    "edges.token": np.int32,
    "edges.probability": np.float32,
    "steps.key": np.int64,
    "steps.node": np.int32,
    "text": np.int32,
    "exemplars.states": np.int8,
    "exemplars.unit": np.float32,
    "exemplars.place": np.int32,
    "exemplars.bounds": np.float32,
    "arbiter.odds": np.float32,
    "arbiter.weights": np.float32,
    "prompts": np.uint64,
}

LATER = {name: 4 for name in DTYPES if name.startswith("exemplars.")}  # the format that an array came with
FORMER: dict[str, tuple[type, int]] = {  # arrays which nothing reads any more, and the last format that has them
    "paths.key": (np.int64, 4),
    "paths.place": (np.int32, 4),
    "paths.kinds": (np.uint8, 4),
    "nodes.habits": (np.uint8, 5),
}
FORMER_CELLS = {"path": (54,), "session": (10,), "copy": (6, 10)}  # how those of sources before format 6 were made up
FORMER_STEPS = 5  # buckets of steps since the anchor, by which log-odds were kept apart before format 6


def dtypes(version: int) -> dict[str, type]:
    """Of every array in a file of this format."""
    former = {name: dtype for name, (dtype, last) in FORMER.items() if version <= last}
    return {n: d for n, d in DTYPES.items() if LATER.get(n, 0) <= version} | former


def to_arrays(graph: Graph) -> dict[str, np.ndarray]:
    """The arrays of a graph by the names of ``DTYPES``."""
    return {
        "projection.mean": graph.nodes.projection.mean,
        "projection.basis": graph.nodes.projection.basis,
        "nodes.centroids": graph.nodes.centroids,
        "nodes.support": graph.support,
        "edges.start": graph.edge_start,
        "edges.token": graph.edge_token,
        "edges.probability": graph.edge_probability,
        "steps.key": graph.step_key,
        "steps.node": graph.step_node,
        "text": graph.text,
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
        config: with ``format_version``, ``layer``, ``vocab_size``, ``sources`` and ``teacher``.

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
        text=arrays["text"],
        exemplars=_exemplars(arrays),
        arbiter=_arbiter(arrays, config.get("sources"), config["format_version"]),
        teacher=config["teacher"],
        prompts=arrays["prompts"],
    )


def _exemplars(arrays: dict[str, np.ndarray]) -> Exemplars:
    """None at all where the file is older than they are."""
    if "exemplars.states" not in arrays:
        return Exemplars()
    states = Coarse(arrays["exemplars.states"], arrays["exemplars.unit"])
    return Exemplars(states, arrays["exemplars.place"], arrays["exemplars.bounds"])


def _arbiter(arrays: dict[str, np.ndarray], names: object, version: int) -> Arbiter:
    """That of the sources that there are; of a graph of a former format, as if its other ones were always silent.

    What a former format kept apart (a cell of ``FORMER_CELLS``, a bucket of steps) gets the mean of its log-odds.
    """
    sizes = {name: cells(name) for name in NAMES}
    if version < 6:
        sizes |= {name: prod(shape) for name, shape in FORMER_CELLS.items()}
        sizes = {name: FORMER_STEPS * count for name, count in sizes.items()}
    known = isinstance(names, list) and all(isinstance(name, str) and name in sizes for name in names)
    if not isinstance(names, list) or not known or not names or len(set(names)) < len(names):
        raise DaariError(f"The graph is damaged: its sources are {str(names)[:80]}, known ones are {list(NAMES)}.")
    kept = [place for place, name in enumerate(names) if name in NAMES]
    if not kept:
        raise DaariError(f"The graph has only the sources {names}, which are no more: compile it anew.")
    odds, weights = arrays["arbiter.odds"], arrays["arbiter.weights"]
    ends = np.cumsum([sizes[name] for name in names])
    if odds.shape != (ends[-1],) or weights.shape != (3 ** len(names), 1 + len(names)):
        raise DaariError(f"The graph is damaged: its arbiter does not fit its sources {names}.")
    require(bool((np.abs(odds) < MAX_WEIGHT).all()), "arbiter.odds holds a value that is none")  # before any mean
    parts = np.split(odds, ends[:-1])
    scenes = scenes_of(len(kept)) @ 3 ** np.array(kept)
    return Arbiter(
        tuple(names[place] for place in kept),
        tuple(_by_cell(parts[place], names[place]) for place in kept),
        weights[scenes][:, [0, *(1 + place for place in kept)]],
    )


def _by_cell(odds: np.ndarray, name: str) -> np.ndarray:
    """``(cells,)``, from a former format too."""
    if len(odds) == cells(name):
        return odds
    shape = FORMER_CELLS.get(name, (cells(name),))
    means = odds.reshape(*shape[:-1], cells(name), FORMER_STEPS).mean(axis=-1, dtype=np.float64)
    return np.asarray(means.mean(axis=0) if means.ndim > 1 else means, np.float32)
