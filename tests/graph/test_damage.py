"""Damaged and hostile graphs: an error that a person can read or a sound graph, nothing else; no hash is trusted."""

from __future__ import annotations

import copy
import hashlib
import json
import struct
from itertools import permutations
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from graphs import draft_everywhere, full_graph
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_artifact import COUNTED, TEACHER, edit

from daari_mlx.graph.artifact import ARRAYS, CONFIG, save_graph, seal
from daari_mlx.graph.card import card_text
from daari_mlx.graph.graph import Graph
from daari_mlx.graph.source import NAMES
from daari_mlx.ground.errors import DaariError
from daari_mlx.share.find import load_graph
from daari_mlx.teacher.fingerprint import describe, differences


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_graph(full_graph(teacher=TEACHER), tmp_path / "sound", COUNTED)
    return save_graph(full_graph(teacher=TEACHER), tmp_path / "graph", COUNTED)


def load_or_refuse(folder: Path) -> Graph | None:
    """The graph, walked everywhere, or None where it was refused; any other exception is the failure."""
    try:
        graph = load_graph(folder)
    except DaariError as error:
        assert str(error)
        return None
    state = np.ones(graph.hidden_size, np.float32)
    assert 0 <= graph.nodes.anchor(state)[0] < graph.size
    for node in range(graph.size):
        graph.follow(node, 5)
        graph.step(node, 7)
    draft_everywhere(graph)
    return graph


def write_arrays(folder: Path, content: bytes) -> None:
    """Replace the arrays and make the hash fit, as one who wants to do harm would."""
    (folder / ARRAYS).write_bytes(content)
    edit(folder, arrays_sha256=hashlib.sha256(content).hexdigest())


def parts_of(folder: Path) -> tuple[dict[str, Any], bytes]:
    content = (folder / ARRAYS).read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def joined(header: Any, data: bytes, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def renew(folder: Path) -> None:
    """Bring the sound files back: hypothesis uses one folder for all its examples."""
    for path in (folder.parent / "sound").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())


FUZZ = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
LONG_FUZZ = settings(FUZZ, max_examples=100)


@pytest.mark.parametrize("name", [ARRAYS, CONFIG])
@pytest.mark.parametrize("hash_fits", [False, True])
def test_truncated_anywhere(folder: Path, name: str, hash_fits: bool) -> None:
    whole = (folder / name).read_bytes()
    cuts = [*range(0, len(whole), 97), 7, 8, 9, len(whole) - 1]
    for cut in cuts:
        if name == ARRAYS and hash_fits:
            write_arrays(folder, whole[:cut])
        else:
            (folder / name).write_bytes(whole[:cut])
        refused = load_or_refuse(folder) is None
        assert refused or (name == CONFIG and whole[cut:].strip() == b""), f"cut at {cut}"


@FUZZ
@given(st.data())
def test_flipped_bits_never_pass_the_hash(folder: Path, data: st.DataObject) -> None:
    renew(folder)
    whole = bytearray((folder / ARRAYS).read_bytes())
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    (folder / ARRAYS).write_bytes(whole)
    assert load_or_refuse(folder) is None


@LONG_FUZZ
@given(st.data())
def test_altered_bytes_with_a_fitting_hash_are_refused_or_harmless(folder: Path, data: st.DataObject) -> None:
    renew(folder)
    changed = bytearray((folder / ARRAYS).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(changed) - 1))
        changed[place] = data.draw(st.integers(0, 255))
    write_arrays(folder, bytes(changed))
    load_or_refuse(folder)


# --- the header of the arrays

HEADERS: dict[str, Any] = {
    "no bytes at all": lambda h, d: b"",
    "a length alone": lambda h, d: struct.pack("<Q", 10),
    "a length of 2**60": lambda h, d: joined(h, d, 2**60),
    "a length of 2**64-1": lambda h, d: joined(h, d, 2**64 - 1),
    "a length of 0": lambda h, d: joined(h, d, 0),
    "no JSON": lambda h, d: joined(b"x" * 100, d),
    "no UTF-8": lambda h, d: joined(b"\xff" * 100, d),
    "deep nesting": lambda h, d: joined(b"[" * 200_000, d),
    "a list": lambda h, d: joined([h], d),
    "a number": lambda h, d: joined(3, d),
    "NaN": lambda h, d: joined(float("nan"), d),
    "nothing in it": lambda h, d: joined({}, d),
    "a pickle": lambda h, d: b"\x80\x04cos\nsystem\n(S'false'\ntR.",
    "an entry missing": lambda h, d: joined({k: v for k, v in h.items() if k != "edges.token"}, d),
    "an entry more": lambda h, d: joined({**h, "more": h["edges.token"]}, d),
    "metadata that is none": lambda h, d: joined({**h, "__metadata__": [1, {"x": None}]}, d),
    "an entry twice": lambda h, d: joined(
        b'{"edges.token":{"dtype":"I32","shape":[-1],"data_offsets":[0,-4]},' + json.dumps(h).encode()[1:], d
    ),
    "no offsets": lambda h, d: joined({**h, "edges.token": {**h["edges.token"], "data_offsets": []}}, d),
    "three offsets": lambda h, d: joined({**h, "edges.token": {**h["edges.token"], "data_offsets": [0, 4, 8]}}, d),
    "endless offsets": lambda h, d: joined({**h, "edges.token": {**h["edges.token"], "data_offsets": [0, 1e400]}}, d),
    "spaces before it": lambda h, d: joined(b" " * 8 + json.dumps(h).encode(), d),
}


@pytest.mark.parametrize("name", sorted(HEADERS))
def test_a_hostile_header_is_refused_or_harmless(folder: Path, name: str) -> None:
    write_arrays(folder, HEADERS[name](*parts_of(folder)))
    found = load_or_refuse(folder)
    assert found is None or name in ("metadata that is none", "an entry twice", "spaces before it")


VALUES = st.one_of(
    st.sampled_from(
        [-1, 0, 1, 2**31, 2**32 + 12, 2**40, 2**63, 2**64, 2**70, -(2**63), 1e400, float("nan"), 0.5, "12", "", None]
    ),
    st.sampled_from([True, [], [[]], {}, [2**62, 4], [-1, -12], [0, 2**40], ["1"], [1.5], "I32", "F64", "BF16", "U8"]),
    st.integers(-20, 4000),
).map(copy.deepcopy)


@LONG_FUZZ
@given(st.data())
def test_an_altered_header_is_refused_or_harmless(folder: Path, data: st.DataObject) -> None:
    """Types, shapes and offsets changed at will, with a hash that fits."""
    renew(folder)
    header, content = parts_of(folder)
    for _ in range(data.draw(st.integers(1, 3))):
        entry = header[data.draw(st.sampled_from(sorted(set(header) - {"__metadata__"})))]
        key = data.draw(st.sampled_from(["dtype", "shape", "data_offsets", "other"]))
        if isinstance(entry.get(key), list) and entry[key] and data.draw(st.booleans()):
            entry[key][data.draw(st.integers(0, len(entry[key]) - 1))] = data.draw(VALUES)
        elif data.draw(st.booleans()):
            entry.pop(key, None)
        else:
            entry[key] = data.draw(VALUES)
    write_arrays(folder, joined(header, content))
    load_or_refuse(folder)


@FUZZ
@given(st.data())
def test_other_arrays_with_a_fitting_hash_are_refused_or_harmless(folder: Path, data: st.DataObject) -> None:
    """Sound safetensors of any type and shape under the right names."""
    renew(folder)
    arrays: dict[str, mx.array] = dict(mx.load(str(folder / ARRAYS)))
    name = data.draw(st.sampled_from(sorted(arrays)))
    kinds = [mx.float32, mx.int32, mx.int64, mx.uint64, mx.bfloat16, mx.float16, mx.uint8, mx.bool_, mx.complex64]
    shape = data.draw(st.lists(st.integers(0, 13), max_size=3))
    kind = data.draw(st.sampled_from([arrays[name].dtype, *kinds]))
    arrays[name] = mx.full(shape, data.draw(st.integers(-2, 40))).astype(kind)
    made = folder.parent / "made.safetensors"
    mx.save_safetensors(str(made), arrays)
    write_arrays(folder, made.read_bytes())
    load_or_refuse(folder)


# --- config.json

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**40), 10**40) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
KEYS = [
    "format_version",
    "teacher",
    "layer",
    "vocab_size",
    "hidden_size",
    "sources",
    "settings",
    "counts",
    "versions",
    "arrays_sha256",
]


@LONG_FUZZ
@given(st.dictionaries(st.sampled_from(KEYS), JSON, min_size=1, max_size=3), st.sets(st.sampled_from(KEYS), max_size=2))
def test_an_altered_config_is_refused_or_harmless(folder: Path, changes: dict[str, Any], removed: set[str]) -> None:
    renew(folder)
    config = json.loads((folder / CONFIG).read_text()) | changes
    config = {name: value for name, value in config.items() if name not in removed}
    config["config_sha256"] = seal(config)  # by somebody who knows of the hash
    (folder / CONFIG).write_text(json.dumps(config))
    graph = load_or_refuse(folder)
    if graph is not None:
        assert isinstance(describe(graph.teacher), str) and isinstance(differences(graph.teacher, TEACHER), list)


@pytest.mark.parametrize(
    "value",
    [None, True, 3, "edge", [], ["edge"], ["edge"] * 5, [*NAMES, "more"], [[n] for n in NAMES], dict.fromkeys(NAMES)],
    ids=lambda value: str(value)[:30],
)
def test_sources_that_do_not_fit_the_arbiter_are_refused(folder: Path, value: Any) -> None:
    edit(folder, sources=value)
    with pytest.raises(DaariError, match="The graph is damaged"):
        load_graph(folder)


def test_sources_in_another_order_are_refused_or_harmless(folder: Path) -> None:
    for order in permutations(NAMES):
        edit(folder, sources=list(order))
        load_or_refuse(folder)


@pytest.mark.parametrize("name", ["teacher", "layer", "vocab_size", "hidden_size", "arrays_sha256"])
@pytest.mark.parametrize("value", [None, True, [], {}, 1.5, "x", -1, 0, 10**30, 2**31])
def test_what_a_graph_needs_is_of_its_type(folder: Path, name: str, value: Any) -> None:
    sound = {"teacher": dict, "layer": (int, str)}.get(name, ())
    edit(folder, **{name: value})
    found = load_or_refuse(folder)
    assert found is None or (isinstance(value, sound) and not isinstance(value, bool))


@FUZZ
@given(JSON)
def test_a_card_can_be_written_of_any_settings(value: Any) -> None:
    """Settings come back out of a workdir that anybody may have edited."""
    config = {"settings": {"answers": value}, "layer": value, "teacher": {"source": value, "quantisation": value}}
    assert card_text(config, {"states": 3}).startswith("---\n")
