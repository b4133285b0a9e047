"""What an extraction takes on the disk is told before it starts; a disk that fills stops it cleanly."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daari_mlx.compile import estimate, extract
from daari_mlx.compile.estimate import Estimate, held_bytes
from daari_mlx.compile.extract import ExtractOptions
from daari_mlx.compile.workdir import Workdir
from daari_mlx.ground import files
from daari_mlx.ground.errors import DaariError
from daari_mlx.teacher.load import Teacher
from daari_mlx.text.data import Prompt, Sequence

OPTIONS = ExtractOptions(dimensions=16)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extract, "PART", 8)
    monkeypatch.setattr(extract, "SAMPLE_STATES", 300)


@pytest.fixture
def teacher(tiny_teacher: tuple[Any, Any]) -> Teacher:
    return Teacher(*tiny_teacher, "tiny")


@pytest.fixture
def sequences() -> list[Sequence]:
    random = np.random.default_rng(0)
    return [Sequence(random.integers(3, 600, 45).tolist(), 5, n, f"x:{n}") for n in range(40)]


def test_the_estimate_is_what_is_written(
    teacher: Teacher, sequences: list[Sequence], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the unreduced states at their most: between the last of them and the projection."""
    most, remove = 0, extract.remove

    def before_removal(path: Path) -> None:
        nonlocal most
        most = max(most, held_bytes(tmp_path / "work"))
        remove(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(extract, "remove", before_removal)
        extract.extract(teacher, sequences, Workdir(tmp_path / "work"), OPTIONS)
    told = capsys.readouterr().err
    expected = extract._estimate(sequences, 64, OPTIONS)
    assert f"for {expected.states:,} states" in told and "free" in told and "warning" not in told
    assert expected.states == 40 * 41 and not expected.at_most
    end = held_bytes(tmp_path / "work")
    assert end < expected.kept + 20_000 and expected.kept < 2 * end
    assert most < expected.kept + expected.passing + 20_000


def test_too_little_room_is_said_before_the_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    known = Estimate(kept=5_000_000, passing=1_000_000, states=70_000, at_most=False)
    monkeypatch.setattr(estimate, "free_bytes", lambda path: 2_000_000)
    assert "warning: 4.0 MB too little: it will stop" in known.text(tmp_path, done=0)
    assert "warning" not in known.text(tmp_path, done=5_000_000)
    prompts = [Prompt([1, 2, 3], n, f"x:{n}", None) for n in range(10)]
    unknown = extract._estimate(prompts, 64, ExtractOptions(answers="teacher", max_tokens=50))
    assert unknown.states == 510 and "at most" in unknown.text(tmp_path, done=0)
    assert files.free_bytes(tmp_path / "not" / "there") > 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 100 kB: the first unreduced states fit, the next file does not."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100k", "none", str(folder)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("mounting a small disk needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_real_full_disk_stops_it_and_with_room_it_goes_on(
    teacher: Teacher, sequences: list[Sequence], small_disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workdir = Workdir(small_disk / "work")
    for _ in range(2):
        with pytest.raises(
            DaariError, match=r"disk is full \(0 MB free\).* this file needs .*goes on from there.* The whole run needs"
        ):
            extract.extract(teacher, sequences, workdir, OPTIONS)
        assert "warning" in capsys.readouterr().err
        assert workdir.plan_path.exists() and not list(workdir.path.rglob(f"*{files.PARTIAL}*"))
        for path in workdir.path.rglob("*.safetensors"):
            files.load_arrays(path)
    subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
    extract.extract(teacher, sequences, workdir, OPTIONS)
    extract.extract(teacher, sequences, Workdir(tmp_path / "reference"), OPTIONS)
    for number in range(5):
        assert workdir.shard_path(number).read_bytes() == (
            Workdir(tmp_path / "reference").shard_path(number).read_bytes()
        )
