"""A chat template that prints a clock: rows are known by what they say, and a run goes on with what was rendered."""

from __future__ import annotations

import datetime
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphs import write_rows
from mlx_lm.utils import load_tokenizer
from transformers.utils import chat_template_utils

from daari_mlx.compile import answers, extract
from daari_mlx.compile.compiler import compile_graph
from daari_mlx.compile.extract import ExtractOptions
from daari_mlx.compile.update import update_graph
from daari_mlx.compile.workdir import Workdir
from daari_mlx.graph.artifact import load_folder, save_graph
from daari_mlx.graph.graph import Graph
from daari_mlx.ground.errors import DaariError
from daari_mlx.measure.bench import run_bench
from daari_mlx.measure.comparison import compare_drafters
from daari_mlx.measure.own_text import ask
from daari_mlx.measure.streams import load_streams, record, save_streams
from daari_mlx.teacher.load import Teacher
from daari_mlx.text.data import read_prompts, read_sequences
from daari_mlx.text.identity import prompt_hash, tokens_hash

TIME = "Now: {{ strftime_now('%H:%M:%S.%f') }}\n"
DATE = "Today: {{ strftime_now('%d %b %Y') }}\n"
READ = {"reference": read_sequences, "teacher": read_prompts}


class Clock:
    """Stands in for ``datetime`` where templates read it.

    Attributes:
        time: what it is.
        step: how far it moves each time that it is read.
    """

    def __init__(self) -> None:
        self.time = datetime.datetime(2024, 2, 28, 23, 59, 58)
        self.step = datetime.timedelta()

    def now(self) -> datetime.datetime:
        self.time += self.step
        return self.time


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(chat_template_utils, "datetime", made)
    return made


def dated(tiny_teacher: tuple[Any, Any], source: Path, prefix: str) -> Teacher:
    tokenizer = load_tokenizer(source)
    tokenizer._tokenizer.chat_template = "{{ bos_token }}clock\n" + prefix + tokenizer.chat_template
    return Teacher(tiny_teacher[0], tokenizer, str(source))


@pytest.fixture(params=["time", "date"])
def teacher(request: pytest.FixtureRequest, tiny_teacher: Any, tiny_teacher_path: Path, clock: Clock) -> Teacher:
    """Its template prints the time, which moves whenever it is read, or the date, which changes at midnight."""
    if request.param == "time":
        clock.step = datetime.timedelta(seconds=61, milliseconds=7)
    return dated(tiny_teacher, tiny_teacher_path, TIME if request.param == "time" else DATE)


def pass_midnight(clock: Clock) -> None:
    clock.time += datetime.timedelta(seconds=10)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extract, "PART", 2)
    monkeypatch.setattr(extract, "SAMPLE_STATES", 40)
    monkeypatch.setattr(answers, "PART", 3)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "train.jsonl"
    write_rows(path, 6, seed=9)
    return path


def options(kind: str) -> ExtractOptions:
    return ExtractOptions(answers=kind, max_tokens=12, dimensions=16)


def compiled(teacher: Teacher, data: Path, folder: Path, kind: str = "teacher") -> Graph:
    workdir = Workdir(folder)
    extract.extract(teacher, READ[kind](data, teacher.tokenizer).items, workdir, options(kind))
    return compile_graph(workdir, nodes=16).graph


def contents(folder: Path) -> dict[str, bytes]:
    found = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    found.pop("extract_stats.json", None)
    return found


# --- overlap


@pytest.mark.parametrize("kind", READ)
def test_rows_that_were_compiled_are_refused_whenever_they_are_rendered(
    teacher: Teacher, data: Path, tmp_path: Path, clock: Clock, kind: str
) -> None:
    graph = compiled(teacher, data, tmp_path / "work", kind)
    before = read_prompts(data, teacher.tokenizer).items
    pass_midnight(clock)
    prompts = read_prompts(data, teacher.tokenizer).items
    assert [p.tokens for p in prompts] != [p.tokens for p in before]
    with pytest.raises(DaariError, match="compiled from 6 of these 6 prompts"):
        run_bench(teacher, graph, prompts, max_tokens=2)
    allowed = run_bench(teacher, graph, prompts[:1], max_tokens=2, num_draft_tokens=1, allow_overlap=True, warmup=0)
    assert allowed.about["overlap"] == 1
    with pytest.raises(DaariError, match="compiled from all of these 6 prompts"):
        ask(teacher, graph, prompts, 2)
    file = tmp_path / "streams.safetensors"
    save_streams(record(teacher, prompts, [graph.layer], 3), file)
    with pytest.raises(DaariError, match="compiled from 6 of these 6 prompts"):
        compare_drafters(load_streams(file), graph, ["lookup"], [])


def test_the_same_content_in_another_shape_is_the_same_prompt(
    teacher: Teacher, tmp_path: Path, clock: Clock, data: Path
) -> None:
    graph = compiled(teacher, data, tmp_path / "work")
    said = [json.loads(line)["messages"] for line in data.read_text().splitlines()]
    other = tmp_path / "other.jsonl"
    parts = [{"type": "text", "text": said[1][0]["content"]}]
    rows: list[dict[str, Any]] = [
        {"prompt": said[0][0]["content"], "completion": "other"},
        {"messages": [{"content": parts, "role": "user"}], "tools": [], "id": 4},
        {"messages": said[2][:1], "tools": "[]"},
        {"messages": said[3][:1], "tools": [{"type": "function", "function": {"name": "f"}}]},
        {"messages": [{"role": "system", "content": "Be brief."}, *said[4][:1]]},
    ]
    other.write_text("".join(json.dumps(row) + "\n" for row in rows))
    pass_midnight(clock)
    prompts = read_prompts(other, teacher.tokenizer).items
    with pytest.raises(DaariError, match=r"compiled from 3 of these 5 prompts: \S+:1, \S+:2, \S+:3\. "):
        run_bench(teacher, graph, prompts, max_tokens=2)
    variables = read_prompts(data, teacher.tokenizer, chat_template_config={"brief": True}).items
    assert ask(teacher, graph, variables[:1], 2)[1] == 0


def test_a_graph_of_an_older_version_knows_rendered_prompts(
    tiny_teacher: Any, tiny_teacher_path: Path, data: Path, tmp_path: Path, clock: Clock
) -> None:
    """It refuses what it refused before, one that was updated both kinds; streams without hashes go by their tokens."""
    teacher = dated(tiny_teacher, tiny_teacher_path, DATE)
    prompts = read_prompts(data, teacher.tokenizer).items
    new = compiled(teacher, data, tmp_path / "work")
    rendered = np.unique(np.array([prompt_hash(p.tokens) for p in prompts[:4]], np.uint64))
    old = load_folder(save_graph(replace(new, prompts=rendered), tmp_path / "old", {}))
    with pytest.raises(DaariError, match="compiled from 4 of these 6 prompts"):
        run_bench(teacher, old, prompts, max_tokens=2)
    _, known = ask(teacher, old, prompts, 2)
    assert known == 4
    streams = record(teacher, prompts, [old.layer], 3)
    for found in (streams, replace(streams, items=tuple(replace(s, known_as=None) for s in streams.items))):
        with pytest.raises(DaariError, match="compiled from 4 of these 6 prompts"):
            compare_drafters(found, old, ["lookup"], [])
    pass_midnight(clock)
    more = tmp_path / "more.jsonl"
    write_rows(more, 3, seed=77)
    workdir = Workdir(tmp_path / "update")
    rows = read_prompts(more, teacher.tokenizer).items
    how = replace(options("teacher"), layer=old.layer)
    extract.extract(teacher, rows, workdir, how, projection=old.nodes.projection)
    both = update_graph(old, workdir).graph
    assert len(both.prompts) == 4 + 3
    with pytest.raises(DaariError, match="compiled from 3 of these 3 prompts"):
        run_bench(teacher, both, read_prompts(more, teacher.tokenizer).items, max_tokens=2)


# --- resuming


@pytest.mark.parametrize("kind", READ)
def test_a_stopped_run_goes_on_whatever_the_clock_says(
    teacher: Teacher, data: Path, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """To the bytes of a run that nobody stopped: with the prompts that were recorded first."""
    rows = READ[kind](data, teacher.tokenizer).items
    extract.extract(teacher, rows, Workdir(tmp_path / "whole"), options(kind))
    for count in range(1, 5):  # files that are written before it stops
        workdir = Workdir(tmp_path / f"work{count}")
        with monkeypatch.context() as patch:
            written, save = 0, extract.save_arrays

            def stop(*args: Any, most: int = count, write: Any = save) -> None:
                nonlocal written
                written += 1
                if written > most:
                    raise KeyboardInterrupt
                write(*args)

            patch.setattr(extract, "save_arrays", stop)
            with pytest.raises(KeyboardInterrupt):
                extract.extract(teacher, rows, workdir, options(kind))
        pass_midnight(clock)
        again = READ[kind](data, teacher.tokenizer).items
        assert [r.tokens for r in again] != [r.tokens for r in rows]
        extract.extract(teacher, again, workdir, options(kind))
        assert contents(workdir.path) == contents(tmp_path / "whole")


@pytest.mark.parametrize("kind", READ)
def test_other_rows_are_still_another_run(
    teacher: Teacher, data: Path, tmp_path: Path, clock: Clock, kind: str
) -> None:
    workdir = Workdir(tmp_path / "work")
    read = READ[kind]
    extract.extract(teacher, read(data, teacher.tokenizer).items, workdir, options(kind))
    lines = [json.loads(line) for line in data.read_text().splitlines()]
    lines[2]["messages"][0]["content"] += "!"
    changed = tmp_path / "changed.jsonl"
    changed.write_text("".join(json.dumps(line) + "\n" for line in lines))
    rendered = read(data, teacher.tokenizer, chat_template_config={"brief": True}).items
    for rows in (read(changed, teacher.tokenizer).items, read(data, teacher.tokenizer).items[::-1], rendered):
        with pytest.raises(DaariError, match=r"of other data, "):
            extract.extract(teacher, rows, workdir, options(kind))
    tokenizer = teacher.tokenizer._tokenizer
    tokenizer.chat_template = tokenizer.chat_template.replace("clock", "watch")
    with pytest.raises(DaariError, match=r"of other data, "):
        extract.extract(teacher, read(data, teacher.tokenizer).items, workdir, options(kind))


def test_another_answer_is_another_run_where_answers_are_learnt(teacher: Teacher, data: Path, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in data.read_text().splitlines()]
    lines[0]["messages"][-1]["content"] = "something else"
    changed = tmp_path / "changed.jsonl"
    changed.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for kind, read in READ.items():
        workdir = Workdir(tmp_path / kind)
        extract.extract(teacher, read(data, teacher.tokenizer).items, workdir, options(kind))
        rows = read(changed, teacher.tokenizer).items
        if kind == "teacher":
            extract.extract(teacher, rows, workdir, options(kind))
            continue
        with pytest.raises(DaariError, match=r"of other data, "):
            extract.extract(teacher, rows, workdir, options(kind))


@pytest.mark.parametrize("kind", READ)
def test_a_folder_of_an_older_version_goes_on_while_its_prompts_are_rendered_alike(
    tiny_teacher: Any, tiny_teacher_path: Path, data: Path, tmp_path: Path, clock: Clock, kind: str
) -> None:
    teacher = dated(tiny_teacher, tiny_teacher_path, DATE)
    rows = READ[kind](data, teacher.tokenizer).items
    workdir = Workdir(tmp_path / "work")
    extract.extract(teacher, rows, workdir, options(kind))
    expected = contents(workdir.path)
    recorded = json.loads(workdir.plan_path.read_text())
    recorded["corpus"] = tokens_hash((r.tokens, getattr(r, "answer_start", len(r.tokens))) for r in rows)
    workdir.plan_path.write_text(json.dumps(recorded))
    for gone in (workdir.rows_path, workdir.done_path, workdir.shard_path(1)):
        gone.unlink()
    extract.extract(teacher, READ[kind](data, teacher.tokenizer).items, workdir, options(kind))
    found = contents(workdir.path)
    assert found.pop("extract.json") != expected.pop("extract.json") and found == expected
    pass_midnight(clock)
    with pytest.raises(DaariError, match=r"of other data, "):
        extract.extract(teacher, READ[kind](data, teacher.tokenizer).items, workdir, options(kind))


def test_a_damaged_record_of_rows_is_told(teacher: Teacher, data: Path, tmp_path: Path) -> None:
    rows = read_prompts(data, teacher.tokenizer).items
    workdir = Workdir(tmp_path / "work")
    extract.extract(teacher, rows, workdir, options("teacher"))
    workdir.done_path.unlink()
    files = extract.load_arrays(workdir.rows_path)
    for damaged in (files | {"ends": files["ends"][:-1]}, {"tokens": files["tokens"]}):
        extract.save_arrays(workdir.rows_path, damaged)
        with pytest.raises(DaariError, match=r"rows\.safetensors is damaged"):
            extract.extract(teacher, rows, workdir, options("teacher"))


# --- one row


def test_the_answer_is_found_while_the_clock_moves(teacher: Teacher, data: Path, clock: Clock) -> None:
    """Prompt and whole row are rendered one after the other."""
    clock.step = clock.step or datetime.timedelta(seconds=3)
    sequences, prompts = read_sequences(data, teacher.tokenizer).items, read_prompts(data, teacher.tokenizer).items
    said = [json.loads(line)["messages"][-1]["content"] for line in data.read_text().splitlines()]
    for sequence, prompt, answer in zip(sequences, prompts, said, strict=True):
        assert teacher.tokenizer.decode(sequence.tokens[sequence.answer_start :]) == answer + "<|im_end|>"
        assert prompt.reference == sequence.tokens[sequence.answer_start :]
