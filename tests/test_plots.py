"""The acceptance plot is a picture that anyone can open, whatever the record holds."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from test_bench import make_row

from daari_mlx.errors import DaariError
from daari_mlx.plots import _reliability, plot_acceptance, plot_calibration, wilson
from daari_mlx.records import BenchRecord

PNG = b"\x89PNG\r\n\x1a\n"


def record(rows: int = 3, drafts: object = 4, **changes: object) -> BenchRecord:
    return BenchRecord({"num_draft_tokens": drafts}, 1e-4, (make_row(**changes),) * rows)


@pytest.mark.parametrize(
    "records",
    [
        record(),
        [record(), record(drafts="auto", rounds=((2, 1, 2), (1, 0, 1)))],
        record(rounds=((0, 0, 1), (0, 0, 1)), drafted=0, accepted=0),
    ],
    ids=["one", "two", "nothing drafted"],
)
def test_the_plot_is_a_png(records, tmp_path):
    path = plot_acceptance(records, tmp_path / "new" / "acceptance.png")
    assert path == tmp_path / "new" / "acceptance.png"
    assert path.read_bytes().startswith(PNG)
    assert path.stat().st_size > 5000


def test_a_line_of_a_results_file_gives_the_same_picture(tmp_path):
    line = json.loads(json.dumps(record().as_dict()))
    assert (
        plot_acceptance(line, tmp_path / "a.png").read_bytes()
        == plot_acceptance(record(), tmp_path / "b.png").read_bytes()
    )


def test_different_records_give_different_pictures(tmp_path):
    one = plot_acceptance(record(), tmp_path / "one.png").read_bytes()
    other = plot_acceptance(record(rounds=((4, 0, 1), (3, 0, 1))), tmp_path / "other.png").read_bytes()
    assert one != other


def test_wilson_intervals():
    assert wilson(8, 10) == pytest.approx((0.490, 0.943), abs=1e-3)  # Wilson 1927, as published tables have it
    assert wilson(0, 10) == pytest.approx((0.0, 0.278), abs=1e-3)
    assert wilson(10, 10)[1] == 1.0
    assert wilson(0, 0) == (0.0, 1.0)


def test_importing_it_does_not_import_matplotlib():
    code = "import sys, daari_mlx.plots; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


BINS = [
    {"tokens": 0, "promised": 0.0, "right": 0.0},
    {"tokens": 10, "promised": 0.4, "right": 0.8},
    {"tokens": 1000, "promised": 0.9, "right": 0.9},
]


def test_calibration_draws_each_bin_with_its_interval_and_count():
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    _reliability(axes, {"set": "sms"}, BINS[1:])
    points = axes.lines[1].get_xydata().tolist()
    assert points == [[0.4, 0.8], [0.9, 0.9]]
    (_, low), (_, high) = axes.collections[0].get_segments()[0]
    assert (low, high) == pytest.approx(wilson(8, 10))
    assert [text.get_text() for text in axes.texts] == ["10", "1,000"]
    assert axes.get_xlabel() and axes.get_ylabel() and "sms" in axes.get_title()


def test_calibration_leaves_empty_bins_out_and_refuses_a_record_without_any(tmp_path):
    assert plot_calibration({"bins": BINS}, tmp_path / "new" / "c.png").read_bytes().startswith(PNG)
    for record in ({}, {"bins": BINS[:1]}):
        with pytest.raises(DaariError, match="reliability"):
            plot_calibration(record, tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()
