"""An extraction that is stopped anywhere goes on where it was, to the same bytes; a folder belongs to one run."""

from __future__ import annotations

import errno
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from graphs import write_rows
from test_fingerprint import quantised

from daari_mlx.compile import answers, batches, extract
from daari_mlx.compile.extract import ExtractOptions, extraction_record
from daari_mlx.compile.workdir import Workdir
from daari_mlx.ground import files
from daari_mlx.ground.errors import DaariError
from daari_mlx.teacher.load import Teacher
from daari_mlx.text.data import Prompt, read_prompts, read_sequences

OPTIONS = ExtractOptions(answers="teacher", max_tokens=12, dimensions=16)


@pytest.fixture(autouse=True, scope="module")
def small_parts() -> Iterator[None]:
    """Six prompts make two parts of answers and three shards, two of them first unreduced."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(extract, "PART", 2)
        patch.setattr(extract, "SAMPLE_STATES", 40)
        patch.setattr(answers, "PART", 3)
        yield


@pytest.fixture(scope="module")
def teacher(tiny_teacher: tuple[Any, Any], tiny_teacher_path: Path) -> Teacher:
    return Teacher(*tiny_teacher, str(tiny_teacher_path))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "train.jsonl"
    write_rows(path, 6, seed=9)
    return path


@pytest.fixture(scope="module")
def prompts(data: Path, teacher: Teacher) -> list[Prompt]:
    return read_prompts(data, teacher.tokenizer).items


@pytest.fixture(scope="module")
def reference(teacher: Teacher, prompts: list[Prompt], tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a run that nobody stopped leaves."""
    folder = tmp_path_factory.mktemp("reference")
    extract.extract(teacher, prompts, Workdir(folder), OPTIONS)
    return contents(folder)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file but the record of seconds."""
    found = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    found.pop("extract_stats.json", None)
    return found


def whole_files(folder: Path) -> dict[str, bytes]:
    return {name: content for name, content in contents(folder).items() if files.PARTIAL not in name}


def stop_at(patch: pytest.MonkeyPatch, call: int, error: BaseException) -> Callable[[], int]:
    """Raise at the ``call``-th step of the run: a forward of the teacher, a file written, a rename; count them all."""
    count = 0

    def stopping(function: Any) -> Any:
        def step(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            if count == call:
                raise error
            return function(*args, **kwargs)

        return step

    patch.setattr(Teacher, "states", stopping(Teacher.states))
    patch.setattr(batches, "read_rows", stopping(batches.read_rows))
    patch.setattr(files.mx, "save_safetensors", stopping(files.mx.save_safetensors))
    for name in ("write_text", "rename"):
        patch.setattr(Path, name, stopping(getattr(Path, name)))
    patch.setattr(files.os, "replace", stopping(files.os.replace))
    patch.setattr(files.shutil, "rmtree", stopping(files.shutil.rmtree))
    return lambda: count


def test_stopped_anywhere_it_goes_on_to_the_same_bytes(
    teacher: Teacher, prompts: list[Prompt], reference: dict[str, bytes], tmp_path: Path
) -> None:
    """Ctrl-C at every third step, twice over before it is let through."""
    with pytest.MonkeyPatch.context() as patch:
        steps = stop_at(patch, 10**9, KeyboardInterrupt())
        extract.extract(teacher, prompts, Workdir(tmp_path / "counted"), OPTIONS)
    assert steps() > 25
    for call in range(1, steps() + 1, 3):
        workdir = Workdir(tmp_path / f"work{call}")
        for _ in range(2):
            with pytest.MonkeyPatch.context() as patch:
                stop_at(patch, call, KeyboardInterrupt())
                try:
                    extract.extract(teacher, prompts, workdir, OPTIONS)
                except KeyboardInterrupt:
                    made = whole_files(workdir.path) if workdir.path.exists() else {}
                    assert all(reference.get(n, content) == content for n, content in made.items())
        extract.extract(teacher, prompts, workdir, OPTIONS)
        assert contents(workdir.path) == reference, f"stopped at step {call}"


FULL = [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("[write] Unable to write 8 bytes to file.")]


@pytest.mark.parametrize("error", FULL, ids=["python", "mlx"])
@pytest.mark.parametrize("where", ["write_text", "save_safetensors"])
def test_a_full_disk_is_told_and_the_run_can_be_resumed(
    teacher: Teacher, prompts: list[Prompt], reference: dict[str, bytes], tmp_path: Path, error: Exception, where: str
) -> None:
    holder = Path if where == "write_text" else files.mx
    write = getattr(holder, where)
    workdir = Workdir(tmp_path / "work")
    for allowed in (0, 1, 2, 3, 5):
        written = 0

        def filling(*args: Any, allowed: int = allowed) -> Any:
            nonlocal written
            written += 1
            if written > allowed:
                Path(str(args[0])).write_bytes(b"half of it")
                raise error
            return write(*args)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(holder, where, lambda *args, **kwargs: filling(*args))
            try:
                extract.extract(teacher, prompts, workdir, OPTIONS)
            except DaariError as told:
                assert "the disk is full" in str(told) and "run the same command again" in str(told)
            else:
                assert written <= allowed
        if workdir.path.exists():
            assert all(reference.get(n, content) == content for n, content in contents(workdir.path).items())
    extract.extract(teacher, prompts, workdir, OPTIONS)
    assert contents(workdir.path) == reference


def test_killed_it_goes_on_to_the_same_bytes(teacher: Teacher, data: Path, tmp_path: Path) -> None:
    """SIGKILL, twice at different places, in processes of their own."""
    code = f"""
import sys
import daari_mlx
from daari_mlx.compile import extract
from daari_mlx.text.data import read_sequences
from daari_mlx.teacher.load import load_teacher
from daari_mlx.compile.workdir import Workdir
extract.PART, extract.SAMPLE_STATES = 1, 60
teacher = load_teacher({teacher.source!r})
rows = read_sequences({str(data)!r}, teacher.tokenizer).items
extract.extract(teacher, rows, Workdir(sys.argv[1]), extract.ExtractOptions(dimensions=16))
"""

    def start(folder: Path) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", code, str(folder)], stderr=subprocess.DEVNULL)

    work = tmp_path / "work"
    for wanted in ("raw/*", "shards/0000[2-9]*"):
        process = start(work)
        deadline = time.monotonic() + 60
        while process.poll() is None and not list(work.glob(wanted)) and time.monotonic() < deadline:
            time.sleep(0.001)
        process.kill()
        process.wait()
        assert work.exists()
    # all in processes of the same kind: another number of BLAS threads rounds otherwise
    both = [start(work), start(tmp_path / "reference")]
    assert [process.wait(timeout=120) for process in both] == [0, 0]
    assert contents(work) == contents(tmp_path / "reference")


@pytest.mark.slow
def test_killed_at_random_moments_it_goes_on_to_the_same_graph() -> None:
    from bench_resume import trials  # the import of graphs has put scripts on the path

    found = trials(3, rows=24, seed=1)
    assert (found["survived"], found["tried"]) == (3, 3), found["failures"]
    assert found["repeated_at_most"] <= 1


def test_a_finished_run_is_not_repeated(
    teacher: Teacher, prompts: list[Prompt], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workdir = Workdir(tmp_path / "work")
    extract.extract(teacher, prompts, workdir, OPTIONS)
    before = extraction_record(workdir)
    monkeypatch.setattr(Teacher, "states", None)
    monkeypatch.setattr(batches, "read_rows", None)
    extract.extract(teacher, prompts, workdir, OPTIONS)
    assert extraction_record(workdir) == before


def test_an_unfinished_run_has_no_record(tmp_path: Path) -> None:
    with pytest.raises(DaariError, match="run daari-mlx extract again"):
        extraction_record(Workdir(tmp_path))
    (tmp_path / "file").write_text("x")
    with pytest.raises(DaariError, match="is a file: name a folder"):
        Workdir(tmp_path / "file")


OTHER_SETTINGS = [
    {"max_tokens": 13},
    {"layer": 1},
    {"dimensions": 17},
    {"seed": 1},
    {"answers": "reference"},
]


@pytest.mark.parametrize("change", OTHER_SETTINGS, ids=lambda change: next(iter(change)))
def test_other_settings_need_another_folder(
    teacher: Teacher, prompts: list[Prompt], tmp_path: Path, change: dict[str, Any]
) -> None:
    workdir = Workdir(tmp_path / "work")
    extract.extract(teacher, prompts[:2], workdir, OPTIONS)
    before = contents(workdir.path)
    options = ExtractOptions(**{**{n: getattr(OPTIONS, n) for n in ExtractOptions.__slots__}, **change})
    name, value = next(iter(change.items()))
    with pytest.raises(DaariError, match=f"{name}: there .*, now {value}.*Name another --workdir"):
        extract.extract(teacher, prompts[:2], workdir, options)
    assert contents(workdir.path) == before


def test_another_teacher_or_other_data_needs_another_folder(
    teacher: Teacher, data: Path, prompts: list[Prompt], tmp_path: Path
) -> None:
    workdir = Workdir(tmp_path / "work")
    extract.extract(teacher, prompts[:2], workdir, OPTIONS)
    before = contents(workdir.path)
    more = r"of other data and with other settings \(rows: there 2, now 3\)"
    for rows, told in ((prompts[1:3], "of other data, "), (prompts[:3], more), (prompts[1::-1], "of other data, ")):
        with pytest.raises(DaariError, match=told) as refused:
            extract.extract(teacher, rows, workdir, OPTIONS)
        assert "corpus" not in str(refused.value), "no hash is told"
    with pytest.raises(DaariError, match="of other data"):
        extract.extract(teacher, read_sequences(data, teacher.tokenizer).items[:2], workdir, OPTIONS)
    other = Teacher(quantised(), teacher.tokenizer, "other")
    with pytest.raises(DaariError, match=r"teacher: there .*tiny_teacher \(weights \w{8}\), now other \(weights"):
        extract.extract(other, prompts[:2], workdir, OPTIONS)
    moved = Teacher(teacher.model, teacher.tokenizer, "moved/elsewhere")
    extract.extract(moved, prompts[:2], workdir, OPTIONS)
    assert contents(workdir.path) == before


def test_a_truncated_shard_is_told(teacher: Teacher, prompts: list[Prompt], tmp_path: Path) -> None:
    workdir = Workdir(tmp_path / "work")
    extract.extract(teacher, prompts[:2], workdir, OPTIONS)
    path = workdir.shard_path(0)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(DaariError, match=r"00000\.safetensors"):
        list(workdir.read_shards())
