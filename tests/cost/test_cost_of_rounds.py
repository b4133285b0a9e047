"""T(m) that is found out while answers go on: from a published curve, by a short look, by rounds, and kept."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from zoo import build

from daari_mlx import stream_generate
from daari_mlx.cost import machine, probe
from daari_mlx.cost.curves import CURVES, published_for
from daari_mlx.cost.length import Cost
from daari_mlx.cost.probe import QUICK_ROWS, ProbeRecord, key_of, save
from daari_mlx.cost.rounds import RoundCost


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DAARI_MLX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("start", ["linux-openblas", "m3-max-4bit"])
@pytest.mark.parametrize("truth", ["linear", "m5-max-70b-4bit", "m3-ultra-bf16"])
def test_rounds_find_the_curve_of_the_machine(start: str, truth: str) -> None:
    """Also while contexts grow, which makes all rows dearer, and with times that scatter."""
    cost, true = RoundCost(CURVES[start].cost), CURVES[truth].cost
    draw = random.Random(0)
    for number in range(400):
        rows = draw.choice((1, 2, 4, 5, 8, 12, 16))
        cost.learn(rows, 0.02 * (1 + number / 400) * true(rows) * draw.lognormvariate(0, 0.1))
    assert cost(1) == 1.0
    for rows in (2, 4, 5, 8, 12, 16):
        assert cost(rows) == pytest.approx(true(rows), rel=0.2)
    assert RoundCost(CURVES[start].cost, cost.times())(8) == cost(8), "what is kept is what is known"


def test_the_first_time_of_a_row_count_is_not_believed_and_one_more_not_all() -> None:
    cost = RoundCost(Cost((1, 9), (1.0, 2.0)))
    assert cost.at(5000) == Cost((1, 9), (1.0, 2.0)) and cost.times() == {}
    cost.learn(1, 9.0)
    assert cost.times() == {} and cost.news == 0
    cost.learn(1, 1.0)
    cost.learn(9, 50.0)
    cost.learn(9, 4.0)
    assert 2.0 < cost(9) < 4.0 and cost(5) > 1.5 and cost.news == 2
    cost.timed(9, float("inf"))
    cost.timed(9, 0.0)
    assert len(cost.times()[9]) == 1
    for times in ({9: []}, {0: [1.0]}, {9: [-1.0]}, {9: [float("nan")]}):
        with pytest.raises(ValueError, match="positive"):
            RoundCost(Cost((1,), (1.0,)), times)


def test_every_machine_has_a_curve_to_start_from() -> None:
    starts = {published_for(device, quantised) for device in ("cpu", "gpu") for quantised in (True, False)}
    assert starts <= CURVES.keys() and len(starts) > 1


def test_a_look_is_short_and_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[RoundCost] = []
    look_at = machine.look_at
    monkeypatch.setattr(machine, "look_at", lambda model, cost: (looks.append(cost), look_at(model, cost)))
    monkeypatch.setattr(probe, "measure", lambda *_, **__: pytest.fail("that takes a minute"))
    model = build("llama")
    cost = machine.cost_of(model)
    assert isinstance(cost, RoundCost) and set(cost.times()) == set(machine.LOOK_ROWS)
    assert machine.cost_of(model) is cost is machine.ready_cost(model) and looks == [cost]
    again = build("llama")
    other = machine.cost_of(again)
    assert isinstance(other, RoundCost) and other.times() == cost.times() and len(looks) == 1, "it was kept"
    slow = RoundCost(CURVES["linear"].cost)
    look_at(again, slow, seconds=-1.0)
    assert not slow.times(), "no time, no look"
    look_at(again, slow, seconds=1e-4)
    assert set(slow.times()) <= {1}, "one forward of a huge model has to do"


def test_what_is_measured_takes_its_place(folder: Path) -> None:
    model = build("llama")
    machine.ready_cost(model)
    assert machine.provisional(model) is not None and machine.measured_before(model) is None
    save(ProbeRecord(key_of(model), QUICK_ROWS, tuple(0.01 + 0.001 * m for m in QUICK_ROWS), 0.1, 256, 3))
    found = machine.cost_of(model)
    assert isinstance(found, Cost) and machine.provisional(model) is None
    assert machine.ready_cost(model) is found is machine.measured_cost(model)


@pytest.mark.parametrize("damage", ["", "{", "[]", "{}", '{"times": {"a": [1]}}', '{"times": {"1": [-1]}}'])
def test_damaged_rounds_are_begun_anew(folder: Path, damage: str) -> None:
    model = build("llama")
    machine.cost_of(model)
    (kept,) = (folder / "rounds").iterdir()
    kept.write_text(damage)
    found = machine.ready_cost(build("llama"))
    assert isinstance(found, RoundCost) and found.times() == {}


def test_rounds_of_an_answer_are_timed_and_kept(tiny_teacher_path: Path, folder: Path) -> None:
    from mlx_lm import load

    from daari_mlx.draft.lookup import LookupDrafter

    model, tokenizer = load(str(tiny_teacher_path))  # one that nobody has timed yet
    cost = machine.ready_cost(model)
    assert isinstance(cost, RoundCost)
    drafter = LookupDrafter(cost=cost)
    ids = tokenizer.encode("Lunch at noon? Lunch at noon? Lunch at noon? Lunch at")
    for _ in range(3):
        list(stream_generate(model, tokenizer, ids, 60, drafter=drafter))
    assert set(cost.times()) & set(range(1, 34)) and list((folder / "rounds").iterdir())
    assert all(t > 0 for times in cost.times().values() for t in times)
