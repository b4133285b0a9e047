"""Whose states are taken: a layer that knows more is found, one that seems to by chance is not."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from graphs import write_rows
from typer.testing import CliRunner

from daari_mlx.cli.main import app
from daari_mlx.compile import extract as extract_module
from daari_mlx.compile.compiler import compile_graph
from daari_mlx.compile.extract import ExtractOptions, extract
from daari_mlx.compile.layers import AUTO, DEPTHS, LEAST, LISTENED, _anchored, _few, _gain, candidates, choose_layer
from daari_mlx.compile.shards import kept
from daari_mlx.compile.workdir import Workdir
from daari_mlx.graph.source import NO_NODE
from daari_mlx.ground.errors import DaariError
from daari_mlx.teacher.load import Teacher
from daari_mlx.teacher.tap import FINAL
from daari_mlx.text.data import Sequence, read_sequences

CLASSES, HIDDEN = 4, 16


@pytest.fixture(scope="module")
def teacher(tiny_teacher: tuple[Any, Any], tiny_teacher_path: Path) -> Teacher:
    return Teacher(*tiny_teacher, str(tiny_teacher_path))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "train.jsonl"
    write_rows(path, LEAST + 8, seed=11)
    return path


def said(count: int, seed: int = 0) -> list[Sequence]:
    """Prompts that tell nothing, and answers in one of some forms."""
    random, made = np.random.default_rng(seed), []
    for row in range(count):
        kind = int(random.integers(CLASSES))
        prompt = random.integers(100, 200, size=6).tolist()
        answer = [10, *(20 + 10 * kind + place for place in range(8)), 2]
        made.append(Sequence(prompt + answer, len(prompt), row, "made"))
    return made


class Knowing:
    """A teacher whose states know the answer's form and place in the layers of ``wise``, and are noise elsewhere."""

    def __init__(self, wise: tuple[int | str, ...], depth: int = 6) -> None:
        self.model = SimpleNamespace(layers=[None] * depth)
        self.tokenizer = SimpleNamespace(eos_token_ids={2})
        self.wise = wise
        random = np.random.default_rng(3)
        self._places = random.normal(size=(CLASSES, 40, HIDDEN), scale=5).astype(np.float32)
        self._noise = np.random.default_rng(4)

    def states_of(self, tokens: list[int], layers: list[int | str], first: int) -> dict[int | str, np.ndarray]:
        kind = (max(tokens[7:10]) - 20) // 10
        noise = self._noise.normal(size=(len(layers), len(tokens) - first, HIDDEN)).astype(np.float32)
        known = self._places[kind, first : len(tokens)]
        return {layer: known + n / 10 if layer in self.wise else 5 * n for layer, n in zip(layers, noise, strict=True)}


def test_states_of_several_layers_are_those_of_each(teacher: Teacher) -> None:
    tokens = list(range(30, 60))
    layers: list[int | str] = [FINAL, 0, 1]
    found = teacher.states_of(tokens, layers, 4)
    assert list(found) == layers
    for layer in layers:
        np.testing.assert_array_equal(found[layer], teacher.states(tokens, layer, 4))
    assert not np.allclose(found[0], found[1])


def test_a_layer_that_knows_more_is_chosen_with_its_reason() -> None:
    teacher = Knowing(wise=(3,))
    choice = choose_layer(teacher, said(120), 8, seed=0)  # type: ignore[arg-type]
    assert choice.layer == 3 and "less time" in choice.reason and choice.answers == 120
    assert {t.layer for t in choice.tried} == set(candidates(teacher))  # type: ignore[arg-type]
    best = next(t for t in choice.tried if t.layer == 3)
    assert best.gain > 2 * best.error > 0
    assert best.tokens_per_forward > 1.2 * choice.tried[0].tokens_per_forward
    assert choice.tried[0].layer == FINAL and choice.tried[0].gain == 0
    json.dumps(choice.as_json())


@pytest.mark.parametrize("wise", [(FINAL,), (FINAL, 2, 3, 4, 5), ()])
def test_final_states_stay_where_no_layer_is_surely_better(wise: tuple[int | str, ...]) -> None:
    choice = choose_layer(Knowing(wise), said(120), 8, seed=0)  # type: ignore[arg-type]
    assert choice.layer == FINAL and "no layer is better" in choice.reason


def test_few_sequences_choose_nothing() -> None:
    choice = choose_layer(Knowing((3,)), said(LEAST - 1), 8, seed=0)  # type: ignore[arg-type]
    assert choice.layer == FINAL and choice.tried == () and "too few" in choice.reason


class Overflowing(Knowing):
    """States of some layers that go beyond what their type holds, in one sequence of many."""

    def __init__(self, value: float, *, layers: tuple[int | str, ...]) -> None:
        super().__init__(wise=(3,))
        self._value, self._layers, self._read = np.float32(value), layers, 0

    def states_of(self, tokens: list[int], layers: list[int | str], first: int) -> dict[int | str, np.ndarray]:
        found = super().states_of(tokens, layers, first)
        self._read += 1
        for layer in self._layers if self._read == 7 else ():
            found[layer][-1, 3] = self._value
        return found


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_layer_whose_states_are_no_numbers_is_left_out(value: float) -> None:
    choice = choose_layer(Overflowing(value, layers=(2, 4)), said(120), 8, seed=0)  # type: ignore[arg-type]
    assert choice.layer == 3 and {t.layer for t in choice.tried}.isdisjoint({2, 4})
    with pytest.raises(DaariError, match="states of made are not all finite"):
        choose_layer(Overflowing(value, layers=(FINAL,)), said(120), 8, seed=0)  # type: ignore[arg-type]


def test_only_so_many_sequences_are_tried() -> None:
    assert _few(said(1000)) == said(LISTENED)
    long = [Sequence([5] * 4000, 10, row, "") for row in range(10)]
    assert _few(long) == long[:1]
    assert _few([Sequence([1, 2, 3], 3, 0, "")]) == [], "a prompt without an answer has nothing to draft"


@pytest.mark.parametrize("count", [1, 2, 5, 24, 80])
def test_some_layers_within_the_teacher_are_tried(count: int) -> None:
    found = candidates(Knowing((), depth=count))  # type: ignore[arg-type]
    assert found[0] == FINAL and 1 < len(found) <= 1 + len(DEPTHS) and len(set(found)) == len(found)
    assert all(isinstance(layer, int) and 0 <= layer < count for layer in found[1:])


@pytest.mark.parametrize("start", [0, 1, 2, 5])
def test_every_answer_token_has_the_node_that_its_last_but_one_chose(start: int) -> None:
    sequences = [Sequence(list(range(50, 58)), start, 0, ""), Sequence(list(range(60, 70)), 4, 1, "")]
    positions = [p for s in sequences for p in kept(s)]
    labels = np.arange(len(positions), dtype=np.int32)
    reduced = labels[:, None].astype(np.float32)
    for sequence, anchors, states in _anchored(sequences, labels, reduced):
        assert len(anchors) == len(states) == len(sequence.tokens) - sequence.answer_start
        for place, (anchor, state) in enumerate(zip(anchors, states, strict=True), sequence.answer_start):
            if place < 2:
                assert anchor == NO_NODE and state is None
            else:
                assert positions[anchor] == place - 2 and state is not None and state[0] == anchor


def test_a_gain_is_told_with_its_error() -> None:
    random = np.random.default_rng(5)
    final = random.uniform(2, 6, size=400)
    gains = []
    for _ in range(200):
        gain, error = _gain(final, final * random.normal(0.9, 0.2, size=400))
        gains.append((gain - 0.1) / error)
    assert abs(np.mean(gains)) < 0.3 and 0.8 < np.std(gains) < 1.2
    assert _gain(final, final) == (0.0, 0.0)


def test_the_chosen_layer_is_extracted_and_compiled(teacher: Teacher, data: Path, tmp_path: Path) -> None:
    sequences = read_sequences(data, teacher.tokenizer).items
    workdir = Workdir(tmp_path / "auto")
    extract(teacher, sequences, workdir, ExtractOptions(dimensions=16, layer=AUTO))
    choice = json.loads(workdir.layer_path.read_text())
    assert workdir.read_layer(AUTO) == choice["layer"] and next(t["layer"] for t in choice["tried"]) == FINAL
    compiled = compile_graph(workdir)
    assert compiled.graph.layer == choice["layer"] and compiled.stats["layer_choice"] == choice
    plain = Workdir(tmp_path / "plain")
    extract(teacher, sequences, plain, ExtractOptions(dimensions=16, layer=choice["layer"]))
    assert "layer_choice" not in compile_graph(plain).stats
    for ours, theirs in zip(workdir.read_shards(), plain.read_shards(), strict=True):
        np.testing.assert_array_equal(ours.reduced, theirs.reduced)


def test_a_choice_that_was_made_is_not_made_again(
    teacher: Teacher, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequences = read_sequences(data, teacher.tokenizer).items
    workdir = Workdir(tmp_path / "work")
    monkeypatch.setattr(extract_module, "read", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        extract(teacher, sequences, workdir, ExtractOptions(dimensions=16, layer=AUTO))
    monkeypatch.undo()
    made = workdir.layer_path.read_bytes()
    monkeypatch.setattr(extract_module, "choose_layer", lambda *_: pytest.fail("it is known"))
    extract(teacher, sequences, workdir, ExtractOptions(dimensions=16, layer=AUTO))
    assert workdir.layer_path.read_bytes() == made


def test_a_damaged_choice_is_refused(tmp_path: Path) -> None:
    workdir = Workdir(tmp_path)
    with pytest.raises(DaariError, match="choice of a layer"):
        workdir.read_layer(AUTO)
    for damage in ("[]", "{}", '{"layer": null}', "x"):
        workdir.layer_path.write_text(damage)
        with pytest.raises(DaariError):
            workdir.read_layer(AUTO)
    assert workdir.read_layer(7) == 7 and workdir.read_layer(FINAL) == FINAL


def test_the_command_line_takes_auto_where_states_are_collected_and_nowhere_else(tmp_path: Path) -> None:
    refused = CliRunner().invoke(app, ["extract", "--model", "m", "--data", "d", "--workdir", "w", "--layer", "some"])
    assert refused.exit_code == 2 and "final, auto" in refused.output
    streams = ["bench", "--model", "m", "--data", "d", "--save-streams", "s", "--layer", "auto"]
    refused = CliRunner().invoke(app, streams)
    assert refused.exit_code == 2
