"""A compiled graph as a folder, and back: its files, how large each may be, and the one teacher that it drafts for.

The folder holds ``config.json`` (format, teacher, settings, counts, hash of the arrays), ``graph.safetensors`` (arrays
only), ``compile_stats.json`` and a ``README.md`` card. Nothing in it is ever executed.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import struct
from pathlib import Path
from typing import Any

import mlx.nn as nn
import numpy as np

from daari_mlx.graph.arrays import dtypes, from_arrays, to_arrays
from daari_mlx.graph.card import card_text
from daari_mlx.graph.graph import Graph
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.files import load_arrays, read_json, save_arrays, whole, write_json
from daari_mlx.ground.learning import check_nobody_learns
from daari_mlx.ground.regular import check_new_folder, open_regular, what_is
from daari_mlx.teacher.fingerprint import describe, differences, fingerprint

FORMAT_VERSION, OLDEST_READ = 6, 3
CONFIG, ARRAYS, STATS, CARD = "config.json", "graph.safetensors", "compile_stats.json", "README.md"
MAX_JSON = MAX_HEADER = 64 << 10  # bytes, far more than is needed: JSON can take 25 times its size in memory
LIMITS = {CONFIG: MAX_JSON, ARRAYS: 256 << 20, STATS: MAX_JSON, CARD: 1 << 20}  # bytes of a file that is downloaded
BYSTANDERS = (".gitattributes", ".cache", ".DS_Store")  # what the Hub's client and a file manager leave in a folder
_TYPES = {
    "float32": "F32",
    "int32": "I32",
    "int64": "I64",
    "uint64": "U64",
    "uint8": "U8",
    "int8": "I8",
}  # safetensors' names


def save_graph(graph: Graph, path: str | Path, stats: dict[str, Any], *, learnt: bool = False) -> Path:
    """Write the artifact, whole or not at all; an older graph at ``path`` is replaced.

    Args:
        stats: what compilation counted; goes to ``compile_stats.json``, with the artifact's ``bytes`` added.
        learnt: whether this is the graph of who learns at ``path``.

    Raises:
        DaariError: something else stands at ``path``; another process learns there; the disk is full.
    """
    check_place(path) if learnt else check_target(path)
    path = Path(path)
    with whole(path, folder=True) as beside:
        beside.mkdir(parents=True, exist_ok=True)
        save_arrays(beside / ARRAYS, to_arrays(graph))
        config = {
            "format_version": FORMAT_VERSION,
            "teacher": graph.teacher,
            "layer": graph.layer,
            "vocab_size": graph.vocab_size,
            "hidden_size": graph.hidden_size,
            "sources": list(graph.arbiter.names),
            "settings": stats.get("settings", {}),
            "counts": {
                name: stats[name] for name in ("states", "sequences", "nodes", "edges", "steps") if name in stats
            },
            "versions": versions(),
            "arrays_sha256": _sha256(beside / ARRAYS),
        }
        write_json(beside / CONFIG, {**config, "config_sha256": seal(config)})
        size, told = graph_bytes(beside), -1
        while size != told:  # the files that tell it are among those that are counted
            told = size
            write_json(beside / STATS, {**stats, "bytes": told, "versions": versions()})
            (beside / CARD).write_text(card_text(config, {**stats, "bytes": told}), encoding="utf-8")
            size = max(told, graph_bytes(beside))
    return path


def graph_bytes(folder: Path) -> int:
    """What the files of a graph take, whatever else lies beside them."""
    return sum((folder / name).stat().st_size for name in LIMITS if (folder / name).is_file())


def seal(config: dict[str, Any]) -> str:
    """The hash by which an altered ``config.json`` is noticed: over all its entries but the hash itself."""
    entries = {name: value for name, value in config.items() if name != "config_sha256"}
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()


def check_target(path: str | Path, replace: bool = True, option: str = "--graph-path") -> None:
    """See that a graph can be written to ``path``, and that nobody learns there, whose own would take its place.

    Raises:
        DaariError: it would replace what is no graph, or one that it shall not; another process learns there.
    """
    check_place(path, replace, option)
    check_nobody_learns(path, option)


def check_place(path: str | Path, replace: bool = True, option: str = "--graph-path") -> None:
    """Raise :class:`DaariError` where a graph at ``path`` would replace what is none, or one that it shall not."""
    check_new_folder(path, option, "graph", _others, replace)


def _others(names: list[str]) -> list[str]:
    """Which names of a folder are no graph's; all of them where it is none: a model's folder has a config.json too."""
    is_graph = {CONFIG, ARRAYS} <= set(names)
    return [name for name in names if not is_graph or name not in (*LIMITS, *BYSTANDERS)]


def load_folder(path: str | Path) -> Graph:
    """Read an artifact from its folder and check all of it.

    Raises:
        DaariError: it is missing, of another format version, truncated, altered, or holds values out of range.
    """
    path = Path(path)
    if not path.is_dir():
        raise DaariError(f"There is no graph at {path}: give the folder that daari-mlx compile wrote.")
    config = _read_small(path / CONFIG, "graph's config.json")
    if "format_version" not in config:
        raise DaariError(
            f"{path} is not a graph (its config.json has no format_version): "
            "give the folder that daari-mlx compile wrote."
        )
    version = config["format_version"]
    if type(version) is not int or not OLDEST_READ <= version <= FORMAT_VERSION:
        raise DaariError(
            f"The graph at {path} has format version {version!r}, "
            f"this daari-mlx reads {OLDEST_READ} to {FORMAT_VERSION}: compile it anew."
        )
    for name, kind in (("teacher", dict), ("vocab_size", int), ("hidden_size", int), ("layer", (int, str))):
        if not isinstance(config.get(name), kind) or isinstance(config.get(name), bool):
            raise DaariError(
                f"The graph's config at {path} is damaged: {name!r} is {config.get(name)!r}. Compile it anew."
            )
    if config.get("config_sha256") != seal(config):
        raise DaariError(
            f"{path / CONFIG} was altered: its entries do not match the hash in it. Compile it anew, or fetch it again."
        )
    _check_file(path / ARRAYS, str(config.get("arrays_sha256")), version)
    graph = from_arrays(load_arrays(path / ARRAYS), config)
    try:
        graph.check()
    except DaariError as error:
        raise DaariError(f"{error} It lies at {path}: compile it anew, or fetch it again.") from None
    if graph.hidden_size != config["hidden_size"]:
        raise DaariError(
            f"The graph at {path} is damaged: its states are {graph.hidden_size} wide, "
            f"its config says {config['hidden_size']}."
        )
    return graph


def read_stats(path: str | Path) -> dict[str, Any]:
    """The ``compile_stats.json`` of an artifact's folder."""
    return _read_small(Path(path) / STATS, "compile_stats.json")


def attach(graph: Graph, model: nn.Module, tokenizer: Any) -> Graph:
    """The graph, after seeing that it was compiled from this very teacher and tokenizer.

    Raises:
        DaariError: naming both sides and what to do.
    """
    ours = fingerprint(model, tokenizer)
    differing = differences(graph.teacher, ours)
    if not differing:
        return graph
    what = "tokenizer" if set(differing) <= {"tokenizer", "vocab_size"} else "teacher"
    raise DaariError(
        f"The graph belongs to another {what} (they differ in: {', '.join(differing)}).\n"
        f"  graph:  {describe(graph.teacher)}\n"
        f"  loaded: {describe(ours)}\n"
        "Load the teacher that the graph was compiled from, or compile one for this teacher: "
        "daari-mlx compile --model <this model> --data <your data> --graph-path <folder>."
    )


def versions() -> dict[str, str]:
    """Versions that the bytes of a graph depend on."""
    names = ("daari-mlx", "mlx", "mlx-lm", "numpy", "scikit-learn")
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def _read_small(path: Path, what: str) -> dict[str, Any]:
    return read_json(path, what, limit=MAX_JSON)


def _check_file(path: Path, expected: str, version: int) -> None:
    """The safetensors header is read by hand first: its offsets must fit the file before any reader trusts them."""
    if what_is(path) is None:
        raise DaariError(f"The graph is incomplete: {path} is missing. Compile it anew, or fetch it again.")
    with open_regular(path, "graph's file of arrays") as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if length > size - 8:
            raise DaariError(
                f"{path} is truncated: {size} bytes are fewer than its header says. Compile it anew, or fetch it again."
            )
        if length > MAX_HEADER:
            raise DaariError(
                f"{path} is damaged: its header has {length} bytes, that of a graph has under {MAX_HEADER}."
            )
        try:
            header = json.loads(file.read(length))
            entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
            described = {
                n: (e["dtype"], [int(x) for x in e["shape"]], *(int(e["data_offsets"][k]) for k in (0, 1)))
                for n, e in entries.items()
            }
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
            raise DaariError(f"{path} is damaged: its header cannot be read ({error}).") from error
    known = dtypes(version)
    if set(described) != set(known):
        raise DaariError(f"{path} is damaged: it should hold {sorted(known)}, found {sorted(described)}.")
    for name, (kind, shape, begin, end) in described.items():
        dtype = np.dtype(known[name])
        count = 1
        for extent in shape:
            count *= extent
        if (
            kind != _TYPES[dtype.name]
            or not shape  # a single number has no length
            or min(shape) < 0
            or not 0 <= begin <= end <= size - 8 - length
            or end - begin != count * dtype.itemsize
        ):
            raise DaariError(
                f"{path} is damaged or truncated: {name} is {kind} {shape} "
                f"at bytes {begin} to {end} of {size - 8 - length}."
            )
    if _sha256(path) != expected:
        raise DaariError(
            f"{path} was altered: its content does not match the hash in {CONFIG}. Compile it anew, or fetch it again."
        )


def _sha256(path: Path) -> str:
    with open_regular(path, "graph's file of arrays") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
