"""Which drafter the options name, and that nothing given is dropped silently."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from graphs import random_graph, write_rows
from typer.testing import CliRunner

from daari_mlx.cli import main as cli
from daari_mlx.cli.options.names import DrafterName
from daari_mlx.cost.length import Cost
from daari_mlx.decode.engine import SpecEngine
from daari_mlx.decode.generate import stream_generate
from daari_mlx.draft.lookup import LookupDrafter
from daari_mlx.draft.model import ModelDrafter
from daari_mlx.ground.errors import DaariError
from daari_mlx.teacher.load import Teacher, load_teacher


@pytest.mark.parametrize(
    ("kind", "graph", "draft_model", "expected"),
    [
        (None, None, None, "none"),
        (None, "g", None, "graph"),
        (None, None, "m", "model"),
        ("graph", "g", None, "graph"),
        ("model", None, "m", "model"),
        ("lookup", None, None, "lookup"),
        ("none", None, None, "none"),
        ("none", "g", "m", "none"),
        (None, "g", "m", "pair"),
        ("pair", "g", "m", "pair"),
    ],
)
def test_what_is_given_drafts(kind: Any, graph: Any, draft_model: Any, expected: str) -> None:
    assert DrafterName(graph, draft_model, kind).kind() == expected


@pytest.mark.parametrize(
    ("kind", "graph", "draft_model", "message"),
    [
        ("pair", "g", None, "needs --draft-model"),
        ("pair", None, "m", "needs --graph"),
        ("pair", None, None, "needs --graph and --draft-model"),
        ("graph", None, None, "needs --graph"),
        ("graph", None, "m", "needs --graph"),
        ("model", None, None, "needs --draft-model"),
        ("model", "g", "m", "--graph is given"),
        ("graph", "g", "m", "--draft-model is given"),
        ("lookup", "g", None, "--graph is given"),
        ("lookup", None, "m", "--draft-model is given"),
    ],
)
def test_what_is_missing_or_unused_is_told(kind: Any, graph: Any, draft_model: Any, message: str) -> None:
    with pytest.raises(DaariError, match=message):
        DrafterName(graph, draft_model, kind).load_graph()


def test_each_kind_drafts_the_same_words(
    tiny_teacher: Any, tiny_teacher_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher = Teacher(*tiny_teacher, str(tiny_teacher_path))
    monkeypatch.setattr("daari_mlx.cost.machine.cost_of", lambda _: Cost((1, 33), (1.0, 1.5)))
    monkeypatch.setattr("daari_mlx.draft.model.measure_draft_cost", lambda *_: 0.1)
    ids = teacher.tokenizer.encode("Lunch at noon? Lunch at noon? Lunch at")
    plain = [r.token for r in stream_generate(teacher.model, teacher.tokenizer, ids, 24)]
    for kind, draft_model, cls, source in (
        ("model", str(tiny_teacher_path), ModelDrafter, "model"),
        ("lookup", None, LookupDrafter, "prompt"),
    ):
        for length in ("auto", 3, 0):
            name = DrafterName(None, draft_model, kind, length)
            drafting = name.load(name.load_graph(), teacher, trust_remote_code=False)
            assert isinstance(drafting.drafter, cls)
            found = list(stream_generate(teacher.model, teacher.tokenizer, ids, 24, **drafting.options()))
            assert [r.token for r in found] == plain
            statistics = found[-1].statistics
            assert set(statistics.sources) <= {source, "teacher"}
            assert sum(statistics.sources.values()) == statistics.tokens == len(plain)
            assert (statistics.drafting_off is None) == (length != 0)
            if kind == "model" and length == 3:
                assert statistics.acceptance_rate == 1.0
    for name, length in ((DrafterName(), "auto"), (DrafterName(graph="unused", drafter="none"), 0)):
        nobody = name.load(name.load_graph(), teacher, trust_remote_code=False)  # "none" holds for a schema too
        assert nobody.options() == {"graph": None, "drafter": None, "num_draft_tokens": length}
    known = random_graph()
    graph = DrafterName("known", num_draft_tokens=3).load(known, teacher, trust_remote_code=False)
    assert graph.options() == {"graph": known, "drafter": None, "num_draft_tokens": 3}


def test_a_second_turn_is_read_from_where_the_first_ended(
    tiny_teacher: Any, tiny_teacher_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine keeps the teacher's cache and the drafter its own; both read only what is new."""
    teacher = Teacher(*tiny_teacher, str(tiny_teacher_path))
    small = load_teacher(str(tiny_teacher_path)).model
    drafter = ModelDrafter(small, num_draft_tokens=4, ends=teacher.tokenizer.eos_token_ids)
    engines = [SpecEngine(teacher.model, tokenizer=teacher.tokenizer, drafter=d) for d in (drafter, None)]
    read: list[int] = []
    feed = drafter.follower._feed
    monkeypatch.setattr(
        drafter.follower, "_feed", lambda tokens, rows: [read.append(len(tokens)), feed(tokens, rows)][1]
    )
    messages: list[dict[str, str]] = []
    for number, words in enumerate(["Lunch at noon?", "Win a prize now", "Your visit was moved"]):
        messages.append({"role": "user", "content": words})
        (text, stats), (plain, base) = (e.generate_chat(messages, max_tokens=20) for e in engines)
        assert text == plain and stats["prompt_tokens"] == base["prompt_tokens"]
        assert stats["acceptance_rate"] == 1.0, "it drafts for itself, so it must have read all that came before"
        assert number == 0 or max(read) <= stats["prompt_tokens"] + 5
        read.clear()
        messages.append({"role": "assistant", "content": text})
    with pytest.raises(DaariError, match="give one of them"):
        SpecEngine(teacher.model, random_graph(), tokenizer=teacher.tokenizer, drafter=drafter)
    with pytest.raises(DaariError, match="drafter cannot be given"):
        next(engines[0].stream_chat(messages, drafter=drafter))


def run(*args: object) -> Any:
    return CliRunner().invoke(cli.app, [str(a) for a in args])


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time is measured."""
    monkeypatch.setattr("daari_mlx.cost.machine.cost_of", lambda _: Cost((1, 33), (1.0, 1.5)))
    monkeypatch.setattr("daari_mlx.draft.model.measure_draft_cost", lambda *_: 0.1)


@pytest.mark.usefixtures("quick")
def test_every_command_takes_the_drafters(tiny_teacher_path: Path, tmp_path: Path) -> None:
    common = ("--model", tiny_teacher_path, "--max-tokens", 12)
    ask = ("generate", *common, "--prompt", "Win a prize now")
    plain = run(*ask, "--verbose", "False").stdout
    for how in (("--draft-model", tiny_teacher_path), ("--drafter", "lookup"), ("--drafter", "none")):
        assert run(*ask, *how, "--verbose", "False").stdout == plain
    shown = run(*ask, "--draft-model", tiny_teacher_path, "--num-draft-tokens", 3)
    assert "100%" in shown.stdout + shown.stderr
    write_rows(tmp_path / "test.jsonl", 2, seed=2)
    measured = run(
        "bench",
        *common,
        "--data",
        tmp_path,
        "-n",
        2,
        "--draft-model",
        tiny_teacher_path,
        "--num-draft-tokens",
        3,
        "--json",
    )
    record = json.loads(measured.stdout)
    assert record["ok"] and record["acceptance_rate"] == 1.0
    assert record["drafter"]["is"] == "ModelDrafter" and record["drafter"]["source"] == str(tiny_teacher_path)
    assert record["graph"] is None
    assert run("bench", *common, "--data", tmp_path).exit_code == 2
    wrong = run(*ask, "--drafter", "model")
    assert wrong.exit_code == 1 and "needs --draft-model" in wrong.stderr
    assert run(*ask, "--drafter", "oracle").exit_code == 2


@pytest.mark.usefixtures("quick")
def test_chat_with_a_drafting_model(tiny_teacher_path: Path) -> None:
    result = CliRunner().invoke(
        cli.app,
        ["chat", "--model", str(tiny_teacher_path), "--draft-model", str(tiny_teacher_path), "--max-tokens", "12"],
        input="Lunch?\nAnd tea?\n",
    )
    plain = CliRunner().invoke(
        cli.app, ["chat", "--model", str(tiny_teacher_path), "--max-tokens", "12"], input="Lunch?\nAnd tea?\n"
    )
    assert result.exit_code == 0 and result.stdout == plain.stdout
