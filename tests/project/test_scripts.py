"""Scripts live: each finds what it imports, and what it imports is where the package keeps it now."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import recording

SCRIPTS = Path(recording.__file__).parents[1]
FILES = sorted(path for folder in (SCRIPTS, SCRIPTS / "bench") for path in folder.glob("*.py"))
NEEDS = {"gguf_teacher": "gguf", "fetch_demo_teacher": "gguf"}  # what comes with an extra


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_script_finds_what_it_imports(path: Path) -> None:
    if path.stem in NEEDS:
        pytest.importorskip(NEEDS[path.stem])
    module = importlib.import_module(path.stem)
    assert Path(str(module.__file__)) == path and module.__doc__


def test_a_record_says_who_made_it_where_and_is_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["scripts/bench/bench_x.py", "two words"])
    whole: dict[str, Any] = recording.origin()
    assert whole["command"] == "python scripts/bench/bench_x.py 'two words'"
    assert {"commit", "device", "versions", "blas"} < set(whole)
    short = recording.origin(*recording.SHORT)
    assert set(short) == {"command", *recording.SHORT}
    out = tmp_path / "new" / "lines.jsonl"
    for number in (1, 2):
        recording.tell({"n": number, "word": "ದಾರಿ", **short}, out)
    recording.tell({"n": 3})
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["n"] for line in said] == [1, 2, 3]
    assert [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()] == said[:2]
