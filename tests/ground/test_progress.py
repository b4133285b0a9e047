"""A bar shows parts of units, is full at a normal end, and never stands beyond its total."""

from __future__ import annotations

import re
from threading import Event

import pytest

from daari_mlx.ground.progress import bar


def text(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err.split("\r")[-1]


def test_parts_of_units_move_it_and_whole_ones_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError), bar(total=4, desc="answers", unit="answer", delay=0) as shown:
        first, second = shown.unit(), shown.unit()
        first(3, 10)
        second(1, 2)
        assert shown.n == pytest.approx(0.8)
        first(10, 10)
        second(0, 0)  # its end is not known
        second(1, 4)  # nothing goes back
        assert shown.n == pytest.approx(1.5)
        raise ValueError
    assert " 1/4 " in text(capsys) and "38%" not in text(capsys)


def test_it_never_stands_beyond_its_total() -> None:
    with bar(total=3, desc="d", unit="u") as shown:
        shown.update(2)
        shown.unit(size=2)(9, 8)
        assert shown.n == 3


@pytest.mark.parametrize("done", [1, 2, 2.0000001, 3])
def test_what_was_not_needed_falls_away_at_a_normal_end(done: float, capsys: pytest.CaptureFixture[str]) -> None:
    with bar(total=3, desc="d", unit="u", delay=0) as shown:
        shown.update(done)
    assert shown.n == shown.total == round(done)
    assert f" {done:.0f}/{done:.0f} " in text(capsys)


def test_an_error_leaves_it_as_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError), bar(total=3, desc="d", unit="u", delay=0) as shown:
        shown.update()
        raise ValueError
    assert (shown.n, shown.total) == (1, 3) and " 1/3 " in text(capsys)


def test_what_is_left_may_turn_out_to_be_more_or_less() -> None:
    with bar(total=10, desc="d", unit="u") as shown:
        shown.update(4)
        shown.expect(2)
        assert (shown.n, shown.total) == (4, 6)
        shown.expect(9)
        shown.update(9)
        assert shown.n == shown.total == 13


def test_a_loop_moves_it_and_a_loop_that_is_left_leaves_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(bar("abc", desc="d", unit="u", delay=0)) == ["a", "b", "c"]
    assert " 3/3 " in text(capsys)


def test_one_that_is_not_shown_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with bar(total=2, desc="d", unit="u", delay=0, shown=False) as shown:
        shown.update(2)
    assert shown.n == 2 and capsys.readouterr().err == ""


def test_one_whose_first_unit_is_long_is_drawn_before_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for the bar itself, so that nothing depends on time."""
    drawn, lines = Event(), []

    class Screen:
        encoding = "utf-8"

        def write(self, text: str) -> None:
            lines.append(text)
            if "0/2" in text:
                drawn.set()

        def flush(self) -> None: ...

    monkeypatch.setattr("sys.stderr", Screen())
    with bar(total=2, desc="forwards", unit="forward", delay=0.01) as shown:
        assert drawn.wait(60), "nothing was drawn before the first unit was done"
        assert "forwards" in "".join(lines) and shown.n == 0
        shown.update(2)
    assert lines[-1] == "\n", "its line is ended"


def test_a_short_one_draws_nothing_at_any_time(capsys: pytest.CaptureFixture[str]) -> None:
    with bar(total=2, desc="d", unit="u", delay=1000) as shown:
        shown.update()
    assert capsys.readouterr().err == ""


def test_the_time_left_follows_from_all_that_was_done_and_from_whole_units(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Units of 10, 1 and 10 seconds: what the newest took decides nothing."""
    now = [0.0]
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    left = []
    with bar(total=6, desc="d", unit="answer", delay=0) as shown:
        for seconds in (10, 1, 10):
            told = shown.unit()
            for part in (1, 2):
                now[0] += seconds / 2
                told(part, 2)
                left.append(re.findall(r"<([^,]+),", capsys.readouterr().err)[-1])
    assert left == ["?", "00:50", "00:31", "00:22", "00:22", "00:21"]
