"""Tables, packed files and OpenAI's batches, in and out."""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobs import map_here, read_jsonl, write_jsonl

from daari_mlx.ground.errors import DaariError
from daari_mlx.job.asks import Asker, Template
from daari_mlx.job.files import Kind, Line, Writer, read_lines
from daari_mlx.job.openai import PENALTIES, SAMPLING, BatchShape
from daari_mlx.job.shape import RowShape
from daari_mlx.text.messages import BadInput

ROWS = [{"id": "1", "text": "pay, now"}, {"id": "2", "text": 'two "lines"\nof ü'}, {"id": "3", "text": "dinner?"}]
PACKERS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
UNPACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.decompress,
    ".bz2": bz2.decompress,
    ".xz": lzma.decompress,
}


@pytest.fixture
def options(tiny_teacher_path: Path) -> list[Any]:
    return ["--model", tiny_teacher_path, "--max-tokens", 8, "--concurrency", 2]


def write_csv(path: Path) -> Path:
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        table = csv.DictWriter(file, ["id", "text"])
        table.writeheader()
        table.writerows(ROWS)
    return path


def test_tables_keep_their_columns_and_get_ours(tmp_path: Path, options: list[Any]) -> None:
    data, ask = write_csv(tmp_path / "in.csv"), ("--template", "Sort: {text}")
    map_here(*options, "--data", data, "--out", tmp_path / "out.csv", *ask)
    map_here(*options, "--data", data, "--out", tmp_path / "out.jsonl", *ask)
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    told = read_jsonl(tmp_path / "out.jsonl")
    assert [{name: row[name] for name in ("id", "text")} for row in found] == ROWS
    assert [row["answer"] for row in found] == [row["answer"] for row in told]
    assert [int(row["completion_tokens"]) for row in found] == [row["usage"]["completion_tokens"] for row in told]
    assert list(found[0]) == ["id", "text", "answer", "finish_reason", "prompt_tokens", "completion_tokens", "error"]


@pytest.mark.parametrize("suffix", PACKERS)
def test_packed_files_by_their_suffix(tmp_path: Path, options: list[Any], suffix: str) -> None:
    plain = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    (tmp_path / f"in.jsonl{suffix}").write_bytes(PACKERS[suffix](plain))
    ask = ("--data", tmp_path / f"in.jsonl{suffix}", "--prompt-feature", "text")
    map_here(*options, *ask, "--out", tmp_path / "out.jsonl")
    for name in ("packed", "again"):
        map_here(*options, *ask, "--out", tmp_path / f"{name}.jsonl{suffix}")
    packed = (tmp_path / f"packed.jsonl{suffix}").read_bytes()
    assert UNPACKERS[suffix](packed) == (tmp_path / "out.jsonl").read_bytes()
    assert packed == (tmp_path / f"again.jsonl{suffix}").read_bytes()


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.jsonl.gz", gzip.compress(b'{"text": "a"}\n', mtime=0)[:-9], "cannot be unpacked"),
        ("a.jsonl.xz", b'{"text": "a"}\n', "cannot be unpacked"),
        ("a.csv", b"id,id\n1,2\n", "name each column, and each once"),
        ("a.csv", b"", "name each column"),
        ("a.csv", b'id,"text"x\n1,a\n', "a.csv:1 .* is no CSV"),
        ("a.csv", b"id,t\xfft\n1,a\n", "a.csv:1 .* is not UTF-8: byte 0xff in column 2"),
        ("a.csv", "id,text\n1,a\n".encode("utf-16"), "a.csv:1 .* is not UTF-8"),
        ("a.jsonl", gzip.compress(b"{}", mtime=0), "is a gzip file"),
    ],
)
def test_files_that_are_not_what_they_say(tmp_path: Path, name: str, content: bytes, told: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DaariError, match=told):
        list(read_lines(tmp_path / name))


def test_a_row_of_a_table_with_other_columns_is_a_bad_row(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,text\n1,a,b\n\n2\n3,c\n")
    lines = list(read_lines(tmp_path / "a.csv"))
    assert [line.fields for line in lines] == [None, None, {"id": "3", "text": "c"}]
    assert lines[0].problem == "has 3 columns, not 2 as line 1" and lines[1].place.endswith("a.csv:4")


BROKEN = {  # a line: what is told, and the line as it is shown
    b"2,caf\xe9": ("not UTF-8: byte 0xe9 in column 2", "2,caf\ufffd"),
    b"\xff,x": ("not UTF-8: byte 0xff in column 1", "\ufffd,x"),
    b"2,\xed\xa0\x80": ("not UTF-8: byte 0xed", "2,\ufffd\ufffd\ufffd"),
    b'2,"a"b': ("no CSV: ", '2,"a"b'),
    b'2,"a': ("no CSV: unexpected end of data before a quote", '2,"a\n3,y'),
}


@pytest.mark.parametrize("line", BROKEN)
def test_a_broken_row_of_a_table_is_told_by_its_line_and_the_others_are_read(tmp_path: Path, line: bytes) -> None:
    """Wherever it stands; many rows lie before it, so that it is not in the first bytes that are read."""
    told, shown = BROKEN[line]
    for before in (0, 1, 5000):
        first = b'0,"two\nlines"\n' + b"1,x\n" * before
        last = b"3,y\n"
        (tmp_path / "a.csv").write_bytes(b"id,text\n" + first + line + b"\n" + last)
        lines = list(read_lines(tmp_path / "a.csv"))
        bad = [found for found in lines if found.fields is None]
        assert len(bad) == 1 and bad[0].place.endswith(f"a.csv:{before + 4}")
        assert bad[0].problem.startswith(told) and bad[0].text == shown
        assert lines[0].place.endswith("a.csv:2") and lines[0].fields == {"id": "0", "text": "two\nlines"}
        assert len(lines) == before + (2 if told.endswith("quote") else 3)


def test_broken_rows_of_a_table_are_kept(tmp_path: Path, options: list[Any]) -> None:
    data, out = tmp_path / "in.csv", tmp_path / "out.jsonl"
    data.write_bytes(b'id,text\n1,a\n2,caf\xe9\n3,"b"c\n4,d\n')
    ask = [*options, "--data", data, "--out", out, "--template", "{text}"]
    told = map_here(*ask, code=1)
    assert "2 bad rows" in told and "in.csv:3: not UTF-8: byte 0xe9" in told and "in.csv:4: no CSV" in told
    map_here(*ask, "--keep-bad-rows", code=3)
    assert [row.get("id") for row in read_jsonl(out)] == ["1", None, None, "4"]
    assert [bool(row["answer"]) for row in read_jsonl(out)] == [True, False, False, True]


def test_kinds_of_files() -> None:
    assert Kind.of("a/b.v2.csv.gz") == Kind(",", ".gz") and Kind.of("x.TSV") == Kind("\t") and Kind.of("x") == Kind()
    with pytest.raises(DaariError, match="not read or written"):
        Kind.of("a.parquet")


def test_a_table_writes_structures_as_json(tmp_path: Path) -> None:
    with (tmp_path / "a.csv").open("wb") as file:
        writer = Writer(file, Kind(","), ["a", "b"])
        writer.write({"a": {"x": "ü"}, "b": None})
        writer.close()
    assert (tmp_path / "a.csv").read_text(encoding="utf-8") == 'a,b\n"{""x"": ""ü""}",\n'


@pytest.mark.parametrize(
    "text", ["no field", "{}", "{a.b}", "{a[0]}", "{a!r}", "{a:>3}", "{a", "a}", "{a}}", "{{a}", "{a!"]
)
def test_templates_that_name_no_field_are_refused(text: str) -> None:
    """In one sentence, which names the option as it was given."""
    for flags, told in ((True, "^--template '"), (False, "^template '")):
        with pytest.raises(DaariError, match=told + r".*' (has|names) [^']*: write "):
            Template(text, flags=flags)


def test_keys_know_questions_whatever_else_their_rows_hold() -> None:
    ask = Asker("Sort {text}")
    assert ask({"text": "a", "id": 1}).key == ask({"id": 2, "text": "a", "completion": "x"}).key
    assert ask({"text": "a"}).key != ask({"text": "b"}).key != Asker("{text}")({"text": "b"}).key
    chat = Asker()
    said = [{"role": "user", "content": "a"}]
    answered = [*said, {"role": "assistant", "content": "b"}]
    assert chat({"messages": said}).key == chat({"messages": answered}).key
    assert chat({"messages": answered}).reference == "b" and chat({"messages": said}).reference is None
    with pytest.raises(BadInput, match="system message of its own"):
        Asker(None, "S")({"messages": [{"role": "system", "content": "T"}, *said]})


def batch_line(name: str, **body: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "pay now"}]
    body = {"model": "m", "messages": messages, **body}
    return {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body}


def test_openai_batches_in_and_out(tmp_path: Path, options: list[Any]) -> None:
    rows = [
        batch_line("a", max_tokens=3, user=None, temperature=0),
        batch_line("b"),
        batch_line("c", max_completion_tokens=5, temperature=1.3, seed=4, repetition_penalty=1.2),
        batch_line("d", logprobs=True),
        batch_line("e", temperature=-1),
    ]
    data, out = write_jsonl(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    told = map_here(*options, "--data", data, "--out", out, code=1)
    assert "'logprobs', which is not supported here" in told
    assert "in.jsonl:5: temperature is -1: give at least 0" in told
    map_here(*options, "--data", data, "--out", out, "--keep-bad-rows", code=3)
    found = read_jsonl(out)
    assert [row["custom_id"] for row in found] == ["a", "b", "c", "d", "e"]
    bodies = [row["response"]["body"] for row in found[:3]]
    assert [body["usage"]["completion_tokens"] for body in bodies] == [3, 8, 5]
    first = bodies[0]["choices"][0]
    assert (first["message"]["role"], first["finish_reason"], bodies[0]["model"]) == ("assistant", "length", "m")
    assert bodies[1]["choices"][0]["message"]["content"].startswith(first["message"]["content"])
    assert found[0]["error"] is None and found[3]["response"] is None and "logprobs" in found[3]["error"]["message"]
    assert "leave --template out" in map_here(*options, "--data", data, "--out", out, "--template", "{body}", code=1)


def test_bad_lines_of_a_batch_are_told_apart(tmp_path: Path, options: list[Any]) -> None:
    data, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    embeddings = {"custom_id": "e", "url": "/v1/embeddings", "body": {"input": "a"}}
    infinite = json.dumps(batch_line("i", frequency_penalty=float("inf")))
    lines = [json.dumps(batch_line("a")), "", "no JSON", json.dumps(embeddings), json.dumps(embeddings), infinite]
    data.write_text("\n".join(lines))
    map_here(*options, "--data", data, "--out", out, "--keep-bad-rows", code=3)
    found = read_jsonl(out)
    assert len({row["id"] for row in found}) == 5
    assert [row["error"] and row["error"]["line"] for row in found] == [None, 3, 4, 5, 6]
    assert found[1]["line"] == "no JSON" and found[4]["line"] == infinite
    assert found[2]["error"]["message"].startswith("asks for POST /v1/embeddings: ")
    again = tmp_path / "again.jsonl"
    map_here(*options, "--data", data, "--out", again, "--keep-bad-rows", code=3)
    assert again.read_bytes() == out.read_bytes()


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
@pytest.mark.parametrize("row", ['{{"text": "a", "id": {}}}', '{{"text": "a", "id": [{{"deep": [{}]}}]}}'])
def test_numbers_that_other_readers_refuse_are_refused(tmp_path: Path, number: str, row: str) -> None:
    (tmp_path / "a.jsonl").write_text(row.format(1.5) + "\n" + row.format(number) + "\n")
    good, bad = read_lines(tmp_path / "a.jsonl")
    assert good.fields is not None and bad.fields is None
    assert bad.place.endswith("a.jsonl:2") and "is no JSON" in bad.problem


@pytest.mark.parametrize("answer", ["NaN", '{"a": Infinity}', "1e999"])
def test_no_answer_is_parsed_to_what_json_cannot_hold(answer: str) -> None:
    record = {"answer": answer, "finish_reason": "stop", "prompt_tokens": 1, "completion_tokens": 1}
    assert RowShape(Asker(), parsed=True).written(Line("f:1", {}), bytes(16), record)["parsed"] is None


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"tools": []}, "'tools'"),
        ({"n": 2}, "one whole answer"),
        ({"stream": True}, "one whole answer"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"seed": "x"}, "seed is 'x'"),
        ({"response_format": {"type": "xml"}}, "response_format is 'xml'"),
        ({"stop": [""]}, "none of them empty"),
        ({"presence_penalty": "a"}, "presence_penalty is 'a'"),
    ],
)
def test_what_a_batch_cannot_have_is_refused_by_name(body: dict[str, Any], told: str) -> None:
    with pytest.raises(BadInput, match=f"(?i){told}"):
        BatchShape().ask(Line("f:1", batch_line("a", **body)))


WRONG: list[Any] = [-5, -(2**70), 10**400, *map(float, ("nan", "inf", "-inf")), True, "1", [1], {"a": 1}]
LARGE = 2**70
UNBOUND = {"max_tokens", "max_completion_tokens", "temperature", "top_k", "repetition_penalty"}
WHOLE = {"max_tokens", "max_completion_tokens", "top_k"}  # of these, 10**400 is a number like others


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "seed", *SAMPLING, *PENALTIES])
def test_a_number_that_cannot_be_is_told_by_its_own_name(name: str) -> None:
    for value in [*WRONG, LARGE]:
        if (value == LARGE and name in UNBOUND) or (value == 10**400 and name in WHOLE):
            continue
        with pytest.raises(BadInput) as told:
            BatchShape().ask(Line("f:1", batch_line("a", **{name: value})))
        assert told.value.reason.startswith(f"{name} is ") and ": give " in told.value.reason, value


def test_lines_with_bad_numbers_are_bad_rows_and_the_others_are_answered(tmp_path: Path, options: list[Any]) -> None:
    bad = [{"repetition_penalty": -1}, {"seed": LARGE, "temperature": 1}, {"repetition_context_size": LARGE}]
    bad += [{"repetition_context_size": -1}, {"frequency_penalty": -3}]
    fine: list[dict[str, Any]] = [{}, {"temperature": LARGE}, {"repetition_penalty": LARGE}, {"max_tokens": LARGE}]
    rows = [batch_line(f"b{k}", **body) for k, body in enumerate(bad)]
    rows += [batch_line(f"f{k}", **body) for k, body in enumerate(fine)]
    data, out = write_jsonl(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    told = map_here(*options, "--data", data, "--out", out, code=1)
    assert f"{len(bad)} bad rows" in told and "in.jsonl:1: repetition_penalty is -1: give at least 0" in told
    map_here(*options, "--data", data, "--out", out, "--keep-bad-rows", code=3)
    assert [row["custom_id"][0] for row in read_jsonl(out) if row["error"]] == ["b"] * len(bad)
    assert [row["custom_id"][0] for row in read_jsonl(out) if row["response"]] == ["f"] * len(fine)
