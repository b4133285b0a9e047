"""Only regular files are read, and only files and folders are replaced, whatever stands at a path."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
import pytest
from special import KINDS, make, seen

from daari_mlx.chat.history import History
from daari_mlx.cost import probe
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.files import load_arrays, read_json, read_json_lines, save_arrays, whole, write_json
from daari_mlx.ground.lock import Lock
from daari_mlx.ground.regular import (
    check_new_file,
    check_new_folder,
    open_regular,
    read_bytes,
    read_text,
    what_is,
)

pytestmark = pytest.mark.timeout(30)  # what opens a pipe waits for ever


@pytest.fixture(params=KINDS)
def odd(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Something that is neither file nor folder."""
    return make(request.param, tmp_path / "odd")


def test_it_is_named(tmp_path: Path) -> None:
    words = {
        "a pipe": "a named pipe",
        "a link to a pipe": "a named pipe",
        "a socket": "a socket",
        "a link to a socket": "a socket",
        "a link that leads nowhere": "a link that leads nowhere",
    }
    for number, (kind, told) in enumerate(words.items()):
        assert what_is(make(kind, tmp_path / str(number))) == told
    assert what_is(tmp_path) == "a folder" and what_is(tmp_path / "none") is None
    (tmp_path / "file").touch()
    assert what_is(tmp_path / "file") == "a file" and what_is(tmp_path / "file" / "below") is None
    for name in ("x" * 5000, "nul\0byte"):
        with pytest.raises(DaariError, match="cannot be used"):
            what_is(tmp_path / name)


def test_it_is_not_read(odd: Path) -> None:
    readers = (
        lambda: open_regular(odd, "thing"),
        lambda: read_bytes(odd, "thing"),
        lambda: read_text(odd, "thing"),
        lambda: read_json(odd, "thing"),
        lambda: read_json_lines(odd, "thing", instead="Give one."),
        lambda: load_arrays(odd),
    )
    for read in readers:
        with pytest.raises(DaariError, match=r"thing at .*odd cannot be read: it is a|odd cannot be used|arrays at"):
            read()


def test_it_is_not_replaced(odd: Path) -> None:
    before = seen(odd)
    for write in (
        lambda: write_json(odd, {}),
        lambda: save_arrays(odd, {"a": np.zeros(1)}),
        lambda: _folder(odd),
        lambda: check_new_file(odd, "--out"),
        lambda: check_new_folder(odd, "--out", "graph", lambda names: []),
        lambda: Lock(odd, "run"),
    ):
        with pytest.raises(DaariError, match="odd"):
            write()
        assert seen(odd) == before


def _folder(path: Path) -> None:
    with whole(path) as beside:
        beside.mkdir()


def test_what_stands_where_something_is_written_beside_is_not_removed(tmp_path: Path) -> None:
    pipe = make("a pipe", tmp_path / "x.json.partial")
    with pytest.raises(DaariError, match=r"x.json.partial is a named pipe"):
        write_json(tmp_path / "x.json", {})
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_what_comes_while_it_is_written_is_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(DaariError, match="is a named pipe"), whole(tmp_path / "x") as beside:
        beside.write_text("new")
        make("a pipe", tmp_path / "x")
    assert [found[0] for found in seen(tmp_path / "x")] == ["x"] and what_is(tmp_path / "x") == "a named pipe"


def test_a_file_replaces_no_folder_and_a_folder_no_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("old")
    with pytest.raises(DaariError, match="folder is a folder, which is not replaced by a file"):
        write_json(tmp_path / "folder", {})
    with pytest.raises(DaariError, match="file is a file, which is not replaced by a folder"):
        _folder(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "old" and sorted(os.listdir(tmp_path)) == ["file", "folder"]


def test_a_lock_does_not_write_into_what_a_link_leads_to(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("a letter")
    (tmp_path / "lock").symlink_to(tmp_path / "mine")
    with pytest.raises(DaariError, match="lock is a"):
        Lock(tmp_path / "lock", "run")
    assert (tmp_path / "mine").read_text() == "a letter"


def test_a_history_and_a_measurement_that_are_odd_cost_only_themselves(
    odd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = seen(odd)
    history = History(odd)
    assert history.earlier() == []
    history.remember("x")
    assert not history.kept
    monkeypatch.setattr(probe, "path_of", lambda key: odd)
    assert probe.load_for({"structure": "s", "quantisation": None}) is None
    assert probe.save(probe.ProbeRecord({}, (1,), (1.0,), 0.0, 1, probe.MIN_REPEATS)) is None
    assert seen(odd) == before


def test_more_than_its_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 11)
    assert read_bytes(path, "thing", limit=11) == b"x" * 11
    with pytest.raises(DaariError, match=r"thing at .*file has 11 bytes; none that belongs here has more than 10"):
        read_bytes(path, "thing", limit=10)
    with path.open("wb") as file:
        file.truncate(1 << 40)  # holds nothing, and would fill the memory
    with pytest.raises(DaariError, match=r"1099511627776 bytes"):
        read_json(path, "thing")


def test_text_that_is_no_utf_8_is_told_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes("ದಾರಿ".encode() + b"\xe9!")
    with pytest.raises(DaariError, match=r"thing at .*file cannot be read: it is no UTF-8, byte 0xe9 at position 13"):
        read_text(tmp_path / "file", "thing")


def test_where_something_new_may_go(tmp_path: Path) -> None:
    def others(names: list[str]) -> list[str]:
        return [name for name in names if name != "own"]

    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "new", tmp_path / "deep" / "new", tmp_path / "folder"):
        check_new_folder(path, "--to", "graph", others)
    check_new_file(tmp_path / "deep" / "new", "--to")
    check_new_file(tmp_path / "file", "--to")
    (tmp_path / "folder" / "own").touch()
    check_new_folder(tmp_path / "folder", "--to", "graph", others)
    for name in ("a", "b", "c", "d"):
        (tmp_path / "folder" / name).touch()
    with pytest.raises(DaariError, match=r"holds other things \(a, b, c, …\), not a graph: name another --to"):
        check_new_folder(tmp_path / "folder", "--to", "graph", others)
    for path, told in (
        (tmp_path / "file", "file is a file, not a graph: name another --to"),
        (tmp_path / "file" / "below", "cannot be made, since .*file is a file"),
        (Path("."), "has no name of its own"),
        (Path(".."), "has no name of its own"),
        (Path("/"), "has no name of its own"),
    ):
        with pytest.raises(DaariError, match=told):
            check_new_folder(path, "--to", "graph", others)
    with pytest.raises(DaariError, match="folder is a folder: name a file for --to"):
        check_new_file(tmp_path / "folder", "--to")


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is closed to root")
def test_a_place_that_cannot_be_written_is_told_before_any_work(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(DaariError, match="cannot be written"):
            check_new_file(tmp_path / "new", "--out")
    finally:
        tmp_path.chmod(0o700)
