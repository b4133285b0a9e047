"""A graph on disk: it comes back as it was, or an error says what to do; and it drafts for its own teacher only."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import mlx.nn as nn
import numpy as np
import pytest
from graphs import draft_everywhere, full_graph, naive_walk, random_graph
from test_fingerprint import WORDS, Tokenizer, adapted, quantised
from zoo import build

from daari_mlx.graph import artifact
from daari_mlx.graph.arbiter import scenes_of
from daari_mlx.graph.arrays import FORMER, FORMER_CELLS, FORMER_STEPS, LATER
from daari_mlx.graph.artifact import (
    ARRAYS,
    CARD,
    CONFIG,
    FORMAT_VERSION,
    OLDEST_READ,
    STATS,
    attach,
    check_target,
    read_stats,
    save_graph,
    seal,
)
from daari_mlx.graph.source import NAMES, cells
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.files import load_arrays, save_arrays
from daari_mlx.share.find import graph_of, load_graph
from daari_mlx.teacher.fingerprint import fingerprint

COUNTED = {"states": 100, "sequences": 5, "nodes": 12, "edges": 20, "steps": 30, "settings": {"answers": "teacher"}}
TEACHER = {"model_type": "llama", "source": "folder", "weights": "w" * 32, "tokenizer": "t" * 32, "vocab_size": 30}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_graph(random_graph(3, teacher=TEACHER), tmp_path / "graph", COUNTED)


def edit(folder: Path, **changes: Any) -> None:
    """Change entries of a graph's config.json."""
    config = {**json.loads((folder / CONFIG).read_text()), **changes}
    (folder / CONFIG).write_text(json.dumps({**config, "config_sha256": seal(config)}))


# --- there and back


def test_everything_comes_back(folder: Path) -> None:
    graph, back = random_graph(3, teacher=TEACHER), load_graph(folder)
    assert_same(graph, back)
    assert naive_walk(back, 0, 9) == naive_walk(graph, 0, 9)


def assert_same(ours: Any, theirs: Any) -> None:
    """Every part of a graph is the same, down to types."""
    assert type(ours) is type(theirs)
    if isinstance(ours, np.ndarray):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    elif isinstance(ours, tuple):
        for own, their in zip(ours, theirs, strict=True):
            assert_same(own, their)
    elif is_dataclass(ours):
        for field in fields(ours):
            assert_same(getattr(ours, field.name), getattr(theirs, field.name))
    else:
        assert ours == theirs


def test_a_graph_of_all_sources_comes_back(tmp_path: Path) -> None:
    graph = full_graph(teacher=TEACHER)
    assert len(graph.text) and len(graph.exemplars) and len(graph.arbiter.names) == len(NAMES)
    assert_same(graph, load_graph(save_graph(graph, tmp_path / "graph", COUNTED)))


def test_the_folder_holds_four_files_and_they_say_what_it_is(folder: Path) -> None:
    assert sorted(p.name for p in folder.iterdir()) == sorted([ARRAYS, CONFIG, STATS, CARD])
    config, stats = json.loads((folder / CONFIG).read_text()), read_stats(folder)
    assert config["teacher"] == TEACHER and config["format_version"] == artifact.FORMAT_VERSION
    assert config["arrays_sha256"] == hashlib.sha256((folder / ARRAYS).read_bytes()).hexdigest()
    assert config["counts"]["nodes"] == 12 and config["settings"] == {"answers": "teacher"}
    assert stats["states"] == 100 and stats["versions"]["mlx-lm"]
    assert stats["bytes"] == sum(f.stat().st_size for f in folder.iterdir()), "as inspect counts them"
    card = (folder / CARD).read_text()
    assert card.startswith("---\n") and "wwwwwwww" in card and "| states | 100 |" in card


def test_equal_graphs_are_equal_bytes(folder: Path, tmp_path: Path) -> None:
    again = save_graph(random_graph(3, teacher=TEACHER), tmp_path / "again", COUNTED)
    for name in (ARRAYS, CONFIG):
        assert (again / name).read_bytes() == (folder / name).read_bytes()


# --- writing


def test_an_older_graph_is_replaced(folder: Path) -> None:
    save_graph(random_graph(4, teacher=TEACHER), folder, COUNTED)
    np.testing.assert_array_equal(load_graph(folder).edge_token, random_graph(4).edge_token)


@pytest.mark.parametrize("step", ["save_arrays", "write_json", "card_text"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_a_partial_write_leaves_the_older_graph(
    folder: Path, step: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {p.name: p.read_bytes() for p in folder.iterdir()}

    def failing(*_: Any) -> None:
        raise error

    monkeypatch.setattr(artifact, step, failing)
    with pytest.raises(error):
        save_graph(random_graph(4), folder, COUNTED)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
    assert [p.name for p in folder.parent.iterdir()] == [folder.name]


def test_what_is_no_graph_is_not_replaced(tmp_path: Path, tiny_teacher_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for path in tiny_teacher_path.iterdir():
        (model / path.name).write_bytes(path.read_bytes())
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("years of work")
    (tmp_path / "file").write_text("x")
    for place in (model, other, tmp_path / "file"):
        before = sorted(p.name for p in place.iterdir()) if place.is_dir() else place.read_text()
        with pytest.raises(DaariError, match="not a graph: name another --graph-path"):
            check_target(place)
        with pytest.raises(DaariError, match="not a graph: name another --graph-path"):
            save_graph(random_graph(3), place, COUNTED)
        assert (sorted(p.name for p in place.iterdir()) if place.is_dir() else place.read_text()) == before


def test_where_nothing_stands_a_graph_can_be_written(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    for place in (tmp_path / "empty", tmp_path / "deep" / "new", folder):
        check_target(place)
        assert load_graph(save_graph(random_graph(3), place, COUNTED)).size == 12
    monkeypatch.chdir(tmp_path / "empty")
    for place in (".", "/"):
        with pytest.raises(DaariError, match="--graph-path"):
            save_graph(random_graph(3), place, COUNTED)
    assert load_graph(save_graph(random_graph(3), "relative", COUNTED)).size == 12


# --- whose it is


@pytest.mark.parametrize("missing", [CONFIG, ARRAYS, "all", "folder"])
def test_what_is_missing_is_told(folder: Path, missing: str) -> None:
    for path in folder.iterdir():
        if missing in (path.name, "all", "folder"):
            path.unlink()
    if missing == "folder":
        folder.rmdir()
    with pytest.raises(DaariError, match=str(folder)):
        load_graph(folder)


@pytest.mark.parametrize(
    "change",
    [{"vocab_size": 10**9}, {"layer": -1}, {"hidden_size": 9}, {"teacher": {}}, {"counts": None}, {"more": 1}],
    ids=lambda change: next(iter(change)),
)
def test_a_config_altered_by_hand_is_noticed(folder: Path, change: dict[str, Any]) -> None:
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps({**config, **change}))
    with pytest.raises(DaariError, match=r"config\.json was altered.*Compile it anew"):
        load_graph(folder)
    (folder / CONFIG).write_text(json.dumps(dict(reversed(config.items()))))
    load_graph(folder)  # order and white space are no content


FORMER_NAMES = ["path", "edge", "copy", "session"]


def former_odds(name: str) -> int:
    """How many log-odds a source had in formats before 6."""
    return FORMER_STEPS * int(np.prod(FORMER_CELLS.get(name) or (cells(name),)))


def older(folder: Path, version: int, names: list[str]) -> None:
    """Write a graph's folder as a former format has it: other sources too, and without the arrays that came later."""
    arrays = {n: a for n, a in load_arrays(folder / ARRAYS).items() if LATER.get(n, OLDEST_READ) <= version}
    former = {n: dtype for n, (dtype, last) in FORMER.items() if version <= last}
    arrays |= {n: np.zeros((3, 24) if n.endswith("kinds") else 3, dtype) for n, dtype in former.items()}
    random = np.random.default_rng(0)
    arrays["arbiter.odds"] = random.normal(size=sum(map(former_odds, names))).astype(np.float32)
    arrays["arbiter.weights"] = random.normal(size=(3 ** len(names), 1 + len(names))).astype(np.float32)
    save_arrays(folder / ARRAYS, arrays)
    digest = hashlib.sha256((folder / ARRAYS).read_bytes()).hexdigest()
    edit(folder, format_version=version, arrays_sha256=digest, sources=names)


@pytest.mark.parametrize("version", range(OLDEST_READ, FORMAT_VERSION))
def test_sources_of_a_former_format_that_are_gone_are_taken_for_silent(version: int, tmp_path: Path) -> None:
    folder = save_graph(full_graph(teacher=TEACHER), tmp_path / "graph", COUNTED)
    names = {3: FORMER_NAMES, 4: ["path", "edge", "near", "copy", "session"]}.get(version, list(NAMES))
    older(folder, version, names)
    arrays, found = load_arrays(folder / ARRAYS), load_graph(folder)
    kept = [name for name in names if name in NAMES]
    assert found.arbiter.names == tuple(kept) and (len(found.exemplars) > 0) == ("near" in names)
    place, weights = {name: k for k, name in enumerate(names)}, arrays["arbiter.weights"]
    for number, says in enumerate(scenes_of(len(kept)).tolist()):
        scene = sum(said * 3 ** place[name] for name, said in zip(kept, says, strict=True))
        expected = [weights[scene, 0], *(weights[scene, 1 + place[name]] for name in kept)]
        assert found.arbiter.weights[number].tolist() == expected
    parts = np.split(arrays["arbiter.odds"], np.cumsum([former_odds(name) for name in names])[:-1])
    edge, copy = parts[place["edge"]].reshape(54, FORMER_STEPS), parts[place["copy"]].reshape(6, 10, FORMER_STEPS)
    assert np.allclose(found.arbiter.odds[kept.index("edge")], edge.mean(axis=1))
    assert np.allclose(found.arbiter.odds[kept.index("copy")], copy.mean(axis=(0, 2)))
    if "near" in kept:
        near = parts[place["near"]].reshape(54, FORMER_STEPS).mean(axis=1)
        assert np.allclose(found.arbiter.odds[kept.index("near")], near)
    draft_everywhere(found)
    edit(folder, format_version=FORMAT_VERSION)
    with pytest.raises(DaariError, match=r"it should hold .*found .*(paths|habits)"):
        load_graph(folder)


@pytest.mark.parametrize("values", [(1e38, -1e38), (4e6, 0.0), (np.inf, -np.inf), (np.nan, 0.0)])
def test_odds_of_a_former_format_are_looked_at_before_their_mean_is_taken(
    folder: Path, values: tuple[float, float]
) -> None:
    older(folder, 5, list(NAMES))
    arrays = load_arrays(folder / ARRAYS)
    arrays["arbiter.odds"][:2] = values
    save_arrays(folder / ARRAYS, arrays)
    edit(folder, arrays_sha256=hashlib.sha256((folder / ARRAYS).read_bytes()).hexdigest())
    with pytest.raises(DaariError, match=r"arbiter\.odds holds a value that is none"):
        load_graph(folder)


def test_a_graph_with_nothing_but_sources_that_are_gone_is_refused(folder: Path) -> None:
    older(folder, 4, ["path", "session"])
    with pytest.raises(DaariError, match=r"only the sources .*which are no more: compile it anew"):
        load_graph(folder)


@pytest.mark.parametrize("version", [0, 1, OLDEST_READ - 1, FORMAT_VERSION + 1, "2", None, True, 2.0, [2], 10**30])
def test_another_format_version_is_refused(folder: Path, version: Any) -> None:
    edit(folder, format_version=version)
    with pytest.raises(DaariError, match=f"this daari-mlx reads {OLDEST_READ} to {FORMAT_VERSION}: compile it anew"):
        load_graph(folder)


WRONG = {
    "other weights": (lambda: build("llama", seed=1), WORDS, "another teacher .*weights"),
    "quantised": (quantised, WORDS, "another teacher .*quantisation"),
    "adapted": (lambda: adapted(1), WORDS, "another teacher .*adapter"),
    "other tokenizer": (lambda: build("llama"), Tokenizer({"a": 1, "b": 0}), "another tokenizer .*tokenizer"),
}


@pytest.mark.parametrize("name", sorted(WRONG))
def test_a_graph_of_another_teacher_names_both_sides_and_the_mend(tmp_path: Path, name: str) -> None:
    ours = {**fingerprint(build("llama"), WORDS), "source": "the/first"}
    path = save_graph(random_graph(3, teacher=ours), tmp_path / "graph", COUNTED)
    assert attach(graph_of(path), build("llama"), WORDS).teacher == ours
    make, tokenizer, expected = WRONG[name]
    model = make()
    for graph in (path, str(path), load_graph(path)):
        with pytest.raises(DaariError, match=expected) as told:
            attach(graph_of(graph), model, tokenizer)
    loaded = fingerprint(model, tokenizer)
    for part in ("the/first", "graph:", "loaded:", loaded["weights"][:8], loaded["tokenizer"][:8], "daari-mlx compile"):
        assert part in str(told.value)


def test_quantising_after_attaching_is_seen(tmp_path: Path) -> None:
    model = build("llama")
    path = save_graph(random_graph(3, teacher=fingerprint(model, WORDS)), tmp_path / "graph", COUNTED)
    attach(graph_of(path), model, WORDS)
    nn.quantize(model, group_size=32, bits=4)
    with pytest.raises(DaariError, match="quantisation"):
        attach(graph_of(path), model, WORDS)


def test_a_folder_is_read_again_after_it_changed(tmp_path: Path) -> None:
    """A server that attaches by path sees a graph that was compiled anew meanwhile."""
    teacher = fingerprint(build("llama"), WORDS)
    path = save_graph(random_graph(3, teacher=teacher), tmp_path / "graph", COUNTED)
    first = attach(graph_of(path), build("llama"), WORDS)
    assert attach(graph_of(path), build("llama"), WORDS) is first
    save_graph(random_graph(4, teacher=teacher), path, COUNTED)
    np.testing.assert_array_equal(attach(graph_of(path), build("llama"), WORDS).edge_token, random_graph(4).edge_token)


@pytest.mark.parametrize("how", ["replaced", "written over", "moved in place"])
def test_a_graph_that_changed_within_a_tick_of_the_clock_is_read_again(tmp_path: Path, how: str) -> None:
    paths = [save_graph(random_graph(seed), tmp_path / str(seed), COUNTED) for seed in (3, 4)]
    for file in (file for path in paths for file in path.iterdir()):
        os.utime(file, (1e9, 1e9))
    np.testing.assert_array_equal(graph_of(paths[0]).edge_token, random_graph(3).edge_token)
    if how == "replaced":
        paths[0].rename(tmp_path / "old")
        paths[1].rename(paths[0])
    for file in list(paths[1].iterdir()) if how != "replaced" else []:
        target = paths[0] / file.name
        target.write_bytes(file.read_bytes()) if how == "written over" else file.replace(target)
        os.utime(target, (1e9, 1e9))
    np.testing.assert_array_equal(graph_of(paths[0]).edge_token, random_graph(4).edge_token)


def test_arrays_that_were_damaged_after_reading_are_told(tmp_path: Path) -> None:
    path = save_graph(random_graph(3), tmp_path / "graph", COUNTED)
    graph_of(path)
    arrays = path / "graph.safetensors"
    arrays.write_bytes(arrays.read_bytes()[:-4] + b"\xff\xff\xff\x00")
    with pytest.raises(DaariError, match="altered"):
        graph_of(path)
