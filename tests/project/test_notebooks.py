"""The notebooks run from top to bottom on committed files and on one's own; what they carry is what a run shows."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
import pytest
import run_notebooks

if TYPE_CHECKING:
    from graphs import Compiled

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PNG = b"\x89PNG\r\n\x1a\n"
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)


def cells(path: Path, kind: str) -> list[str]:
    """The sources of a notebook's cells of one kind."""
    return ["".join(c["source"]) for c in json.loads(path.read_text())["cells"] if c["cell_type"] == kind]


def check_pictures(folder: Path, path: Path) -> None:
    """There is one picture for every function that draws."""
    drawn = {picture.name for picture in folder.iterdir()}
    assert drawn == set(re.findall(r'PICTURES / "(.+?)"', "".join(cells(path, "code"))))
    assert drawn and all(picture.read_bytes().startswith(PNG) for picture in folder.iterdir())


@each
def test_every_cell_runs(
    path: Path, compiled: Compiled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from IPython.core.interactiveshell import InteractiveShell

    monkeypatch.chdir(path.parent)
    monkeypatch.setenv("DAARI_MLX_GRAPH", str(compiled.path))
    monkeypatch.setenv("DAARI_MLX_PICTURES", str(tmp_path / "pictures"))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])  # a shell puts one of its own there
    shell = InteractiveShell.instance()
    shell.history_manager.enabled = False
    shell.reset()
    for source in cells(path, "code"):
        shell.run_cell(source).raise_error()
    check_pictures(tmp_path / "pictures", path)
    assert "None" not in capsys.readouterr().out


@each
def test_what_is_committed_is_what_a_run_shows(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a kernel of its own, with the files that it names itself: nothing but pixels may differ."""
    for name in run_notebooks.OWN:
        monkeypatch.delenv(name, raising=False)
    committed = nbformat.read(path, as_version=4)
    stale = f"run {run_notebooks.COMMAND}"
    assert run_notebooks.without_pixels(run_notebooks.executed(path)) == run_notebooks.without_pixels(committed), stale
    shown = [output.get("data", {}) for cell in committed.cells for output in cell.get("outputs", [])]
    assert any("image/png" in data for data in shown)


@each
def test_records_of_ones_own_do_as_well(
    path: Path, compiled: Compiled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the pages tell to give: a record of ``daari-mlx bench --out``, and a graph."""
    record = tmp_path / "mine.jsonl"
    record.write_text((ROOT / "results" / "sms_spam_tuned.jsonl").read_text().splitlines()[-1] + "\n")
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("DAARI_MLX_RECORDS", str(record))
    monkeypatch.setenv("DAARI_MLX_GRAPH", str(compiled.path))
    monkeypatch.setenv("DAARI_MLX_PICTURES", str(tmp_path / "pictures"))
    names: dict[str, Any] = {}
    for source in cells(path, "code"):
        exec(source, names)


def test_a_graph_without_held_out_answers_says_so(
    compiled: Compiled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from daari_mlx.graph.artifact import save_graph

    stats = {name: value for name, value in compiled.stats.items() if name != "held_out"}
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("DAARI_MLX_GRAPH", str(save_graph(compiled.graph, tmp_path / "graph", stats)))
    names: dict[str, Any] = {}
    for source in cells(ROOT / "notebooks" / "length.ipynb", "code"):
        exec(source, names)
    assert "compile it anew" in capsys.readouterr().out


@each
def test_each_asks_one_question_and_names_what_it_reads(path: Path) -> None:
    first, *_ = cells(path, "markdown")
    assert re.match(r"# [^\n?]+\?\n", first)
    source = cells(path, "code")[0]
    assert "DAARI_MLX_RECORDS" in source or "DAARI_MLX_GRAPH" in source
    named = re.findall(r"(?:results|examples)/[\w./-]+", source)
    assert named and all((ROOT / name).exists() for name in named), os.fspath(path)
