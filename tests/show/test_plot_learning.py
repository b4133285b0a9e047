"""The picture of learning."""

from __future__ import annotations

from pathlib import Path

import pytest

from daari_mlx.ground.errors import DaariError
from daari_mlx.show.plots.learning import MEAN, plot_learning, running_mean


def test_a_picture_has_a_panel_a_record(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    each = {"learning": [1.0, 4.0, 7.0], "suffix cache": [1.0, 2.0, 3.0]}
    records = [{"set": name, "curve": "linear", "each": each} for name in ("one", "two")]
    one = plot_learning(records[:1], tmp_path / "one.svg").read_text()
    two = plot_learning(records, tmp_path / "two.svg", dark=True).read_text()
    assert len(two) > len(one) > 1000


def test_what_is_no_record_of_learning_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DaariError, match="bench_learn"):
        plot_learning([{"n": 3}], tmp_path / "none.png")
    assert not list(tmp_path.iterdir())


def test_a_line_is_the_mean_of_the_newest_answers() -> None:
    assert running_mean([2.0, 4.0, 6.0]) == [2.0, 3.0, 4.0]
    assert running_mean([*[9.0] * 50, *[1.0] * MEAN])[-1] == 1.0
