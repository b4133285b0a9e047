"""The commands of a chat, what is a command and what a message, and what an answer may be cut by."""

from __future__ import annotations

import json
import sys
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest
from graphs import Compiled
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput
from scripted_chat import Response, Scripted
from typer.testing import CliRunner

from daari_mlx.chat.commands import COMMANDS, as_message, read_line
from daari_mlx.chat.history import KEPT, History
from daari_mlx.chat.loop import chat
from daari_mlx.cli import main as cli
from daari_mlx.ground.accept import Statistics
from daari_mlx.ground.errors import DaariError
from daari_mlx.text.data import read_sequences


def piped(monkeypatch: pytest.MonkeyPatch, engine: Scripted, *lines: str, **options: Any) -> Scripted:
    monkeypatch.setattr(sys, "stdin", StringIO("".join(f"{line}\n" for line in lines)))
    chat(engine, **options)
    return engine


def contents(engine: Scripted) -> list[list[str]]:
    return [[m["content"] for m in asked] for asked in engine.asked]


@pytest.mark.parametrize(
    ("line", "at_a_terminal", "from_a_pipe"),
    [
        ("q", ("/quit", ""), ("/quit", "")),
        ("r", ("/reset", ""), ("/reset", "")),
        ("h", ("/help", ""), ("/help", "")),
        ("/exit", ("/exit", ""), ("/exit", "")),
        ("q ", (None, "q "), (None, "q ")),
        ("/Stats", ("/stats", ""), ("/stats", "")),
        ("/system  Be brief. ", ("/system", "Be brief."), ("/system", "Be brief.")),
        ("/system\none\ntwo", ("/system", "one\ntwo"), ("/system", "one\ntwo")),
        ("/system one\ntwo", ("/system", "one\ntwo"), ("/system", "one\ntwo")),
        ("/nope x", ("/nope", "x"), (None, "/nope x")),
        ("/", ("/", ""), (None, "/")),
        ("//reset", (None, "/reset"), (None, "//reset")),
        (" /reset", (None, "/reset"), (None, " /reset")),
        (" q", (None, "q"), (None, " q")),
        ("  /x", (None, " /x"), (None, "  /x")),
        (" hello", (None, " hello"), (None, " hello")),
        ("/var/log: full\nmore", (None, "/var/log: full\nmore"), (None, "/var/log: full\nmore")),
    ],
)
def test_what_is_a_command_and_what_a_message(line: str, at_a_terminal: Any, from_a_pipe: Any) -> None:
    assert read_line(line, interactive=True) == at_a_terminal
    assert read_line(line, interactive=False) == from_a_pipe


@given(st.one_of(st.text(max_size=6), st.text("/qrh \n", max_size=5), st.sampled_from(sorted(COMMANDS))))
def test_any_text_can_be_sent_as_a_message(text: str) -> None:
    assert read_line(as_message(text), interactive=True) == (None, text)


def test_a_system_prompt_is_shown_set_and_taken_away(monkeypatch, capsys) -> None:
    lines = ("/system", "one", "/system Be brief.", "two", "/system", '/system ""', "three")
    engine = piped(monkeypatch, Scripted("x"), *lines)
    assert contents(engine) == [["one"], ["Be brief.", "two"], ["three"]]
    assert engine.resets == 2
    told = capsys.readouterr().err
    assert "There is no system prompt" in told and told.count("the conversation starts anew") == 2
    assert "\nBe brief.\n" in told


@pytest.mark.parametrize("silent", [False, True])
def test_a_template_without_a_system_role_is_told_and_the_conversation_kept(monkeypatch, capsys, silent: bool) -> None:
    engine = Scripted("x")
    template = engine.tokenizer.apply_chat_template

    def without_system(messages, **options):
        if messages[0]["role"] == "system" and not silent:
            raise ValueError("System role not supported")
        return template([m for m in messages if m["role"] != "system"], **options)

    engine.tokenizer.apply_chat_template = without_system
    why = "leaves system prompts out" if silent else "rejects the messages: ValueError: System role not supported"
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        keys.send_text("one\r/system Be brief.\rtwo\r\x04")
        chat(engine)
    assert contents(engine) == [["one"], ["one", "x", "two"]]
    assert engine.resets == 0
    assert why in " ".join(capsys.readouterr().err.split())
    with pytest.raises(DaariError, match=why):
        chat(engine, system_prompt="Be brief.")


def test_stats_sum_the_conversation_and_begin_anew_with_it(monkeypatch, capsys) -> None:
    counts = [
        Statistics(tokens=4, forwards=2, drafted=4, accepted=2, sources={"copy": 2, "teacher": 2}),
        Statistics(tokens=6, forwards=2, drafted=4, accepted=4, sources={"edge": 4, "teacher": 2}),
    ]
    answers = iter([Response("a", 10, 4, 8.0, statistics=counts[0]), Response("b", 5, 6, 4.0, statistics=counts[1])])
    engine = Scripted()
    monkeypatch.setattr(engine, "stream", lambda _progress: (r for r in [next(answers)]))
    piped(monkeypatch, engine, "/stats", "one", "two", "/stats", "/reset", "/stats", context_length=100)
    told = capsys.readouterr().err
    assert told.count("Nothing has been answered yet.") == 2
    table = dict(line.split("  ", 1) for line in told.splitlines() if "  " in line)
    found = {name: value.strip() for name, value in table.items()}
    assert found == {
        "answers": "2",
        "prompt tokens": "15 prefilled",
        "tokens": "10",
        "forwards": "4",
        "tokens per forward": "2.50",
        "acceptance": "75% of 8 draft tokens",
        "sources": "copy 2, teacher 4, edge 4",
        "tokens/s": "5.0",
        "context": "8 of 100 tokens",
    }


def test_a_saved_conversation_is_data_for_compile(monkeypatch, capsys, tmp_path: Path, tiny_teacher) -> None:
    file = tmp_path / "my chats.jsonl"
    engine = piped(monkeypatch, Scripted("né\n😀"), "one", "two", f'/save "{file}"', system_prompt="S")
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    said = {"role": "assistant", "content": "né\n😀"}
    assert [row["messages"] for row in rows] == [[*asked, said] for asked in engine.asked]
    assert "2 rows, one for each answer" in capsys.readouterr().err
    sequences = read_sequences(file, tiny_teacher[1]).items
    assert [tiny_teacher[1].decode(s.tokens[s.answer_start : -1]) for s in sequences] == ["né\n😀"] * 2


def test_save_replaces_a_file_only_when_told_to(monkeypatch, capsys, tmp_path: Path) -> None:
    file = tmp_path / "chat.jsonl"
    file.write_text("mine")
    with pytest.raises(DaariError, match=r"is there already.*--force"):
        piped(monkeypatch, Scripted("x"), "one", f"/save {file}")
    assert file.read_text() == "mine"
    piped(monkeypatch, Scripted("x"), "one", f"/save {file} --force")
    assert json.loads(file.read_text())["messages"][0]["content"] == "one"
    assert [found.name for found in tmp_path.iterdir()] == ["chat.jsonl"]
    named = tmp_path / "a --force b"  # its name says nothing
    named.write_text("mine")
    with pytest.raises(DaariError, match="is there already"):
        piped(monkeypatch, Scripted("x"), "one", f'/save "{named}"')
    assert named.read_text() == "mine"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("/save", "takes one file.*found 0"),
        ("/save a b", "takes one file.*found 2"),
        ('/save "a', "No closing quotation"),
        ("/save .", "is a folder"),
        ("/save no/such/folder/x", "There is no folder no/such/folder"),
        ("/drafts maybe", "on or off, found 'maybe'"),
        ("/drafts on", "this is a pipe"),
        ("/reset now", "takes no words, found 'now'"),
        ("/exit now", "takes no words, found 'now'"),
        ("/load", "takes one file.*found 0"),
        ("/load no.jsonl", "There is no conversation at no.jsonl"),
    ],
)
def test_commands_that_cannot_be_say_why(monkeypatch, tmp_path: Path, line: str, why: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DaariError, match=why):
        piped(monkeypatch, Scripted("x"), "one", line)


def test_a_saved_conversation_goes_on_where_it_was(monkeypatch, capsys, tmp_path: Path) -> None:
    file = tmp_path / "chat.jsonl"
    piped(monkeypatch, Scripted("x"), "one", "two", f"/save {file}", system_prompt="S")
    engine = piped(monkeypatch, Scripted("y"), "other", f"/load {file}", "three")
    assert contents(engine)[-1] == ["S", "one", "x", "two", "x", "three"] and engine.resets == 1
    assert "2 answers" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "no JSON", "{}", '{"messages": [{"role": "user", "content": "x"}]}', "[" * 99999])
def test_what_is_no_saved_chat_is_refused_and_the_chat_goes_on(monkeypatch, tmp_path: Path, text: str) -> None:
    file = tmp_path / "chat.jsonl"
    file.write_text(text)
    engine = Scripted("x")
    with pytest.raises(DaariError, match=r"chat\.jsonl is no chat"):
        piped(monkeypatch, engine, "one", f"/load {file}")
    assert engine.resets == 0


def test_an_answer_is_taken_back_or_given_anew(monkeypatch, capsys) -> None:
    engine = piped(monkeypatch, Scripted("x"), "one", "two", "/retry", "/undo", "three")
    assert contents(engine) == [["one"], ["one", "x", "two"], ["one", "x", "two"], ["one", "x", "three"]]
    assert "Taken back: two" in capsys.readouterr().err
    for command in ("/retry", "/undo"):
        with pytest.raises(DaariError, match="Nothing has been answered yet"):
            piped(monkeypatch, Scripted("x"), command)


def test_an_answer_stays_where_nothing_came_in_its_place(monkeypatch) -> None:
    engine = Scripted("x")
    answers = iter([["x"], [], ["z"]])
    monkeypatch.setattr(engine, "stream", lambda _progress: (Response(text) for text in next(answers)))
    piped(monkeypatch, engine, "one", "/retry", "two")
    assert contents(engine)[-1] == ["one", "x", "two"]


def test_there_is_nothing_to_save_before_an_answer_nor_of_an_empty_one(monkeypatch, tmp_path: Path) -> None:
    for lines in ((), ("one",)):
        with pytest.raises(DaariError, match="no answer to save yet"):
            piped(monkeypatch, Scripted(""), *lines, f"/save {tmp_path / 'x'}")


def test_a_message_longer_than_the_context_is_refused_with_both_counts(monkeypatch) -> None:
    engine = Scripted("x")
    with pytest.raises(DaariError, match=r"has 11 tokens, and the teacher's context holds 11: .*/reset"):
        piped(monkeypatch, engine, "1 2 3 4 5 6 7 8 9 10", context_length=11)
    assert engine.asked == []


@pytest.mark.parametrize(("asked", "given"), [(9, 9), (60, 8), (-1, 8)])
def test_an_answer_ends_where_the_context_does(monkeypatch, asked: int, given: int) -> None:
    engine = piped(monkeypatch, Scripted("x"), "one", max_tokens=asked, context_length=10 if given == 8 else 100)
    assert engine.options["max_tokens"] == given


@pytest.mark.parametrize(
    ("count", "why"), [(9, "cut by --max-tokens 9"), (5, "the teacher's context of 7 tokens is full")]
)
def test_an_answer_that_is_cut_says_by_what(monkeypatch, capsys, count: int, why: str) -> None:
    cut = Response("x", generation_tokens=count, finish_reason="length")
    piped(monkeypatch, Scripted(cut), "one", max_tokens=9, context_length=100 if count == 9 else 7)
    assert capsys.readouterr().err.endswith(f"{why}\n")


def test_a_context_that_fills_up_is_told(monkeypatch, capsys) -> None:
    piped(monkeypatch, Scripted("x"), "1 2 3 4", "5 6", context_length=13)
    first, second = capsys.readouterr().err.splitlines()
    assert "context" not in first and second.endswith(" · context 12 of 13 tokens")


def test_bytes_that_are_no_text_are_told(monkeypatch) -> None:
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(b"caf\xe9\n"), encoding="utf-8"))
    with pytest.raises(DaariError, match="no UTF-8"):
        chat(Scripted("x"))
    engine = Scripted("x")
    with pytest.raises(DaariError, match="no UTF-8"):  # as a C locale hands them on
        piped(monkeypatch, engine, "caf\udce9")
    assert engine.asked == []


def test_a_history_keeps_whole_entries_and_its_newest(tmp_path: Path) -> None:
    history = History(tmp_path / "folder" / "history")
    assert history.earlier() == []
    for entry in ("one", "two\nlines", '"é'):
        history.remember(entry)
    with history.path.open("a") as file:
        file.write('{"no": "text"}\nno JSON\n"\\u0000"\n"\\ud800"\n')
    assert history.earlier() == ["one", "two\nlines", '"é']
    history.path.chmod(0o644)
    for number in range(2 * KEPT):
        history.remember(str(number))
    assert history.path.stat().st_mode & 0o777 == 0o600
    newest = [str(number) for number in range(KEPT, 2 * KEPT)]
    assert history.earlier() == newest == [json.loads(line) for line in history.path.read_text().splitlines()]
    assert history.kept


@pytest.mark.parametrize("drafter", ["graph", "model", "lookup", "none"])
def test_commands_and_counts_with_every_drafter(compiled: Compiled, tiny_teacher_path: Path, drafter: str) -> None:
    args = ["chat", "--model", str(tiny_teacher_path), "--drafter", drafter, "-m", "12", "--num-draft-tokens", "4"]
    args += {"graph": ["--graph", str(compiled.path)], "model": ["--draft-model", str(tiny_teacher_path)]}.get(
        drafter, []
    )
    lines = "Are you coming on Saturday?\nAnd on Sunday?\n/stats\n/reset\n/stats\n"
    result = CliRunner().invoke(cli.app, args, input=lines)
    assert result.exit_code == 0, result.exception
    counts = next(line for line in result.stderr.splitlines() if line.startswith("sources"))
    tokens = next(line for line in result.stderr.splitlines() if line.startswith("tokens  "))
    assert sum(int(part.split()[-1]) for part in counts.removeprefix("sources").split(",")) == int(tokens.split()[-1])
    assert result.stderr.endswith("Nothing has been answered yet.\n")
    assert ("model" in counts) == (drafter == "model")
