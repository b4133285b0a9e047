"""A job over a file: every row in its order with the answer that it has alone, and what is written beside it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from graphs import Compiled
from jobs import read_jsonl, sms_rows, write_jsonl
from typer.testing import CliRunner

from daari_mlx.batch.engine import BatchEngine
from daari_mlx.batch.request import Request
from daari_mlx.cli.main import app
from daari_mlx.decode.generate import generate
from daari_mlx.job.asks import Ask
from daari_mlx.job.journal import Journal
from daari_mlx.job.requests import Requests
from daari_mlx.text.template import ChatTemplate

TOKENS = 24


class Mapped:
    """The command with the tiny teacher; files are names in a folder."""

    def __init__(self, folder: Path, teacher: Path) -> None:
        self.folder, self._teacher = folder, teacher

    def __call__(self, data: str, out: str, *options: str, code: int = 0, input: bytes | None = None) -> str:
        words = ["map", "--model", str(self._teacher), "--max-tokens", str(TOKENS), "--concurrency", "4"]
        words += ["--data", data if data == "-" else str(self.folder / data)]
        words += ["--out", out if out == "-" else str(self.folder / out), *options]
        done = CliRunner().invoke(app, words, input=input)
        assert done.exit_code == code, done.output
        self.stdout = done.stdout
        return done.output

    def told(self, data: str, out: str, *options: str) -> dict[str, Any]:
        """What ``--json`` prints."""
        self(data, out, *options, "--json")
        return json.loads(self.stdout)

    def rows(self, name: str) -> list[dict[str, Any]]:
        return read_jsonl(self.folder / name)


@pytest.fixture
def mapped(tmp_path: Path, tiny_teacher_path: Path) -> Mapped:
    return Mapped(tmp_path, tiny_teacher_path)


def expected(teacher: tuple[Any, Any], messages: list[dict[str, str]], **options: Any) -> str:
    """What ``generate`` says to a chat."""
    model, tokenizer = teacher
    ids = ChatTemplate(tokenizer).prompt_ids(messages)
    return generate(model, tokenizer, ids, max_tokens=TOKENS, **options)


@pytest.mark.parametrize("drafted", [False, True])
def test_answers_are_those_of_generate_row_by_row(
    mapped: Mapped, tiny_teacher: tuple[Any, Any], compiled: Compiled, drafted: bool
) -> None:
    rows = sms_rows(13)
    write_jsonl(mapped.folder / "in.jsonl", rows)
    mapped("in.jsonl", "out.jsonl", *(["--graph", str(compiled.path)] if drafted else []))
    found = mapped.rows("out.jsonl")
    assert [row["id"] for row in found] == list(range(13))
    for row, given in zip(found, rows, strict=True):
        assert row["messages"] == given["messages"] and list(row)[:2] == ["id", "messages"]
        assert row["answer"] == expected(tiny_teacher, given["messages"][:-1])
        usage = row["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert row["finish_reason"] == ("length" if usage["completion_tokens"] == TOKENS else "stop")
        assert row["error"] is None


def test_a_template_and_a_system_prompt_make_the_question(mapped: Mapped, tiny_teacher: tuple[Any, Any]) -> None:
    rows = [{"text": "pay now {or} lose", "n": 3}, {"text": "dinner at 8?", "n": [1, "ü"]}]
    write_jsonl(mapped.folder / "in.jsonl", rows)
    mapped("in.jsonl", "out.jsonl", "--template", "{{sort}} {n}:\\n{text}", "--system-prompt", "You sort.")
    said = ["{sort} 3:\npay now {or} lose", '{sort} [1, "ü"]:\ndinner at 8?']
    for row, asked in zip(mapped.rows("out.jsonl"), said, strict=True):
        messages = [{"role": "system", "content": "You sort."}, {"role": "user", "content": asked}]
        assert row["answer"] == expected(tiny_teacher, messages)


def test_what_a_row_brings_along_is_compared(mapped: Mapped, tiny_teacher: tuple[Any, Any]) -> None:
    own = expected(tiny_teacher, [{"role": "user", "content": "one"}])
    rows = [{"prompt": "one", "completion": own}, {"prompt": "two", "completion": "no"}, {"prompt": "three"}]
    write_jsonl(mapped.folder / "in.jsonl", rows)
    told = mapped("in.jsonl", "out.jsonl", "--compare")
    assert [row["same"] for row in mapped.rows("out.jsonl")] == [True, False, None]
    assert "1 of 2 answers" in told


def test_bad_rows_are_told_before_any_work(mapped: Mapped) -> None:
    lines = ['{"text": "a"}', "{", '{"text": "b", "error": 1}', '{"other": "c"}', json.dumps({"text": "long " * 4000})]
    (mapped.folder / "in.jsonl").write_text("\n".join(lines))
    told = mapped("in.jsonl", "out.jsonl", "--template", "{text}", code=1)
    assert "4 bad rows" in told and "in.jsonl:2: invalid JSON" in told and "in.jsonl:3: has a field 'error'" in told
    assert "in.jsonl:4: has no 'text', which --template names" in told and "longer than the context" in told
    assert sorted(p.name for p in mapped.folder.iterdir()) == ["in.jsonl"], "nothing is left where nothing was done"
    mapped("in.jsonl", "out.jsonl", "--template", "{text}", "--keep-bad-rows", code=3)
    found = mapped.rows("out.jsonl")
    assert found[0]["answer"] and found[0]["error"] is None
    assert found[1] == {"line": "{", "answer": None, "finish_reason": None, "usage": None, "error": found[1]["error"]}
    assert found[1]["error"].startswith("invalid JSON") and found[3]["other"] == "c" and found[3]["answer"] is None


def test_rows_that_ask_the_same_are_asked_once_unless_they_draw(mapped: Mapped) -> None:
    rows = [{"prompt": "same", "id": k} for k in range(4)] + [{"prompt": "other", "id": 4}]
    write_jsonl(mapped.folder / "in.jsonl", rows)
    told = mapped.told("in.jsonl", "out.jsonl")
    assert (told["rows"], told["asked"]) == (5, 2)
    assert len({row["answer"] for row in mapped.rows("out.jsonl")[:4]}) == 1
    drawn = ("--temp", "1.5", "--seed", "7")
    assert mapped.told("in.jsonl", "drawn.jsonl", *drawn)["asked"] == 5
    assert len({row["answer"] for row in mapped.rows("drawn.jsonl")[:4]}) > 1
    mapped("in.jsonl", "again.jsonl", *drawn)
    assert mapped.rows("again.jsonl") == mapped.rows("drawn.jsonl")


def test_stdin_and_stdout(mapped: Mapped) -> None:
    rows = sms_rows(3)
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    write_jsonl(mapped.folder / "in.jsonl", rows)
    mapped("in.jsonl", "out.jsonl")
    mapped("-", "piped.jsonl", input=lines.encode())
    assert (mapped.folder / "piped.jsonl").read_bytes() == (mapped.folder / "out.jsonl").read_bytes()


def test_files_that_would_be_lost_are_refused(mapped: Mapped) -> None:
    write_jsonl(mapped.folder / "in.jsonl", sms_rows(1))
    assert "name another --out" in mapped("in.jsonl", "in.jsonl", code=1)
    (mapped.folder / "mine.jsonl").write_text("mine")
    assert "it is not replaced" in mapped("in.jsonl", "mine.jsonl", code=1)
    assert (mapped.folder / "mine.jsonl").read_text() == "mine"
    assert "write .jsonl" in mapped("in.jsonl", "out.csv", code=1)
    assert "not read or written here" in mapped("in.jsonl", "out.parquet", code=1)


@pytest.mark.parametrize("out", ["out.jsonl", "out.jsonl.gz"])
def test_a_job_writes_and_removes_nothing_but_its_own(mapped: Mapped, out: str) -> None:
    """Whatever bears one of the names that a job uses, before its first run and after it, is there as it was."""
    rows, given = sms_rows(1), mapped.folder / "in.jsonl"
    partial, work = mapped.folder / f"{out}.partial", mapped.folder / f"{out}.work"
    write_jsonl(given, rows)
    for _ in range(2):
        write_jsonl(partial, rows)
        text = partial.read_bytes()
        assert "is written to while the job runs" in mapped(partial.name, out, code=1)
        linked = mapped.folder / "link.jsonl"
        linked.symlink_to(partial)
        assert "is written to while the job runs" in mapped(linked.name, out, code=1)
        linked.unlink()
        assert partial.read_bytes() == text
        if not work.exists():
            assert "it is not replaced" in mapped(given.name, out, code=1)
            assert partial.read_bytes() == text
        partial.unlink()
        partial.mkdir()
        (partial / "mine").write_text("mine")
        assert "is a folder, and its name is needed" in mapped(given.name, out, code=1)
        assert (partial / "mine").read_text() == "mine"
        (partial / "mine").unlink()
        partial.rmdir()
        partial.symlink_to(given)
        assert "is a link, and its name is needed" in mapped(given.name, out, code=1)
        partial.unlink()
        (mapped.folder / f"{out}.replaced").write_text("mine")
        mapped(given.name, out)
        assert (mapped.folder / f"{out}.replaced").read_text() == "mine" and given.exists()
    write_jsonl(work / "mine.jsonl", rows)
    assert "where this job keeps its answers" in mapped(f"{out}.work/mine.jsonl", out, code=1)
    assert (work / "mine.jsonl").exists()


def test_the_file_of_a_folder_is_no_output(mapped: Mapped) -> None:
    (mapped.folder / "rows").mkdir()
    data = write_jsonl(mapped.folder / "rows" / "train.jsonl", sms_rows(1))
    before = data.read_bytes()
    (mapped.folder / "rows" / "train.jsonl.work").mkdir()
    (mapped.folder / "rows" / "train.jsonl.work" / "job.json").write_text("{}")
    assert "name another --out" in mapped("rows", "rows/train.jsonl", code=1)
    assert data.read_bytes() == before


def test_a_row_that_fails_is_a_row_with_its_error(mapped: Mapped, monkeypatch: pytest.MonkeyPatch) -> None:
    write_jsonl(mapped.folder / "in.jsonl", sms_rows(6))
    with monkeypatch.context() as patch:
        request = Requests.request

        def failing(self: Requests, ask: Ask, seed: int | None) -> Request:
            made = request(self, ask, seed)
            if "Bank" in str(ask.row):
                made.logits_processors = [lambda tokens, logits: 1 / 0]
            return made

        patch.setattr(Requests, "request", failing)
        failed = [row["id"] for row in sms_rows(6) if "Bank" in str(row)]
        assert len(failed) == 1
        told = mapped("in.jsonl", "out.jsonl", code=3)
        assert "1 row has an error" in told and "--retry-errors" in told
        found = mapped.rows("out.jsonl")
        assert [row["id"] for row in found] == list(range(6))
        assert [row["id"] for row in found if row["error"]] == failed
        assert found[failed[0]]["error"] == "ZeroDivisionError: division by zero"
        stopped = mapped("in.jsonl", "stopped.jsonl", "--max-errors", "0", code=1)
        assert "1 row failed, more than --max-errors 0" in stopped and not (mapped.folder / "stopped.jsonl").exists()
    mapped("in.jsonl", "out.jsonl", code=3)
    assert mapped.rows("out.jsonl") == found, "errors are kept until they are asked for again"
    assert f"{len(failed)} to answer" in mapped("in.jsonl", "out.jsonl", "--retry-errors")
    assert all(row["answer"] and row["error"] is None for row in mapped.rows("out.jsonl"))


@pytest.mark.parametrize("error", [ValueError("no"), KeyError("no"), RuntimeError("no"), OSError("no")])
@pytest.mark.parametrize("where", ["checked", "request", "add"])
def test_whatever_one_row_raises_the_others_go_on(
    mapped: Mapped, monkeypatch: pytest.MonkeyPatch, where: str, error: Exception
) -> None:
    owner: type = BatchEngine if where == "add" else Requests
    write_jsonl(mapped.folder / "in.jsonl", [{"prompt": text} for text in ("one", "two", "three")])
    monkeypatch.setattr(owner, where, raising_once(getattr(owner, where), error))
    mapped("in.jsonl", "out.jsonl", *["--keep-bad-rows"] * (where == "checked"), code=3)
    found = [row["error"] for row in mapped.rows("out.jsonl")]
    assert sorted(told or "" for told in found) == ["", "", f"{type(error).__name__}: {error}"]


@pytest.mark.parametrize("where", ["checked", "request", "add"])
def test_no_memory_is_no_fault_of_a_row(mapped: Mapped, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    owner: type = BatchEngine if where == "add" else Requests
    write_jsonl(mapped.folder / "in.jsonl", sms_rows(2))
    monkeypatch.setattr(owner, where, raising_once(getattr(owner, where), MemoryError()))
    mapped("in.jsonl", "out.jsonl", code=1)
    assert not (mapped.folder / "out.jsonl").exists()


def raising_once(function: Callable[..., Any], error: Exception) -> Callable[..., Any]:
    """What raises when it is called for the second time."""
    calls = 0

    def called(*given: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise error
        return function(*given, **named)

    return called


def test_one_is_told_as_one(mapped: Mapped) -> None:
    (mapped.folder / "in.jsonl").write_text('{"prompt": "a"}\n{"prompt": "a"}\n{\n')
    told = mapped("in.jsonl", "out.jsonl", "--keep-bad-rows", code=3)
    assert "1 that asks the same" in told and "1 row in " in told and "1 row has an error" in told
    assert "1 rows" not in told


def test_data_without_a_row_is_named(mapped: Mapped) -> None:
    (mapped.folder / "in.jsonl").write_text("\n")
    assert "in.jsonl, is empty" in mapped("in.jsonl", "out.jsonl", code=1)
    assert "stdin, is empty" in mapped("-", "out.jsonl", code=1, input=b"")


def test_unordered_rows_are_the_same_rows(mapped: Mapped) -> None:
    write_jsonl(mapped.folder / "in.jsonl", sms_rows(12))
    mapped("in.jsonl", "out.jsonl")
    mapped("in.jsonl", "any.jsonl", "--unordered")
    found = mapped.rows("any.jsonl")
    assert sorted(found, key=lambda row: row["id"]) == mapped.rows("out.jsonl")


def test_data_that_changes_meanwhile_is_told_and_nothing_is_written(
    mapped: Mapped, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_jsonl(mapped.folder / "in.jsonl", sms_rows(6))
    with monkeypatch.context() as patch:
        begin = Journal.begin

        def changing(self: Journal, name: str) -> None:
            begin(self, name)
            write_jsonl(data, sms_rows(5))

        patch.setattr(Journal, "begin", changing)
        assert "has changed while" in mapped("in.jsonl", "out.jsonl", code=1)
    assert not (mapped.folder / "out.jsonl").exists()
    mapped("in.jsonl", "out.jsonl")
    assert [row["id"] for row in mapped.rows("out.jsonl")] == list(range(5))
