"""``bench --save-streams`` and ``bench --replay``: recorded by the teacher, compared without it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from graphs import write_rows
from test_cli import failed, run

from daari_mlx.cost.curves import CURVES
from daari_mlx.ground.errors import DaariError
from daari_mlx.measure.comparison import choose_drafters, compare_drafters
from daari_mlx.measure.streams import load_streams


@pytest.fixture(scope="module")
def streams(compiled: Any, tiny_teacher_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Streams that the command recorded, on prompts that the graph has not seen."""
    folder = tmp_path_factory.mktemp("recorded")
    write_rows(folder / "test.jsonl", 6, seed=91)
    path = folder / "streams.safetensors"
    args = ["--model", tiny_teacher_path, "--data", folder, "-n", "4", "-m", "30", "--save-streams", path]
    result = run("bench", *args, "--stream-layer", "final", "--stream-layer", "0")
    assert result.exit_code == 0, result.output
    return path


def test_streams_are_recorded_as_asked(streams: Path) -> None:
    found = load_streams(streams)
    assert (len(found.items), found.layers, found.max_tokens) == (4, ["final", 0], 30)
    assert all(0 < len(s.answer) <= 30 for s in found.items)


def test_every_drafter_and_curve_has_a_row(compiled: Any, streams: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    result = run("bench", "--replay", streams, "--graph", compiled.path, "--json", "--out", out)
    assert result.exit_code == 0, result.output
    record = json.loads(out.read_text())
    drafters = choose_drafters("all")
    assert [(r["curve"], r["drafter"]) for r in record["results"]] == [(c, d) for c in CURVES for d in drafters]
    tokens = sum(len(s.answer) for s in load_streams(streams).items)
    assert {r["tokens"] for r in record["results"]} == {tokens}
    for curve in CURVES:
        rows = {r["drafter"]: r for r in record["results"] if r["curve"] == curve}
        assert max(rows.values(), key=lambda r: r["speedup"])["drafter"] == "oracle"
    assert record["overlap"] == 0 and record["command"].startswith("daari-mlx")


def test_a_table_is_printed(compiled: Any, streams: Path) -> None:
    args = ["--replay", streams, "--graph", compiled.path, "--drafter", "lookup", "--device", "m3-max-4bit"]
    result = run("bench", *args)
    lines = result.stdout.splitlines()
    assert lines[0].split()[:2] == ["curve", "drafter"] and lines[1].split()[:2] == ["m3-max-4bit", "lookup"]
    assert "mlx#3863" in result.stdout and len([line for line in lines if "lookup" in line]) == 1


def test_what_cannot_be_replayed_is_refused(compiled: Any, streams: Path, tmp_path: Path) -> None:
    both = ["bench", "--replay", streams, "--graph", compiled.path]
    assert "There is no curve 'm9'" in failed(*both, "--device", "m9")
    assert "cannot be replayed" in failed(*both, "--drafter", "model")
    assert "There is no file of streams at" in failed("bench", "--replay", tmp_path / "x", "--graph", compiled.path)
    assert failed(*both, "--model", "m", code=2).startswith("Usage: ")
    assert failed("bench", "--replay", streams, code=2).startswith("Usage: ")
    assert failed("bench", "--model", "m", "--data", "d", "--drafter", "oracle", code=2).startswith("Usage: ")


@pytest.mark.parametrize(
    "option",
    ["--num-draft-tokens 4", "--seed 1", "--json-schema {}", "-n 2", "-m 9", "--split test", "--stream-layer 0"],
)
def test_an_option_that_a_replay_does_not_use_is_refused(compiled: Any, streams: Path, option: str) -> None:
    said = failed("bench", "--replay", streams, "--graph", compiled.path, *option.split(" "), code=2)
    assert "has no meaning in a --replay" in said


def test_an_option_that_goes_with_another_is_refused(compiled: Any, tiny_teacher_path: Path, tmp_path: Path) -> None:
    common = ("bench", "--model", tiny_teacher_path, "--data", "absent.jsonl")
    measured = (*common, "--graph", compiled.path)
    assert "goes with --replay" in failed(*measured, "--device", "linear", code=2)
    assert "goes with --save-streams" in failed(*measured, "--stream-layer", "0", code=2)
    for option in ("--seed 1", "--json-schema {}", "--out o", "--json", "--num-draft-tokens 4", "--drafter lookup"):
        said = failed(*common, "--save-streams", tmp_path / "s", *option.split(" "), code=2)
        assert "has no meaning with --save-streams" in said
    assert "is a folder" in failed(*common, "--save-streams", tmp_path)


def test_another_teacher_and_known_prompts_are_refused(compiled: Any, streams: Path) -> None:
    found, curves = load_streams(streams), [CURVES["linear"]]
    other = replace(found, teacher={**found.teacher, "weights": "other"})
    with pytest.raises(DaariError, match=r"differ in: weights"):
        compare_drafters(other, compiled.graph, ["lookup"], curves)
    known = compiled.sequences[0]
    key = known.identity.prompt
    seen = replace(found.items[0], tokens=known.tokens, start=known.answer_start, known_as=key)
    rows = len(known.tokens) - known.answer_start + 1
    seen = replace(seen, states={"final": seen.states["final"][:1].repeat(rows, 0)}, top=seen.top[:1].repeat(rows, 0))
    overlapping = replace(found, items=(seen,))
    with pytest.raises(DaariError, match="1 of these 1 prompts"):
        compare_drafters(overlapping, compiled.graph, ["lookup"], curves)
    assert compare_drafters(overlapping, compiled.graph, ["lookup"], curves, allow_overlap=True)["overlap"] == 1
