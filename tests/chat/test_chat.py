from __future__ import annotations

import os
import signal
import sys
from io import StringIO
from types import SimpleNamespace

import pytest
from scripted_chat import Scripted
from typer.testing import CliRunner

from daari_mlx.chat import reading, screen
from daari_mlx.chat.loop import chat
from daari_mlx.cli import main as cli
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.legible import width
from daari_mlx.text.template import ChatTemplate


def ctrl_c(_progress=None) -> None:
    os.kill(os.getpid(), signal.SIGINT)


class Screen(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def pipe(monkeypatch):
    """Feed stdin by a pipe."""
    return lambda *lines: monkeypatch.setattr(sys, "stdin", StringIO("".join(f"{line}\n" for line in lines)))


@pytest.fixture
def terminal(monkeypatch):
    """Type at a terminal: an exception in the lines is raised in place of one."""

    def type_in(*lines):
        waiting = iter(lines)

        def read() -> str:
            line = next(waiting, EOFError())
            if isinstance(line, BaseException):
                raise line
            return line

        screens = Screen(), Screen()
        monkeypatch.setattr(sys, "stdin", Screen())
        monkeypatch.setattr(sys, "stdout", screens[0])
        monkeypatch.setattr(sys, "stderr", screens[1])
        monkeypatch.setattr(reading, "Editor", lambda _history: SimpleNamespace(read=read))
        return screens

    return type_in


def test_the_whole_conversation_is_asked_again_with_the_system_prompt_first(pipe, capsys):
    engine = Scripted("a", "b")
    pipe("one", "", "two")
    chat(engine, system_prompt="Be brief.", max_tokens=9)
    system = {"role": "system", "content": "Be brief."}
    one = [system, {"role": "user", "content": "one"}]
    assert engine.asked == [one, [*one, {"role": "assistant", "content": "ab"}, {"role": "user", "content": "two"}]]
    assert engine.options == {"max_tokens": 9}
    out, err = capsys.readouterr()
    assert out == "ab\nab\n"
    figures = "7 prompt tokens prefilled · 2 tokens · 10.0 tokens/s · 2.00 tokens per forward · 50% accepted\n"
    assert err == figures * 2


def test_r_forgets_h_helps_and_q_quits(pipe, capsys):
    engine = Scripted("x")
    pipe("one", "r", "h", "two", "q", "three")
    chat(engine, system_prompt="S")
    assert [[m["content"] for m in asked] for asked in engine.asked] == [["S", "one"], ["S", "two"]]
    assert engine.resets == 1
    assert "Ctrl-D quits" in capsys.readouterr().err


def test_ctrl_c_stops_the_answer_between_tokens_and_keeps_what_was_said(terminal):
    engine = Scripted("kept ", ctrl_c, "too", "never")
    before = signal.getsignal(signal.SIGINT)
    out, err = terminal("one", "two", "q")
    chat(engine)
    assert out.getvalue() == "kept too\n" * 2
    assert engine.closed == 2
    assert [m["content"] for m in engine.asked[1]] == ["one", "kept too", "two"]
    assert "stopped" in err.getvalue()
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_while_the_prompt_is_read_takes_the_question_back(terminal):
    def prefill(progress) -> None:
        ctrl_c()
        progress(512, 2048)

    engine = Scripted(prefill, "never")
    out, err = terminal("one", "two")
    chat(engine)
    assert [[m["content"] for m in asked] for asked in engine.asked] == [["one"], ["two"]]
    assert "never" not in out.getvalue() and "stopped" in err.getvalue()


def test_a_second_ctrl_c_is_not_held_back(terminal):
    engine = Scripted("a", ctrl_c, ctrl_c, "b")
    terminal("one")
    with pytest.raises(KeyboardInterrupt):
        chat(engine)
    assert engine.closed == 1


def test_at_the_prompt_ctrl_c_drops_the_line_and_ctrl_d_quits(terminal):
    engine = Scripted("x")
    _, err = terminal(KeyboardInterrupt(), "one", EOFError(), "never asked")
    chat(engine)
    assert len(engine.asked) == 1
    assert "q quits" in err.getvalue()


def too_long(_progress) -> None:
    raise DaariError("The prompt has 99 tokens, the teacher's context holds 64: shorten it.")


def test_a_mistake_at_the_terminal_is_told_and_the_chat_goes_on(terminal):
    engine = Scripted(too_long)
    _, err = terminal("one", "two")
    chat(engine)
    assert [[m["content"] for m in asked] for asked in engine.asked] == [["one"], ["two"]]
    assert err.getvalue().count("error: The prompt has 99 tokens") == 2


def test_a_mistake_in_a_pipe_ends_the_chat(pipe):
    engine = Scripted(too_long)
    pipe("one", "two")
    with pytest.raises(DaariError, match="99 tokens"):
        chat(engine)
    assert len(engine.asked) == 1


def test_a_template_that_rejects_the_messages_is_the_user_s_affair(pipe):
    class Strict(Scripted):
        def stream_chat(self, messages, **options):
            self.tokenizer.apply_chat_template = rejecting
            return self.stream(ChatTemplate(self.tokenizer).prompt_ids(messages))

    def rejecting(messages, **options):
        raise RuntimeError("System role not supported")

    pipe("one")
    with pytest.raises(DaariError, match="rejects the messages: RuntimeError: System role not supported"):
        chat(Strict())


def test_a_tokenizer_without_a_chat_template_cannot_chat(pipe):
    pipe("one")
    with pytest.raises(DaariError, match="no chat template"):
        chat(Scripted(has_chat_template=False))


def test_lines_about_the_chat_are_dim_at_a_terminal_unless_no_color(terminal, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    out, err = terminal("h")
    chat(Scripted("x"))
    assert "\033[2m" in err.getvalue() and "\033" not in out.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    _, err = terminal("h")
    chat(Scripted("x"))
    assert "\033" not in err.getvalue()


def test_a_second_turn_prefills_only_what_is_new(tiny_teacher, tiny_teacher_path):
    _, tokenizer = tiny_teacher
    # the answer's only token comes back as itself when it is rendered
    args = ["chat", "--model", str(tiny_teacher_path), "-m", "1", "--num-draft-tokens", "0"]
    result = CliRunner().invoke(cli.app, args, input="Are you coming on Saturday?\nAnd on Sunday?\n")
    assert result.exit_code == 0, result.exception
    first, second = (int(line.split()[0]) for line in result.stderr.splitlines() if "prefilled" in line)
    said = result.stdout.splitlines()[0]
    turns = [
        {"role": "user", "content": "Are you coming on Saturday?"},
        {"role": "assistant", "content": said},
        {"role": "user", "content": "And on Sunday?"},
    ]
    start = tokenizer.apply_chat_template(turns[:1], add_generation_prompt=True)
    whole = tokenizer.apply_chat_template(turns, add_generation_prompt=True)
    assert first == len(start)
    assert whole[: len(start)] == start
    assert second == len(whole) - len(start)


def test_chat_errors_come_as_one_line(tmp_path):
    result = CliRunner().invoke(cli.app, ["chat", "--model", str(tmp_path / "none")], input="hi\n")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: There is no model at")


@pytest.mark.parametrize("columns", [12, 20, 33])
def test_lines_about_the_chat_keep_to_the_terminal_whatever_they_are_written_in(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wide character takes two columns, a colour none."""
    monkeypatch.setattr(screen, "columns", lambda: columns)
    line = "漢字漢字漢字漢字 漢字 · ದಾರಿ ಮಾರ್ಗ · \033[2mtwo words\033[0m · 👍 · " + "漢" * 40
    shown = screen.in_lines(line)
    assert max(map(width, shown.splitlines())) <= columns
    letters = [c for c in line if c not in " ·"]
    assert [c for c in shown if c not in " ·\n"] == letters
