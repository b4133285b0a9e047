"""A tier is a folder that mlx-lm loads, a true part of its teacher, and says what was left out and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from bench_tier import replayed
from graphs import write_rows
from typer.testing import CliRunner

from daari_mlx.cli import main as cli
from daari_mlx.cost.length import CALIBRATION_EDGES, Cost
from daari_mlx.decode.speculative import SpeculativeModel
from daari_mlx.draft.model import TIER, model_drafter
from daari_mlx.ground.errors import DaariError
from daari_mlx.measure.identity import bound_of, compare, stream_plain
from daari_mlx.measure.records import FAILED
from daari_mlx.teacher.load import Teacher, load_teacher
from daari_mlx.text.data import Sequence, read_prompts
from daari_mlx.tier.choice import replay
from daari_mlx.tier.make import TierOptions, agreement, dequantised, make_tier, quantised, read_config, weight_bytes


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "train.jsonl"
    write_rows(path, 6, seed=11)
    return path


@pytest.fixture
def quick_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time is measured: the tests ask what is chosen, given costs."""
    for name in ("measured_cost", "cost_of"):
        monkeypatch.setattr(f"daari_mlx.cost.machine.{name}", lambda _: Cost((1, 33), (1.0, 2.0)))
    for module in ("tier.make", "draft.model"):
        monkeypatch.setattr(f"daari_mlx.{module}.measure_draft_cost", lambda *_: 0.2)


@pytest.fixture
def teacher(tiny_teacher: tuple[Any, Any], tiny_teacher_path: Path) -> Teacher:
    return Teacher(*tiny_teacher, str(tiny_teacher_path))


def made(teacher: Teacher, rows: Path, out: Path, **options: Any) -> dict[str, Any]:
    prompts = read_prompts(rows, teacher.tokenizer).items
    return make_tier(teacher, prompts, out, TierOptions(group_size=32, max_tokens=24, **options))


@pytest.mark.usefixtures("quick_cost")
def test_a_tier_loads_and_agrees_as_its_record_says(teacher: Teacher, rows: Path, tmp_path: Path) -> None:
    before = weight_bytes(teacher.model)
    record = made(teacher, rows, tmp_path / "tier", drop_layers=1)
    assert weight_bytes(teacher.model) == before, "the teacher stays as it is"
    tier = load_teacher(str(tmp_path / "tier"))
    assert len(tier.model.layers) == record["layers"] == 2 and len(record["dropped"]) == 1
    assert {m.bits for _, m in tier.model.named_modules() if hasattr(m, "bits")} == {4}
    assert tier.fingerprint()["tokenizer"] == teacher.fingerprint()["tokenizer"]
    assert json.loads((tmp_path / "tier" / TIER).read_text()) == record
    chosen = record["tiers"][record["chosen"]]
    assert chosen["dropped"] == record["dropped"]
    assert chosen["weights"] == pytest.approx(weight_bytes(tier.model) / before)
    counts = record["calibration"]
    assert sum(counts["judged"]) == record["answers"]["tokens"]
    assert sum(counts["kept"]) / sum(counts["judged"]) == pytest.approx(chosen["agreement"])
    assert len(counts["kept"]) == len(CALIBRATION_EDGES) + 1
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.usefixtures("quick_cost")
def test_all_layers_may_stay(teacher: Teacher, rows: Path, tmp_path: Path) -> None:
    record = made(teacher, rows, tmp_path / "tier", drop_layers=0, bits=None)
    assert record["dropped"] == [] and record["layers"] == 3
    tier = load_teacher(str(tmp_path / "tier"))
    tokens = mx.array([[1, 5, 9, 11]])
    np.testing.assert_allclose(np.array(tier.model(tokens)), np.array(teacher.model(tokens)), rtol=1e-5, atol=1e-5)
    assert record["tiers"][0]["agreement"] == 1.0


@pytest.mark.usefixtures("quick_cost")
def test_auto_takes_the_fastest_by_the_formula(teacher: Teacher, rows: Path, tmp_path: Path) -> None:
    record = made(teacher, rows, tmp_path / "tier")
    speeds = [row["speed"] for row in record["tiers"]]
    assert record["chosen"] == speeds.index(max(speeds))
    assert [row["layers"] for row in record["tiers"]] == list(range(3, 3 - len(speeds), -1))


@pytest.mark.usefixtures("quick_cost")
def test_a_tier_drafts_for_its_teacher(teacher: Teacher, rows: Path, tmp_path: Path) -> None:
    """End to end: made, loaded, drafting with what was learnt of its probabilities, changing no word."""
    made(teacher, rows, tmp_path / "tier", drop_layers=1)
    drafter = model_drafter(load_teacher(str(tmp_path / "tier")), teacher)
    assert any(drafter.calibration(p) != p for p in (0.5, 0.9, 0.999))
    assert drafter.draft_cost == 0.2
    both = SpeculativeModel(tmp_path / "tier", teacher, block_size=4)
    plain = SpeculativeModel(teacher, teacher, block_size=4)
    answer = both.generate("Win a prize now", max_tokens=20)
    assert answer.tokens == plain.generate("Win a prize now", max_tokens=20).tokens
    with pytest.raises(DaariError, match="There is no model"):
        SpeculativeModel(tmp_path / "nothing", teacher)


def test_replayed_agreement_is_what_the_pair_does(teacher: Teacher, rows: Path) -> None:
    """The choice rests on it: passes by replay equal those of the real loop."""
    model, config = quantised(teacher.model, read_config(teacher.source), 3, 32)
    poor = Teacher(dequantised(model, config)[0], teacher.tokenizer, "poor")
    both = SpeculativeModel(poor, teacher, block_size=3)
    for prompt in read_prompts(rows, teacher.tokenizer).items[:4]:
        answer = both.generate(prompt.tokens, max_tokens=24)
        sequence = Sequence(prompt.tokens + answer.tokens, len(prompt.tokens), 0, "x")
        measured = agreement(poor.model, [sequence])
        assert replay(measured.agrees[0], 3) == answer.statistics.forwards
        assert len(measured.agrees[0]) == len(answer.tokens)
        counts, found = replayed(measured.agrees[0], 3, 24), answer.statistics
        assert (counts.tokens, counts.passes, counts.accepted) == (found.tokens, found.forwards, found.accepted)
        assert counts.drafted >= found.drafted, "a drafter may end the answer itself before the teacher does"


@pytest.mark.slow
@pytest.mark.teacher
def test_the_real_pair_end_to_end(demo_teacher: tuple[Any, Any], demo_teacher_path: Path) -> None:
    """The real teacher in 8 bits, drafted for by itself in 4: its own words, most of them drafted."""
    real = Teacher(*demo_teacher, str(demo_teacher_path))
    tiers = []
    for bits in (4, 8):
        model, config = quantised(real.model, read_config(real.source), bits, 64)
        tiers.append(Teacher(dequantised(model, config, mx.float32)[0], real.tokenizer, f"{bits} bits"))
    both = SpeculativeModel(*tiers, block_size=4)  # by itself it might find no draft worth its time here
    ids = both.encode([{"role": "user", "content": "Name the days of the week."}])
    answer = both.generate(ids, max_tokens=40)
    plain = [step.token for step in stream_plain(tiers[1], ids, 40)]
    verdict = compare(tiers[1], ids, plain, answer.tokens, 40, bound_of(mx.float32))
    assert verdict.verdict != FAILED
    assert answer.statistics.tokens_per_forward > 2
    same = SpeculativeModel(tiers[1], tiers[1]).generate(ids, max_tokens=40)
    assert same.statistics.acceptance_rate == 1.0


def test_quantised_differently_a_teacher_is_quantised_anew(teacher: Teacher) -> None:
    config = read_config(teacher.source)
    eight, known = quantised(teacher.model, config, 8, 32)
    four, found = quantised(eight, known, 4, 64)
    assert {m.bits for _, m in four.named_modules() if hasattr(m, "bits")} == {4}
    assert (found["quantization"]["bits"], found["quantization"]["group_size"]) == (4, 64)
    same, found = quantised(eight, known, 8, 32)
    assert weight_bytes(same) == weight_bytes(eight) and found["quantization"] == known["quantization"]
    assert {m.bits for _, m in eight.named_modules() if hasattr(m, "bits")} == {8}, "the twin's source stays"


@pytest.mark.parametrize(("size", "told"), [(16, "groups of 32, 64 or 128"), (7, "groups of"), (128, "no weight")])
def test_groups_that_quantise_nothing_are_refused(teacher: Teacher, size: int, told: str) -> None:
    """The tiny teacher's rows are 64 wide: groups of 128 would leave all of it as it is, without a word."""
    with pytest.raises(DaariError, match=rf"--group-size is {size}.*{told}"):
        quantised(teacher.model, read_config(teacher.source), 8, size)


@pytest.mark.usefixtures("quick_cost")
def test_an_adapter_goes_into_the_tier(
    tiny_teacher_path: Path, rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from mlx_lm.tuner.utils import linear_to_lora_layers

    teacher = load_teacher(str(tiny_teacher_path))
    linear_to_lora_layers(teacher.model, 2, {"rank": 2, "scale": 8.0, "dropout": 0.0})
    for _, module in teacher.model.named_modules():
        if hasattr(module, "lora_b"):
            module.lora_b = mx.random.normal(module.lora_b.shape)
    tokens = mx.array([[1, 5, 9, 11]])
    wanted = np.array(teacher.model(tokens))
    made(teacher, rows, tmp_path / "tier", bits=None, drop_layers=0)
    found = np.array(load_teacher(str(tmp_path / "tier")).model(tokens))
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3)
    assert capsys.readouterr().out == ""


# --- the command


def run(*args: object) -> Any:
    return CliRunner().invoke(cli.app, ["tier", *map(str, args)])


@pytest.mark.usefixtures("quick_cost")
def test_the_command_prints_agreement_against_cost(tiny_teacher_path: Path, rows: Path, tmp_path: Path) -> None:
    common = ("--model", tiny_teacher_path, "--data", rows, "--group-size", 32, "--max-tokens", 16)
    result = run(*common, "--out", tmp_path / "tier", "--drop-layers", 1)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("tier") and lines[1].startswith("on this machine"), "the verdict comes first"
    head = next(place for place, line in enumerate(lines) if line.split()[:3] == ["layers", "left", "out"])
    assert lines[head].endswith("projected speed") and lines[head + 2].endswith("<- written")
    for word in ("agreement", "tokens a pass (block 8)", "best block", "projected speed"):
        assert f"{word}: " in " ".join(lines[:head]), "a column is explained before it is read"
    assert "projected speed = tokens" in result.stdout
    assert "a drafted token costs 0.20 of a teacher's forward" in result.stdout, "one verdict, by what is measured here"
    again = run(*common, "--out", tmp_path / "tier", "--drop-layers", "auto", "--bits", "none", "--json", "--force")
    assert json.loads(again.stdout)["settings"]["bits"] is None, "another tier there is replaced"


def test_a_tier_that_costs_too_much_here_is_not_recommended() -> None:
    from daari_mlx.cli.tier import _here

    record = {"measured_draft_cost": 0.94, "speed_here": 0.8, "block_here": 1, "chosen": 0}
    record["tiers"] = [{"weights": 0.2, "speed": 1.79}]
    assert "will not pay here (0.80x)" in _here(record) and "--bits none" in _here(record)
    assert "time goes by the size of the weights, 1.79x would be expected" in _here(record)
    assert "2.00x with drafts of 4" in _here({**record, "measured_draft_cost": 0.1, "speed_here": 2.0, "block_here": 4})


def test_what_the_command_refuses(tiny_teacher_path: Path, rows: Path, tmp_path: Path) -> None:
    model = ("--model", tiny_teacher_path, "--data", rows)
    full = tmp_path / "full"
    full.mkdir()
    (full / "model.safetensors").write_text("mine")
    taken = run(*model, "--out", full)
    assert taken.exit_code == 1 and "holds other things" in taken.stderr
    assert (full / "model.safetensors").read_text() == "mine"
    assert run(*model, "--out", tmp_path / "t", "--bits", "7").exit_code == 2
    assert run(*model, "--out", tmp_path / "t", "--drop-layers", "-1").exit_code == 2
    assert run("--model", tiny_teacher_path, "--data", tmp_path / "no.jsonl", "--out", tmp_path / "t").exit_code == 1


def test_drafts_that_end_where_the_drafter_is_unsure_are_shorter_and_more_often_right() -> None:
    agrees = [True] * 5 + [False] + [True] * 4
    sure = [True] * 5 + [False] + [True] * 4
    bold, careful = replayed(agrees, 8, 100), replayed(agrees, 8, 100, sure)
    assert (bold.tokens, bold.passes, bold.drafted, bold.accepted) == (10, 2, 12, 9)
    assert (careful.tokens, careful.passes, careful.drafted, careful.accepted) == (10, 2, 9, 9)
    assert replayed(agrees, 8, 100, [False] * 10).drafted == 0


@pytest.mark.parametrize("wanted", [3, 999])
def test_more_layers_than_can_go_are_refused_before_the_teacher_answers(
    wanted: int, teacher: Teacher, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("cost.machine.measured_cost", "tier.make.answer_prompts"):
        monkeypatch.setattr(f"daari_mlx.{name}", lambda *_: pytest.fail("something was measured"))
    with pytest.raises(DaariError, match=f"--drop-layers is {wanted}: of the 3 layers of this model 2 can be left out"):
        made(teacher, rows, tmp_path / "tier", drop_layers=wanted)
    assert not (tmp_path / "tier").exists()
