"""`map_rows` gives what the command writes, a window of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from graphs import Compiled
from jobs import map_here, read_jsonl, sms_rows, write_jsonl
from mlx_lm.sample_utils import make_sampler

import daari_mlx.job.work as work
from daari_mlx import batch_generate, generate, learner_for, map_rows
from daari_mlx.decode.grammar import json_schema_processor
from daari_mlx.ground.errors import DaariError
from daari_mlx.job.asks import Asker
from daari_mlx.job.requests import row_seed
from daari_mlx.text.template import ChatTemplate

SCHEMA = {
    "type": "object",
    "properties": {"label": {"enum": ["ham", "spam"]}, "n": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["label", "n"],
    "additionalProperties": False,
}


def test_it_is_what_the_command_does(
    tmp_path: Path, tiny_teacher: tuple[Any, Any], tiny_teacher_path: Path, compiled: Compiled
) -> None:
    rows = sms_rows(9)
    data, out = write_jsonl(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    map_here("--model", tiny_teacher_path, "--data", data, "--out", out, "--max-tokens", 10, "--concurrency", 2)
    options: dict[str, Any] = {"graph": compiled.graph, "max_tokens": 10, "concurrency": 3}
    found = list(map_rows(*tiny_teacher, rows, **options))
    assert found == read_jsonl(out)
    early = list(map_rows(*tiny_teacher, rows, ordered=False, return_token_ids=True, **options))
    assert all(len(row.pop("token_ids")) == row["usage"]["completion_tokens"] for row in early)
    assert sorted(early, key=lambda row: row["id"]) == found


def test_schemas_and_seeds_are_those_of_generate(tiny_teacher: tuple[Any, Any]) -> None:
    model, tokenizer = tiny_teacher
    rows = [{"text": text} for text in ("pay now", "dinner at 8", "your bank", "call me")]
    options: dict[str, Any] = {"template": "Sort: {text}", "max_tokens": 40, "concurrency": 3}
    prompts = [
        ChatTemplate(tokenizer).prompt_ids([{"role": "user", "content": f"Sort: {row['text']}"}]) for row in rows
    ]
    held = list(map_rows(model, tokenizer, rows, json_schema=SCHEMA, **options))
    for row, prompt in zip(held, prompts, strict=True):
        processors = [json_schema_processor(tokenizer, SCHEMA)]
        assert row["answer"] == generate(model, tokenizer, prompt, max_tokens=40, logits_processors=processors)
        assert row["parsed"]["label"] in ("ham", "spam") and 0 <= row["parsed"]["n"] <= 9
    drawn = list(map_rows(model, tokenizer, rows, temp=1.2, seed=5, **options))
    for row, given, prompt in zip(drawn, rows, prompts, strict=True):
        mx.random.seed(row_seed(5, Asker("Sort: {text}")(given).key))
        assert row["answer"] == generate(model, tokenizer, prompt, max_tokens=40, sampler=make_sampler(1.2))


def test_rows_are_taken_as_they_are_needed(tiny_teacher: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "WINDOW", 8)
    taken = 0

    def rows() -> Iterator[dict[str, Any]]:
        nonlocal taken
        for row in sms_rows(60):
            taken += 1
            yield row

    answers = map_rows(*tiny_teacher, rows(), max_tokens=4, concurrency=2)
    assert taken == 0
    first = next(answers)
    assert first["id"] == 0 and taken == 8
    rest = list(answers)
    assert [row["id"] for row in rest] == list(range(1, 60)) and taken == 60


def test_a_row_that_cannot_be_asked_is_a_row_with_its_error(tiny_teacher: tuple[Any, Any]) -> None:
    rows = [{"text": "a"}, {"other": "b"}, {"text": "c", "error": 1}, {"text": "d" * 20000}, {"text": "e"}]
    found = list(map_rows(*tiny_teacher, rows, template="{text}", max_tokens=3, concurrency=2))
    assert [row["answer"] is not None for row in found] == [True, False, False, False, True]
    assert found[1]["error"].startswith("has no 'text'") and "longer than the context" in found[3]["error"]


class Unreadable(dict[str, Any]):
    def keys(self) -> Any:
        raise RuntimeError("no keys")


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("str", "is str, not a mapping"),
        (None, "is NoneType, not a mapping"),
        (3, "is int, not a mapping"),
        ([("text", "a")], "is list, not a mapping"),
        (Unreadable(text="a"), ""),
        ({"text": {"a"}}, "has in 'text' set that cannot be written as JSON"),
        ({"text": {(1, 2): 3}}, "has in 'text' dict that cannot be written as JSON"),
        ({"text": b"a"}, "has in 'text' bytes that cannot be written as JSON"),
        ({1: "a"}, "has no 'text', which template names"),
    ],
)
@pytest.mark.parametrize("ordered", [True, False])
def test_what_is_no_row_has_an_error_and_the_others_go_on(
    tiny_teacher: tuple[Any, Any], row: Any, told: str, ordered: bool
) -> None:
    rows = [{"text": "a"}, {"text": "b"}, row, {"text": "c"}]
    options: dict[str, Any] = {"max_tokens": 2, "concurrency": 2, "ordered": ordered}
    found = list(map_rows(*tiny_teacher, rows, template="{text}", **options))
    assert len(found) == 4 and sum(one["answer"] is not None for one in found) == (3 if told else 4)
    assert all((one["error"] or "").startswith(told) for one in found if one["answer"] is None)


@pytest.mark.parametrize("row", [{"messages": {1}}, {"messages": [{"role": "user", "content": {1}}]}, {"prompt": {1}}])
def test_what_json_cannot_hold_is_told_of_its_row(tiny_teacher: tuple[Any, Any], row: Any) -> None:
    bad, good = map_rows(*tiny_teacher, [row, {"prompt": "a"}], max_tokens=2)
    assert bad["error"] and bad["answer"] is None and good["answer"]


def test_fields_that_are_not_asked_may_be_anything(tiny_teacher: tuple[Any, Any]) -> None:
    (found,) = map_rows(*tiny_teacher, [{"prompt": "a", "mine": {1, 2}}], max_tokens=2)
    assert found["mine"] == {1, 2} and found["answer"]


@pytest.mark.parametrize("learn", [True, "folder", Path("folder"), 1])
def test_what_is_no_learner_is_refused_by_what_to_give(tiny_teacher: tuple[Any, Any], learn: Any) -> None:
    for call in (
        lambda: map_rows(*tiny_teacher, [], learn=learn),
        lambda: batch_generate(*tiny_teacher, [], learn=learn),
    ):
        with pytest.raises(DaariError, match=r"learn is .*: give a learner, such as daari_mlx\.learner_for"):
            call()


def test_options_are_named_as_python_gives_them(tiny_teacher: tuple[Any, Any]) -> None:
    said = [{"role": "system", "content": "S"}, {"role": "user", "content": "a"}]
    rows: list[dict[str, Any]] = [{"text": "a"}, {"other": "b"}, {"prompt": "a", "error": 1}, {"messages": said}]
    found = list(map_rows(*tiny_teacher, rows, system_prompt="T", max_tokens=2))
    assert all(row["error"] and "--" not in row["error"] for row in found)
    assert "template='Classify: {text}'" in found[0]["error"] and "prefix='my_'" in found[2]["error"]


def test_options_that_cannot_be_are_refused(tiny_teacher: tuple[Any, Any]) -> None:
    for options, told in (
        ({"temperature": 1}, "temperature is no option"),
        ({"concurrency": 0}, "concurrency is 0"),
        ({"template": "none"}, "names no field"),
        ({"max_tokens": 0}, "max_tokens is 0"),
    ):
        with pytest.raises(DaariError, match=told):
            map_rows(*tiny_teacher, [], **options)


def test_what_is_learnt_on_the_way_drafts_and_changes_no_word(tiny_teacher: tuple[Any, Any]) -> None:
    rows = sms_rows(24)
    options: dict[str, Any] = {"max_tokens": 12, "concurrency": 2}
    plain = list(map_rows(*tiny_teacher, rows, **options))
    learner = learner_for(*tiny_teacher)
    try:
        assert list(map_rows(*tiny_teacher, rows, learn=learner, **options)) == plain
        learner.wait()
        assert learner.snapshot.graph.nodes.centroids.size or learner.snapshot.earlier
    finally:
        learner.close()
    with pytest.raises(DaariError, match="graph and learn are given"):
        map_rows(*tiny_teacher, rows, learn=learner, graph="g")


def test_the_command_learns_into_a_folder(tmp_path: Path, tiny_teacher_path: Path) -> None:
    data = write_jsonl(tmp_path / "in.jsonl", sms_rows(8))
    options: list[Any] = ["--model", tiny_teacher_path, "--data", data, "--max-tokens", 8, "--concurrency", 2]
    map_here(*options, "--out", tmp_path / "plain.jsonl")
    map_here(*options, "--out", tmp_path / "out.jsonl", "--learn", tmp_path / "learnt")
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "plain.jsonl").read_bytes()
    assert any(tmp_path.glob("learnt*"))
