"""Files are whole or not there, also when the disk is full or the program is stopped."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from daari_mlx.ground import files
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.files import load_arrays, read_json, remove, save_arrays, whole, write_json


def names(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def make_folder(path: Path, text: str) -> None:
    path.mkdir(exist_ok=True)
    (path / "text").write_text(text)


def test_a_file_or_folder_takes_its_place_when_it_is_done(tmp_path: Path) -> None:
    with whole(tmp_path / "deep" / "file") as beside:
        beside.write_text("new")
        assert not (tmp_path / "deep" / "file").exists()
    with whole(tmp_path / "folder", folder=True) as beside:
        make_folder(beside, "new")
    assert names(tmp_path) == ["deep", "deep/file", "folder", "folder/text"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError, SystemExit])
def test_what_stood_there_stays_when_writing_fails(tmp_path: Path, error: type[BaseException]) -> None:
    (tmp_path / "file").write_text("old")
    make_folder(tmp_path / "folder", "old")
    with pytest.raises(error), whole(tmp_path / "file") as beside:
        beside.write_text("half")
        raise error
    with pytest.raises(error), whole(tmp_path / "folder", folder=True) as beside:
        make_folder(beside, "half")
        raise error
    assert names(tmp_path) == ["file", "folder", "folder/text"]
    assert (tmp_path / "file").read_text() == (tmp_path / "folder" / "text").read_text() == "old"


@pytest.mark.parametrize("call", [1, 2, 3, 4, 5, 6])
def test_a_stop_between_two_renames_loses_nothing(tmp_path: Path, call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C at any step of swapping a folder: the old or the new stands there, whole, and nothing beside it."""
    make_folder(tmp_path / "folder", "old")
    calls = 0

    def stopping(function: Any) -> Any:
        def step(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == call:
                raise KeyboardInterrupt
            return function(*args, **kwargs)

        return step

    monkeypatch.setattr(Path, "rename", stopping(Path.rename))
    monkeypatch.setattr(os, "replace", stopping(os.replace))
    monkeypatch.setattr(shutil, "rmtree", stopping(shutil.rmtree))
    try:
        with whole(tmp_path / "folder", folder=True) as beside:
            make_folder(beside, "new")
    except KeyboardInterrupt:
        pass
    monkeypatch.undo()
    assert (tmp_path / "folder" / "text").read_text() in ("old", "new")
    with whole(tmp_path / "folder", folder=True) as beside:
        make_folder(beside, "newer")
    assert names(tmp_path) == ["folder", "folder/text"]
    assert (tmp_path / "folder" / "text").read_text() == "newer"


def test_what_a_killed_run_left_beside_does_not_get_in(tmp_path: Path) -> None:
    make_folder(tmp_path / "folder.partial", "half")
    with whole(tmp_path / "folder", folder=True) as beside:
        beside.mkdir(exist_ok=True)
        (beside / "other").write_text("new")
    assert names(tmp_path) == ["folder", "folder/other"]


def make_file(path: Path, text: str) -> None:
    path.write_text(text)


@pytest.mark.parametrize("folder", [False, True])
@pytest.mark.parametrize("ends", [files.PARTIAL, files.OLD])
@pytest.mark.parametrize("fails", [False, True])
def test_what_no_run_can_have_left_beside_stays(tmp_path: Path, folder: bool, ends: str, fails: bool) -> None:
    """Of another kind it stops the writing; a name that is not needed is left alone, whatever has it."""
    right, wrong = (make_folder, make_file) if folder else (make_file, make_folder)
    target, beside = tmp_path / "target", tmp_path / f"target{ends}"
    for make in (wrong, lambda path, text: path.symlink_to(tmp_path / "mine")):
        right(tmp_path / "mine", "mine")
        make(beside, "mine")
        try:
            with whole(target, folder=folder) as new:
                right(new, "new")
                if fails:
                    raise ZeroDivisionError
        except (DaariError, ZeroDivisionError):
            assert not target.exists()
        assert beside.exists() or beside.is_symlink()
        assert (tmp_path / "mine").exists()
        for path in (beside, tmp_path / "mine", target):
            remove(path)


def test_a_backup_beside_it_stays(tmp_path: Path) -> None:
    for name in ("folder", "folder.old", "folder.bak"):
        make_folder(tmp_path / name, name)
    with whole(tmp_path / "folder", folder=True) as beside:
        make_folder(beside, "new")
    assert (tmp_path / "folder.old" / "text").read_text() == "folder.old"
    assert names(tmp_path) == [
        "folder",
        "folder.bak",
        "folder.bak/text",
        "folder.old",
        "folder.old/text",
        "folder/text",
    ]


def test_links_are_replaced_not_followed(tmp_path: Path) -> None:
    make_folder(tmp_path / "elsewhere", "mine")
    (tmp_path / "folder").symlink_to(tmp_path / "elsewhere")
    with whole(tmp_path / "folder", folder=True) as beside:
        make_folder(beside, "new")
    assert names(tmp_path) == ["elsewhere", "elsewhere/text", "folder", "folder/text"]
    assert (tmp_path / "elsewhere" / "text").read_text() == "mine"
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    remove(tmp_path / "link")
    assert (tmp_path / "elsewhere" / "text").read_text() == "mine"
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    remove(tmp_path / "dangling")
    remove(tmp_path / "never was there")
    assert names(tmp_path) == ["elsewhere", "elsewhere/text", "folder", "folder/text"]


ARRAYS = {"a": np.arange(6, dtype=np.int32).reshape(2, 3), "b": np.array([2**63 + 5], np.uint64)}


def test_arrays_come_back_and_equal_arrays_give_equal_bytes(tmp_path: Path) -> None:
    save_arrays(tmp_path / "one.safetensors", ARRAYS)
    save_arrays(tmp_path / "two.safetensors", dict(reversed(ARRAYS.items())))
    assert (tmp_path / "one.safetensors").read_bytes() == (tmp_path / "two.safetensors").read_bytes()
    back = load_arrays(tmp_path / "one.safetensors")
    assert set(back) == set(ARRAYS)
    for name, array in ARRAYS.items():
        assert back[name].dtype == array.dtype
        np.testing.assert_array_equal(back[name], array)


@pytest.mark.parametrize("content", [b"", b"x" * 7, b"\xff" * 40, b"\x02" + bytes(7) + b"{}"])
def test_a_damaged_file_of_arrays_is_told(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    if content.endswith(b"{}"):
        assert load_arrays(path) == {}
        return
    with pytest.raises(DaariError, match=r"arrays in .*a\.safetensors cannot be read"):
        load_arrays(path)
    with pytest.raises(DaariError, match="There is no file of arrays at"):
        load_arrays(tmp_path / "missing.safetensors")


# --- a full disk

FULL_IN_PYTHON = OSError(errno.ENOSPC, "No space left on device")
FULL_IN_MLX = RuntimeError("[write] Unable to write 8 bytes to file.")  # what save_safetensors raises


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_what_mlx_says_on_a_full_disk(tmp_path: Path) -> None:
    """The words that `whole` looks for."""
    (tmp_path / "full.safetensors").symlink_to("/dev/full")
    with pytest.raises(RuntimeError, match=r"\[write\] Unable to write"):
        mx.save_safetensors(str(tmp_path / "full.safetensors"), {"a": mx.zeros(3)})


@pytest.mark.parametrize("error", [FULL_IN_PYTHON, FULL_IN_MLX, OSError(errno.EDQUOT, "Disk quota exceeded")])
def test_a_full_disk_is_told_and_leaves_nothing_half_made(tmp_path: Path, error: Exception) -> None:
    def write(beside: Path) -> None:
        beside.write_text("half")
        raise error

    with (
        pytest.raises(DaariError, match=r"file: the disk is full \(\d+ MB free\).*make room"),
        whole(tmp_path / "file") as b,
    ):
        write(b)
    assert names(tmp_path) == []


@pytest.mark.parametrize("error", [PermissionError(errno.EACCES, "no"), RuntimeError("[matmul] shapes differ")])
def test_other_errors_are_not_taken_for_a_full_disk(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(type(error), match=r"no|shapes"), whole(tmp_path / "file"):
        raise error


def test_a_disk_that_fills_while_arrays_are_written(tmp_path: Path) -> None:
    """Really: a limit on the size of files, in a process of its own, makes MLX's writing fail half way."""
    code = f"""
import resource, signal
import numpy as np
from pathlib import Path
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.files import save_arrays
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
save_arrays(Path({str(tmp_path)!r}, "small.safetensors"), {{"a": np.zeros(10)[:5].astype(np.float32)}})
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
try:
    save_arrays(Path({str(tmp_path)!r}, "large.safetensors"), {{"a": np.zeros(10_000, np.float32)}})
except DaariError as error:
    print("told:", error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("told: Could not write"), done.stderr
    assert names(tmp_path) == ["small.safetensors"]


# --- JSON and resuming


def test_json_comes_back_in_order(tmp_path: Path) -> None:
    value = {"b": [1, 2.5, None], "a": {"ಕನ್ನಡ": "🙂"}}
    write_json(tmp_path / "x.json", value)
    assert list(read_json(tmp_path / "x.json", "record").items()) == list(value.items())
    assert "ಕನ್ನಡ" in (tmp_path / "x.json").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[1]", b"null", b'"x"', b"\xff\xfe", b"[" * 100_000, b'{"a":' + b"9" * 5000 + b"}", b'{"a": nul}'],
)
def test_json_that_is_no_object_is_told(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(DaariError, match=r"The record at .*x\.json"):
        read_json(path, "record")


def test_json_that_is_missing_or_a_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(DaariError, match="There is no record at"):
        read_json(tmp_path / "x.json", "record")
    with pytest.raises(DaariError, match="cannot be read"):
        read_json(tmp_path, "record")


def test_a_killed_writer_leaves_no_whole_file(tmp_path: Path) -> None:
    """SIGKILL while large files are written over and over: whatever has its name is complete."""
    code = f"""
import json
from pathlib import Path
from daari_mlx.ground.files import write_json
number = 0
while True:
    write_json(Path({str(tmp_path)!r}, f"{{number % 3}}.json"), {{"n": number, "text": "x" * 3_000_000, "end": number}})
    number += 1
"""
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        deadline = time.monotonic() + 60
        while len(list(tmp_path.glob("*.json"))) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait()
    made = list(tmp_path.glob("*.json"))
    assert len(made) == 3
    for path in made:
        record = read_json(path, "record")
        assert record["n"] == record["end"]


def test_the_names_beside_are_known(tmp_path: Path) -> None:
    with whole(tmp_path / "a.json") as beside:
        assert beside.name == "a.json" + files.PARTIAL and beside.parent == tmp_path
        beside.write_text("{}")
