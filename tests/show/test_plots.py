"""Pictures show what records and graphs hold, and say what is wrong with one that holds nothing to show."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from test_bench import make_row
from typer.testing import CliRunner

from daari_mlx.cli import main as cli
from daari_mlx.cost.curves import CURVES, Curve
from daari_mlx.cost.length import Cost
from daari_mlx.graph.outlook import HeldOut, Outlook, Promise
from daari_mlx.ground.errors import DaariError
from daari_mlx.measure.forecast import go_through, go_through_fixed
from daari_mlx.measure.records import BenchRecord
from daari_mlx.show import plots
from daari_mlx.show.plots import plot_acceptance, plot_calibration, plot_length, plot_speed, wilson
from daari_mlx.show.plots.acceptance import draw_positions, draw_sizes, draw_sources
from daari_mlx.show.plots.calibration import bins_of, draw_reliability
from daari_mlx.show.plots.length import draw_speedup, draw_tokens, tokens_point
from daari_mlx.show.plots.records import names_of
from daari_mlx.show.plots.speed import draw_ratios, dress
from daari_mlx.show.plots.style import DARK, LIGHT, check_picture, distinct

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
    code = "import sys, daari_mlx.show.plots; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


BINS = [
    {"tokens": 0, "promised": 0.0, "right": 0.0},
    {"tokens": 10, "promised": 0.4, "right": 0.8},
    {"tokens": 1000, "promised": 0.9, "right": 0.9},
]
HELD_OUT = Outlook((HeldOut(10, (Promise((0.9,) * 6, 4),) * 30), HeldOut(10, (Promise((0.3, 0.3), 0),) * 20)))
STEEP = Curve("steep", Cost((1, 4), (1.0, 4.0)), "made up")


@pytest.fixture
def axes():
    from matplotlib.figure import Figure

    return Figure().subplots()


def test_positions_draw_one_line_a_record_named_and_of_a_lone_one_the_counts(axes):
    line = record().as_dict()
    draw_positions(axes, [line], ["mine"], LIGHT)
    assert axes.lines[0].get_ydata().tolist() == [
        a / d for a, d in zip(line["positions"]["accepted"], line["positions"]["drafted"], strict=True)
    ]
    assert axes.lines[0].get_label().startswith("mine: ")
    assert [text.get_text() for text in axes.texts] == [f"{n:,}" for n in line["positions"]["drafted"]]
    assert axes.get_ylim()[0] == 0 and axes.get_yticks().tolist()[-1] == 1 and axes.get_xlabel() and axes.get_ylabel()


def test_sizes_fall_from_all_forwards_to_none_and_show_the_mean(axes):
    draw_sizes(axes, [record().as_dict()], LIGHT)  # a row emits 4, 3 and 1
    assert axes.lines[0].get_ydata().tolist() == pytest.approx([1, 2 / 3, 2 / 3, 1 / 3, 0])
    assert axes.lines[1].get_label() == "mean 2.67"


def test_sources_fill_each_bar_and_end_with_the_teacher(axes):
    lines = [record().as_dict(), record(sources={"copy": 1, "teacher": 7}).as_dict()]
    draw_sources(axes, lines, ["a", "b"], DARK)
    assert [label.get_text() for label in axes.get_legend().get_texts()] == ["edge", "copy", "the teacher's own"]
    for row in range(2):
        assert sum(bars[row].get_width() for bars in axes.containers) == pytest.approx(1)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a (24)", "b (24)"]


def test_calibration_draws_each_bin_with_its_interval_and_count(axes):
    draw_reliability(axes, bins_of({"bins": BINS}), "sms", LIGHT)
    assert axes.lines[1].get_xydata().tolist() == [[0.4, 0.8], [0.9, 0.9]]
    (_, low), (_, high) = axes.collections[0].get_segments()[0]
    assert (low, high) == pytest.approx(wilson(8, 10))
    assert [text.get_text() for text in axes.texts] == ["10", "1,000"]
    assert axes.get_xlabel() and axes.get_ylabel() and "sms" in axes.get_title()


def test_calibration_reads_counts_of_held_out_answers_as_shares():
    assert bins_of(HELD_OUT) == [(pytest.approx(0.3), 20, 0), (pytest.approx(0.9), 150, 120)]


def test_calibration_leaves_empty_bins_out_and_refuses_a_record_without_any(tmp_path):
    assert plot_calibration({"bins": BINS}, tmp_path / "new" / "c.png").read_bytes().startswith(PNG)
    for bad in ({}, {"bins": BINS[:1]}, Outlook((HeldOut(1, (Promise((), 0),)),))):
        with pytest.raises(DaariError, match="reliability"):
            plot_calibration(bad, tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()


def test_a_fixed_length_drafts_it_in_every_round_or_the_whole_path():
    good, bad = go_through_fixed(HELD_OUT, 5).answers
    assert good.rounds == ((5, 4, 5),) * 6  # 4 of 6 are right, and the bonus token
    assert bad.rounds == ((2, 0, 1),) * 20
    assert go_through_fixed(HELD_OUT, 0).tokens_per_forward == 1
    assert go_through_fixed(Outlook((HeldOut(1, (Promise((0.9, 0.9), 2),) * 4),)), 2).answers[0].rounds[-1] == (2, 2, 1)


def test_length_draws_nothing_beyond_what_was_measured_and_marks_auto(axes):
    fixed, auto = [go_through_fixed(HELD_OUT, n) for n in range(33)], go_through(HELD_OUT, STEEP.cost, STEEP.most)
    draw_speedup(axes, STEEP, fixed, auto, LIGHT.colour(0), LIGHT)
    plain, line, mark = axes.lines
    assert line.get_xdata().tolist() == [0, 1, 2, 3] and line.get_ydata()[0] == 1
    assert mark.get_ydata().tolist() == [pytest.approx(auto.speedup(STEEP.cost))]
    assert list(plain.get_ydata()) == [1, 1] and "steep" in axes.get_title()


def test_length_draws_tokens_per_forward_with_a_band(axes):
    curve = CURVES["linear"]
    fixed = [go_through_fixed(HELD_OUT, n) for n in range(33)]
    draw_tokens(axes, fixed, [go_through(HELD_OUT, curve.cost, curve.most)], [curve], LIGHT)
    assert len(axes.lines[0].get_xdata()) == 33
    point = tokens_point(fixed[8], 8)
    assert point.low < point.value < point.high and axes.lines[0].get_ydata()[8] == point.value


def test_speed_shows_every_prompt_and_crosses_those_that_lose(axes):
    draw_ratios(axes, [0.5, 2.0, 3.0, 4.0], 0, LIGHT.colour(0), LIGHT)
    dress(axes, 1, LIGHT)
    won, lost = [line for line in axes.lines if line.get_marker() in ("o", "x")]
    assert list(won.get_xdata()) == [2.0, 3.0, 4.0] and list(lost.get_xdata()) == [0.5]
    assert lost.get_color() == LIGHT.bad
    assert [text.get_text() for text in axes.texts] == ["2.50x (1.62–3.25)", "1 of 4 slower"]
    assert axes.get_xlim()[0] <= 0.5 and axes.get_xscale() == "log"


def test_records_are_named_after_their_data_and_told_apart():
    sms = [{"rows": [{"source": "data/sms/test.jsonl:1"}], "num_draft_tokens": n} for n in ("auto", 4)]
    own = {"rows": [{"source": "mine.jsonl:7"}]}
    assert names_of([sms[0], own], None) == ["sms", "mine"]
    assert names_of(sms, None) == ["sms, num_draft_tokens auto", "sms, num_draft_tokens 4"]
    rows_at_once = [{"data": "own/snips/test.jsonl"}, {"command": "daari-mlx bench --data own/wnut17/test.jsonl -n 9"}]
    assert names_of(rows_at_once, None) == ["snips", "wnut17"]
    assert names_of([own, own], None) == ["mine (1)", "mine (2)"] == distinct(["mine", "mine"])


@pytest.mark.parametrize("draw", [plot_acceptance, plot_speed])
def test_records_without_what_is_drawn_are_refused(draw, tmp_path):
    with pytest.raises(DaariError, match=r"has no .*bench --out"):
        draw({"measurement": "drafters"}, tmp_path / "no.png")
    with pytest.raises(DaariError, match="no record"):
        draw([], tmp_path / "no.png")
    assert not (tmp_path / "no.png").exists()


def test_length_refuses_no_answers_and_no_machines(tmp_path):
    for outlook, curves in ((Outlook(()), None), (HELD_OUT, [])):
        with pytest.raises(DaariError, match="held-out answers and"):
            plot_length(outlook, tmp_path / "no.png", curves=curves)


def test_other_suffixes_and_a_missing_matplotlib_are_told(monkeypatch):
    with pytest.raises(DaariError, match=r"'a.jpg'.*\.png"):
        check_picture("a.jpg")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(DaariError, match=r"pip install '\.\[plot\]'"):
        check_picture("a.png")


def plotted(*args: object):
    return CliRunner().invoke(cli.app, ["plot", *map(str, args)])


@pytest.fixture
def sources(tmp_path):
    """A record, a replay record and what is left of a graph's folder."""
    (tmp_path / "sms.jsonl").write_text(json.dumps(record().as_dict()) + "\n")
    lines = [{"measurement": "drafters"}, *({"measurement": "reliability", "set": s, "bins": BINS} for s in "ab")]
    (tmp_path / "replay.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "my.graph").mkdir()
    (tmp_path / "my.graph" / "compile_stats.json").write_text(json.dumps({"held_out": HELD_OUT.as_record()}))
    return tmp_path


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("acceptance", ["sms.jsonl", "sms.jsonl"]),
        ("speed", ["sms.jsonl"]),
        ("calibration", ["replay.jsonl", "my.graph"]),
        ("length", ["my.graph"]),
    ],
)
def test_the_command_writes_each_kind(kind, names, sources):
    out = sources / f"{kind}.svg"
    result = plotted(kind, *(sources / name for name in names), "--out", out, "--dark")
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert DARK.ground in out.read_text() and str(out) in result.stderr


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["acceptance", "none.jsonl"], "no record at"),
        (["acceptance", "replay.jsonl"], "has no positions"),
        (["acceptance", "bad.jsonl"], "no JSON object"),
        (["speed", "empty.jsonl"], "is empty"),
        (["calibration", "sms.jsonl"], "no line whose measurement is reliability"),
        (["length", "old.graph"], "keeps no held-out answers"),
        (["length", "my.graph", "--device", "abacus"], "no curve 'abacus'"),
        (["length", "my.graph", "my.graph"], "one graph"),
        (["speed", "sms.jsonl", "--device", "linear"], "goes with the kind length"),
        (["speed", "sms.jsonl", "--model", "m"], "goes with the kind nodes"),
    ],
)
def test_the_command_says_what_is_wrong(args, told, sources, monkeypatch):
    (sources / "bad.jsonl").write_text("[1]\n")
    (sources / "empty.jsonl").write_text("\n")
    (sources / "old.graph").mkdir()
    (sources / "old.graph" / "compile_stats.json").write_text("{}")
    monkeypatch.chdir(sources)
    result = plotted(*args, "--out", "x.png")
    assert result.exit_code in (1, 2) and told in " ".join(result.stderr.split()), result.stderr
    assert isinstance(result.exception, SystemExit) and not (sources / "x.png").exists()


def test_two_runs_over_the_same_data_are_told_apart_by_their_files(tmp_path, monkeypatch):
    for file, data in (("before", "sms/test.jsonl"), ("after", "sms/test.jsonl"), ("other", "snips/test.jsonl")):
        (tmp_path / f"{file}.jsonl").write_text(json.dumps({"data": data, "sizes": [{"rows": 1}]}) + "\n")
    told = []
    monkeypatch.setattr(plots, "plot_batch", lambda _, out, *, names, dark: told.extend(names) or out)
    result = plotted("batch", *(tmp_path / f"{n}.jsonl" for n in ("before", "after", "other")), "--out", "x.png")
    assert result.exit_code == 0, result.output
    assert told == ["sms, before", "sms, after", "snips"]
