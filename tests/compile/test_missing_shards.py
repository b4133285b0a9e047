"""A finished extraction that lost a shard is no finished extraction: compile says so, extract makes it again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphs import full_graph

from daari_mlx.compile import extract as extract_module
from daari_mlx.compile.compiler import compile_graph
from daari_mlx.compile.extract import ExtractOptions, extract
from daari_mlx.compile.update import update_graph
from daari_mlx.compile.workdir import Workdir
from daari_mlx.graph.nodes import Nodes
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.files import load_arrays, save_arrays
from daari_mlx.teacher.load import Teacher
from daari_mlx.text.data import Sequence

OPTIONS = ExtractOptions(dimensions=8)


@pytest.fixture
def filled(tiny_teacher: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any, Workdir]:
    """A teacher, 6 sequences and the finished extraction of them: 3 shards, the first of them the fitted sample."""
    monkeypatch.setattr(extract_module, "PART", 2)
    monkeypatch.setattr(extract_module, "SAMPLE_STATES", 10)
    teacher = Teacher(*tiny_teacher, "tiny")
    sequences = [Sequence([5 + n, 20, 30, 40, 50, 60, 70 + n, 2], 2, n, f"made up:{n}") for n in range(6)]
    workdir = Workdir(tmp_path / "work")
    extract(teacher, sequences, workdir, OPTIONS)
    return teacher, sequences, workdir


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_lost_shard_is_refused_and_made_again(filled: tuple[Any, Any, Workdir], lost: int) -> None:
    teacher, sequences, workdir = filled
    path = workdir.shard_path(lost)
    before = path.read_bytes()
    path.unlink()
    with pytest.raises(DaariError, match=rf"lacks {path.name}: extract again"):
        compile_graph(workdir, nodes=2)
    extract(teacher, sequences, workdir, OPTIONS)
    assert path.read_bytes() == before
    assert compile_graph(workdir, nodes=2).stats["sequences"] == 6


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("number", [0, 2])
def test_a_shard_with_states_that_are_no_numbers_is_refused(
    filled: tuple[Any, Any, Workdir], value: float, number: int
) -> None:
    teacher, sequences, workdir = filled
    path = workdir.shard_path(number)
    before, arrays = path.read_bytes(), load_arrays(path)
    reduced = arrays["reduced"].copy()
    reduced[1, 3] = value
    save_arrays(path, {**arrays, "reduced": reduced})
    graph = replace(full_graph(), teacher=teacher.fingerprint())
    nodes = Nodes(workdir.read_projection(), np.zeros((1, OPTIONS.dimensions), np.float32))
    for make in (
        lambda: compile_graph(workdir, nodes=2),
        lambda: update_graph(replace(graph, nodes=nodes), workdir),
    ):
        with pytest.raises(DaariError, match=rf"{path.name} is damaged: it holds states that are not finite. Remove"):
            make()
    path.unlink()
    extract(teacher, sequences, workdir, OPTIONS)
    assert path.read_bytes() == before


def test_stray_files_are_not_taken_for_shards(filled: tuple[Any, Any, Workdir]) -> None:
    _, _, workdir = filled
    states = compile_graph(workdir, nodes=2).stats["states"]
    stray = workdir.shard_path(0).with_name("00000.safetensors.partial.safetensors")
    stray.write_bytes(workdir.shard_path(0).read_bytes())
    assert compile_graph(workdir, nodes=2).stats["states"] == states


@pytest.mark.parametrize("count", ["null", "-1", '"3"', "true"])
def test_a_damaged_count_is_told(filled: tuple[Any, Any, Workdir], count: str) -> None:
    _, _, workdir = filled
    workdir.done_path.write_text(f'{{"sequences": 6, "tokens": 48, "shards": {count}, "seconds": {{}}}}')
    with pytest.raises(DaariError, match="is damaged: it counts"):
        compile_graph(workdir, nodes=2)
