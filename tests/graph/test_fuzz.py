"""Three hundred of the hostile graphs that ``scripts/bench/bench_fuzz.py`` makes by the thousand, and its counting."""

from __future__ import annotations

import json
import random
import tracemalloc
from pathlib import Path
from typing import Any

import graphs  # it puts scripts on the path
import mlx.core as mx
import pytest
from bench_fuzz import BESIDES, DRAFTED, REFUSED, Outcome, main, record_of, run_case, sound_files, write
from mutate_graph import DTYPES, MUTATIONS, join, mutate, resealed, split

from daari_mlx.graph import artifact
from daari_mlx.graph.artifact import ARRAYS, CONFIG, save_graph
from daari_mlx.ground.errors import DaariError
from daari_mlx.share.find import load_graph

CASES, SEED = 300, 1


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[Outcome]:
    folder = tmp_path_factory.mktemp("fuzz")
    sound = sound_files(folder / "sound")
    tracemalloc.start()
    try:
        return [run_case(number, SEED, sound, folder / "case") for number in range(CASES)]
    finally:
        tracemalloc.stop()


def test_each_ends_in_a_clear_error_or_a_graph_that_drafts_within_its_memory(outcomes: list[Outcome]) -> None:
    assert [o for o in outcomes if not o.ok] == []
    ends = [o.end for o in outcomes]
    assert ends.count(REFUSED) > CASES / 2 and ends.count(DRAFTED) > 5, "some damage does no harm"
    kinds = {o.damage.removesuffix(", resealed") for o in outcomes}
    assert kinds == set(MUTATIONS)


def test_every_damage_can_be_made_of_every_sound_graph(tmp_path: Path) -> None:
    for sound in sound_files(tmp_path / "sound"):
        for name in MUTATIONS:
            made = [MUTATIONS[name](dict(sound), random.Random(seed)) for seed in range(3)]
            assert any(files != sound for files in made), name
    same = [mutate(sound, random.Random(7)) for _ in range(2)]
    assert same[0] == same[1], "a case can be run again"


def test_a_failure_is_counted_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = mx.zeros(64 << 20, dtype=mx.uint8)  # what MLX holds besides is not the case's, nor does it hide anything
    mx.eval(others)
    sound = sound_files(tmp_path / "sound")
    tracemalloc.start()
    try:
        monkeypatch.setattr("bench_fuzz.load_graph", lambda path: [0] * 4_000_000)
        greedy = [run_case(n, SEED, sound, tmp_path / "case") for n in range(3)]
        monkeypatch.setattr("bench_fuzz.load_graph", lambda path: 1 / 0)
        broken = run_case(0, SEED, sound, tmp_path / "case")
    finally:
        tracemalloc.stop()
    assert broken.end.startswith("ZeroDivisionError") and not broken.ok
    assert any(o.peak > 10 * o.size + BESIDES and not o.ok for o in greedy)
    record = record_of([broken, Outcome("cut", REFUSED, 100, 10, 0.1)], SEED)
    assert record["outcomes"] == {"failed": 1, REFUSED: 1} and not record["ok"] and len(record["failures"]) == 1


def test_the_command_runs_in_a_child_and_writes_its_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "fuzz.jsonl"
    assert main(["12", "--out", str(out)]) == 0
    record = json.loads(out.read_text())
    assert record["cases"] == 12 == sum(record["outcomes"].values()) and record["ok"] and record["failures"] == []
    assert record == json.loads(capsys.readouterr().out)


def test_an_array_that_is_a_single_number_is_refused_whichever_it_is(tmp_path: Path) -> None:
    sound = sound_files(tmp_path / "sound")[0]
    header, data = split(sound[ARRAYS])
    for name in sorted(set(header) - {"__metadata__"}):
        entry = header[name]
        width = DTYPES[entry["dtype"]]
        scalar = {**entry, "shape": [], "data_offsets": [len(data), len(data) + width]}
        made = join({**header, name: scalar}, data + b"\0" * width)
        write(resealed({**sound, ARRAYS: made}), tmp_path / "case")
        with pytest.raises(DaariError, match=f"{name} is "):
            load_graph(tmp_path / "case")


@pytest.mark.parametrize("name", [CONFIG, ARRAYS])
def test_json_that_would_grow_in_memory_is_not_read(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three bytes of it can take sixty: what is far larger than any graph's is refused unread."""
    folder = save_graph(graphs.random_graph(3), tmp_path / "graph", {})
    read: list[Any] = []
    loads = json.loads
    monkeypatch.setattr(artifact.json, "loads", lambda text: read.append(len(text)) or loads(text))
    text = b'{"a":[' + b"[]," * 200_000 + b"0]}"
    content = len(text).to_bytes(8, "little") + text + b"\0" * 4_000_000 if name == ARRAYS else text
    (folder / name).write_bytes(content)
    with pytest.raises(DaariError, match=r"header has \d+ bytes|has \d+ bytes; none"):
        load_graph(folder)
    assert max(read, default=0) < 10_000
