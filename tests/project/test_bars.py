"""Every bar moves while its units are at work, reaches the total that it announced, and never goes beyond."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from graphs import Compiled, write_rows

from daari_mlx.batch.generate import batch_generate
from daari_mlx.compile import answers, batches, cluster, extract
from daari_mlx.compile.compiler import compile_graph
from daari_mlx.compile.options import ExtractOptions
from daari_mlx.compile.workdir import Workdir
from daari_mlx.cost import probe
from daari_mlx.cost.curves import CURVES
from daari_mlx.ground import progress
from daari_mlx.measure.batch_bench import run_batch_bench
from daari_mlx.measure.bench import run_bench
from daari_mlx.measure.comparison import compare_drafters
from daari_mlx.measure.streams import record
from daari_mlx.teacher.load import Teacher
from daari_mlx.teacher.ranks import Alone
from daari_mlx.text.data import Prompt, read_prompts, read_sequences
from daari_mlx.tier.choice import Measured
from daari_mlx.tier.make import agreement, make_tier
from daari_mlx.tier.options import TierOptions

TOKENS = 12


class Recorded(progress.Bar):
    """A bar that keeps where it stood."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.stood: list[float] = [0.0]
        self.announced = [self.total]

    def _move(self, to: float) -> None:
        assert self.total is None or to <= self.total + 1e-6, "beyond its total"
        super()._move(to)
        self.stood.append(self.n)

    def expect(self, units: float) -> None:
        super().expect(units)
        self.announced.append(self.total)

    def close(self, *, finished: bool = True) -> None:
        self.reached = self.n
        super().close(finished=finished)


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Recorded]]:
    """The bars of a test, by what they say."""
    found: dict[str, Recorded] = {}
    plain, all_of_them = progress.Bar, []

    def recorded(drawn: Any, items: Any) -> progress.Bar:
        if drawn.disable:
            return plain(drawn, items)
        found[drawn.desc] = made = Recorded(drawn, items)
        all_of_them.append((drawn.desc, made))
        return made

    monkeypatch.setattr(progress, "Bar", recorded)
    yield found
    for name, shown in all_of_them:
        assert shown.stood == sorted(shown.stood), f"{name} goes back"
        if shown.total is not None and name != "held-out answers":  # these end early where there are few
            assert shown.reached == pytest.approx(shown.announced[-1]), f"{name} does not reach its total"


@pytest.fixture
def teacher(compiled: Compiled) -> Teacher:
    return compiled.teacher  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "test.jsonl"
    write_rows(path, 7, seed=91)
    return path


@pytest.fixture
def prompts(teacher: Teacher, data: Path) -> list[Prompt]:
    return read_prompts(data, teacher.tokenizer).items[:3]


def test_measuring_the_cost(bars: dict[str, Recorded], teacher: Teacher) -> None:
    probe.measure(teacher.model, rows=(1, 2, 4), repeats=2, context=20, longer=(30, 40))
    (shown,) = bars.values()
    assert shown.announced == [1 + 9 + 1, 11 + 1 + 9, 21 + 1 + 9]
    assert len(shown.stood) == 1 + 31


@pytest.mark.parametrize("alone", [False, True])
def test_the_teachers_answers(alone: bool, bars: dict[str, Recorded], teacher: Teacher, prompts: list[Prompt]) -> None:
    ids = [prompt.tokens for prompt in prompts]
    with progress.bar(total=3, desc="answers", unit="prompt") as shown:
        if alone:
            found = [answers._answer_alone(teacher, prompt, TOKENS, shown) for prompt in ids]
        else:
            found = answers._answer(teacher, ids, [TOKENS] * len(ids), shown)
    assert bars["answers"].announced == [3] and len(bars["answers"].stood) >= sum(map(len, found))


def test_a_benchmark(bars: dict[str, Recorded], compiled: Compiled, prompts: list[Prompt]) -> None:
    found = run_bench(compiled.teacher, compiled.graph, prompts, max_tokens=TOKENS, num_draft_tokens=4)
    shown = bars["benchmark"]
    assert shown.announced == [2 + 2 * len(prompts)]
    assert len(shown.stood) > 2 * sum(row.tokens for row in found.rows)


def test_streams_and_their_replay(bars: dict[str, Recorded], compiled: Compiled, prompts: list[Prompt]) -> None:
    streams = record(compiled.teacher, prompts, ["final"], TOKENS)
    assert bars["streams"].announced == [3]
    assert len(bars["streams"].stood) > sum(len(item.answer) for item in streams.items)
    compare_drafters(streams, compiled.graph, ["lookup", "graph"], [CURVES["linear"]])
    assert bars["replay"].announced == [6] and len(bars["replay"].stood) == 7


def test_many_answers_at_once(bars: dict[str, Recorded], compiled: Compiled, prompts: list[Prompt]) -> None:
    model, tokenizer = compiled.teacher.model, compiled.teacher.tokenizer
    ids = [prompt.tokens for prompt in prompts]
    batch_generate(model, tokenizer, ids, graph=compiled.graph, max_tokens=TOKENS, num_draft_tokens=1, verbose=True)
    assert bars["answers"].announced == [3] and len(bars["answers"].stood) > 4
    run_batch_bench(compiled.teacher, compiled.graph, prompts, [1, 2], max_tokens=TOKENS, num_draft_tokens=4)
    assert bars["one at a time"].announced == [3] and len(bars["one at a time"].stood) > 6
    assert bars["benchmark"].announced == [6]


class OneOfTwo(Alone):
    """Rank 0 of two; what the other one makes comes from a finished run."""

    size = 2

    def __init__(self, own: Path, finished: Path) -> None:
        self._own, self._finished = own, finished

    def mine(self, paths: list[Path]) -> list[int]:
        return super().mine(paths)[::2]

    def gather(self, paths: list[Path], *, everyone: bool = False) -> None:
        for path in paths:
            there = self._finished / path.relative_to(self._own)
            if not path.exists() and there.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(there, path)


def test_extracting_alone_and_as_one_of_several(
    bars: dict[str, Recorded], teacher: Teacher, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extract, "PART", 2)
    monkeypatch.setattr(batches, "ROWS", 1)
    monkeypatch.setattr(extract, "SAMPLE_STATES", 60)
    monkeypatch.setattr(extract, "remove", lambda _: None)  # the other rank's are taken from here
    rows, options = read_sequences(data, teacher.tokenizer).items, ExtractOptions(dimensions=8)
    extract.extract(teacher, rows, Workdir(tmp_path / "one"), options)
    tokens = sum(len(row.tokens) for row in rows)
    assert bars["states"].announced[0] == bars["states"].reached == tokens
    assert len(bars["states"].stood) > 1 + -(-len(rows) // 2), "it moves within a shard"
    crew = OneOfTwo(tmp_path / "two", tmp_path / "one")
    extract.extract(teacher, rows, Workdir(tmp_path / "two"), options, crew)
    assert 0 < bars["states, rank 0 of 2"].reached < tokens


def test_compiling(bars: dict[str, Recorded], compiled: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "FEW_NODES", 8)
    compile_graph(compiled.workdir, nodes=32)
    assert bars["placing nodes"].announced == [cluster.MANY_STEPS * 2]
    assert {"nodes", "calibration", "held-out answers"} <= set(bars)
    assert bars["held-out answers"].reached > 0


def test_reading_rows(bars: dict[str, Recorded], teacher: Teacher, data: Path) -> None:
    read_prompts(data, teacher.tokenizer)
    assert bars["reading test.jsonl"].reached == 7


def test_leaving_layers_out_counts_answers(teacher: Teacher, compiled: Compiled) -> None:
    told: list[None] = []
    found = agreement(teacher.model, compiled.sequences[:3], lambda: told.append(None))
    assert isinstance(found, Measured) and len(told) == 3


@pytest.mark.parametrize("layers", [0, 1, "auto"])
def test_leaving_layers_out_counts_tries_towards_an_end(
    bars: dict[str, Recorded],
    teacher: Teacher,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    layers: int | Literal["auto"],
) -> None:
    monkeypatch.setattr("daari_mlx.cost.machine.measured_cost", lambda _: CURVES["linear"].cost)
    monkeypatch.setattr("daari_mlx.tier.make.measure_draft_cost", lambda *_: 0.2)
    prompts = read_prompts(data, teacher.tokenizer).items[:2]
    make_tier(teacher, prompts, tmp_path / "tier", TierOptions(max_tokens=6, group_size=32, drop_layers=layers))
    bar = bars["trying which layers to leave out"]
    assert bar.announced[0] == 1 if layers == 0 else bar.announced[0] and bar.announced[0] > 1
    assert None not in bar.announced and len(bar.stood) > bar.reached + 1, "it moves within a try"


def test_a_bar_that_stands_beyond_its_total_would_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "Bar", Recorded)
    with pytest.raises(AssertionError, match="beyond"), progress.bar(total=2, desc="d", unit="u") as shown:
        shown.update(np.int64(3).item())
