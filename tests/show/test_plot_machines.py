"""The picture of machines: what was found there beside what was predicted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from daari_mlx.cli.main import app
from daari_mlx.cost.curves import CURVES
from daari_mlx.ground.errors import DaariError
from daari_mlx.show.plots import plot_machines
from daari_mlx.show.plots.machines import HERE, draw_batches, draw_costs, draw_machines, legend_of
from daari_mlx.show.plots.style import DARK, LIGHT

pytest.importorskip("matplotlib")


def record(device: str = "Apple M9", here: float | None = 3.3) -> dict[str, Any]:
    """A made-up machine: 3 times as fast where 3.3 times was predicted, slower than mlx-lm in batches of 16."""
    predicted = {name: {"speedup": 2.0 + k, "tokens_per_forward": 5.0} for k, name in enumerate(CURVES)}
    return {
        "device": device,
        "model": {"name": "some/model-4bit"},
        "probe": {"rows": [1, 2, 33, 40], "seconds": [0.02, 0.03, 0.08, 0.2]},
        "predicted": predicted | ({} if here is None else {HERE: {"speedup": here, "tokens_per_forward": 5.0}}),
        "single": {"n": 24, "decode_ratio": {"median": 3.0, "lower": 2.5, "upper": 3.5}},
        "batched": {"sizes": [{"rows": 4, "decode_ratio": 2.0}, {"rows": 16, "decode_ratio": 0.9}]},
    }


@pytest.fixture
def axes() -> Any:
    from matplotlib.figure import Figure

    return Figure().subplots()


def test_a_machine_has_its_measurement_its_prediction_and_each_projection(axes: Any) -> None:
    draw_machines(axes, [record(), record("Some Xeon", None)], ["one", "two"], LIGHT)
    drawn = {(line.get_label(), *line.get_ydata()): list(line.get_xdata()) for line in axes.lines}
    assert drawn["measured", 0] == [3.0] and drawn["predicted for it", 0] == [3.3]
    assert ("predicted for it", 1) not in drawn and drawn["measured", 1] == [3.0]
    assert all(drawn[f"by {name}", row] == [2.0 + k] for row in (0, 1) for k, name in enumerate(CURVES))
    told = [text.get_text() for text in axes.texts]
    assert told == ["one", "3.00x (2.50–3.50)\npredicted 3.30x (+10%)", "two", "3.00x (2.50–3.50)"]
    assert list(legend_of(axes)) == ["measured", "predicted for it", *(f"by {name}" for name in CURVES)]


def test_costs_are_in_forwards_over_one_token_up_to_the_longest_draft(axes: Any) -> None:
    draw_costs(axes, [record()], LIGHT)
    *published, own = axes.lines
    assert len(published) == len(CURVES)
    assert own.get_xydata().tolist() == [[1, 1], [2, pytest.approx(1.5)], [33, pytest.approx(4)]]


def test_batches_that_lose_are_told_in_the_colour_of_what_lost(axes: Any) -> None:
    draw_batches(axes, [record()], ["one"], LIGHT)
    assert axes.lines[0].get_xydata().tolist() == [[4, 2.0], [16, 0.9]]
    assert {text.get_text(): text.get_color() for text in axes.texts} == {"2.00": LIGHT.ink, "0.90": LIGHT.bad}


@pytest.mark.parametrize("dark", [False, True])
def test_the_command_draws_records_as_they_lie_in_results(tmp_path: Path, dark: bool) -> None:
    for name, device in (("one", "Apple M9"), ("two", "Apple M9"), ("three", "Some Xeon")):
        (tmp_path / f"{name}.json").write_text(json.dumps(record(device), indent=2))
    out = tmp_path / "machines.svg"
    words = ["plot", "machines", *map(str, sorted(tmp_path.glob("*.json"))), "--out", str(out)]
    result = CliRunner().invoke(app, [*words, *(["--dark"] if dark else [])])
    assert result.exit_code == 0, (result.stderr, result.exception)
    text = out.read_text()
    assert (DARK if dark else LIGHT).ground in text
    assert "Apple M9, model-4bit (1)" in text and "Some Xeon, model-4bit" in text and "n = 72 answers" in text


def test_what_is_no_record_of_a_machine_is_refused(tmp_path: Path) -> None:
    for given, told in (
        ([], "no record of a machine"),
        ({"n": 3}, r"no device, .*\(it has n\): give one that scripts/record"),
    ):
        with pytest.raises(DaariError, match=told):
            plot_machines(given, tmp_path / "none.png")
    (tmp_path / "lines.json").write_text("{}\n{}\n")
    for name in ("lines.json", "absent.json"):
        result = CliRunner().invoke(app, ["plot", "machines", str(tmp_path / name), "--out", str(tmp_path / "no.png")])
        assert result.exit_code == 1 and "record of a machine" in result.stderr
    assert not list(tmp_path.glob("*.png"))
