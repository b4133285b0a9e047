"""The demo and the overhead script run from end to end on small inputs."""

from __future__ import annotations

import json

import bench_overheads
import pytest
import run_demo

from daari_mlx.cost import machine
from daari_mlx.cost.length import MAX_DRAFT, Cost


@pytest.fixture
def demo(tiny_teacher_path, tmp_path, monkeypatch):
    """Run the demo on the tiny teacher and return its exit status; T(m) is given, since measuring it takes seconds."""
    monkeypatch.setenv("DAARI_MLX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(machine, "measured_cost", lambda _: Cost((1, 33), (1.0, 2.0)))

    def run(*options: str) -> int:
        return run_demo.main(["--out", str(tmp_path / "out"), "--teacher", str(tiny_teacher_path), *options])

    return run


def test_the_demo_leaves_a_graph_a_record_and_a_plot_and_keeps_the_graph(demo, tmp_path, capsys):
    assert demo("--rows", "12", "-n", "2") == 0
    out, told = tmp_path / "out", capsys.readouterr().out
    found = json.loads((out / "record.json").read_text())
    assert found["n"] == 2 and found["ok"] and found["overlap"] == 0
    assert (out / "acceptance.png").stat().st_size > 5000
    assert "$ daari-mlx compile --model" in told and "$ daari-mlx bench --model" in told
    assert "2 of 2 answers have the tokens of plain mlx-lm" in told and "kept" not in told
    assert found["command"].startswith("daari-mlx bench --model") and found["command"] in told

    (arrays,) = out.glob("*/graph/graph.safetensors")
    before = arrays.stat().st_mtime_ns
    assert demo("--rows", "12", "-n", "2") == 0
    assert "compiled from the same prompts and teacher: kept" in capsys.readouterr().out
    assert arrays.stat().st_mtime_ns == before

    assert demo("--rows", "13", "-n", "1") == 0
    assert "kept" not in capsys.readouterr().out


def test_prompts_to_time_are_not_among_those_compiled():
    texts = run_demo.make_texts(40, 8)
    train, test = (texts[name].splitlines() for name in ("train", "test"))
    assert (len(train), len(test)) == (40, 8)
    assert not set(train) & set(test)
    turns = json.loads(test[0])["messages"]
    assert [turn["role"] for turn in turns] == ["system", *["user", "assistant"] * 3, "user"]


def test_a_bad_option_is_one_line_and_status_1(demo, capsys):
    assert demo("--rows", "0") == 1
    assert capsys.readouterr().err == "error: --rows is 0 and -n is 30: both need at least 1.\n"


def test_a_folder_without_a_teacher_is_an_error(tmp_path, capsys):
    assert run_demo.main(["--out", str(tmp_path), "--teacher", str(tmp_path / "none"), "--rows", "2", "-n", "1"]) == 1
    assert "error: There is no model at" in capsys.readouterr().err


def test_made_up_graphs_are_sound_and_walk_to_the_limit():
    graph = bench_overheads.made_up_graph(64, 32)
    assert {len(graph.follow(node, MAX_DRAFT)[0]) for node in range(64)} == {MAX_DRAFT}


def test_overheads_are_one_json_object_a_line(monkeypatch, capsys):
    monkeypatch.setattr(bench_overheads, "SHAPES", ((64, 32),))
    monkeypatch.setattr(bench_overheads, "SWEPT_BYTES", 1 << 10)
    bench_overheads.main(["--json", "--repeats", "3"])
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(r["what"], r["cold"]) for r in records] == [
        ("walk", False),
        ("walk", True),
        ("re-anchor", False),
        ("re-anchor", True),
    ]
    assert all(0 < r["lower"] <= r["median"] <= r["upper"] <= r["most"] for r in records)
    assert all(r["nodes"] == 64 and r["hidden_size"] == 32 and r["n"] == 3 for r in records)
