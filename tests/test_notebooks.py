"""The notebooks run from top to bottom on a small record, and carry no outputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_plots import record

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_every_cell_runs(path: Path, tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").write_text(json.dumps({"commit": None, **record().as_dict()}) + "\n")
    cells = [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"]
    names: dict[str, Any] = {}
    for number, cell in enumerate(cells):
        exec("".join(cell["source"]), names)
        if number == 0:  # the cell that names what is read and written
            names.update(RESULTS=tmp_path / "records.jsonl", PICTURE=tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 5000


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_outputs_are_stripped(path: Path) -> None:
    for cell in json.loads(path.read_text())["cells"]:
        assert not cell.get("outputs") and cell.get("execution_count") is None
