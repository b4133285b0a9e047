"""The chat as a person meets it, at a pseudo-terminal: editing, pasting, several lines, Ctrl-C, Ctrl-D, colours."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import stat
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyte
import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from daari_mlx.chat.commands import COMMANDS, HELP
from daari_mlx.chat.reading import _Commands

PROGRAM = Path(__file__).with_name("scripted_chat.py")
PATIENCE = 60.0  # seconds until something that does not come is missed
UP, LEFT, CTRL_C, CTRL_D = "\x1b[A", "\x1b[D", "\x03", "\x04"
PASTE, END_PASTE = "\x1b[200~", "\x1b[201~"
ROWS = 300


class Terminal:
    """A chat at a terminal of many rows, so that all that was shown is still on it."""

    def __init__(self, environment: dict[str, str], columns: int, options: dict[str, Any]) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
        ends = {"stdin": slave, "stdout": slave, "stderr": slave}
        command = [sys.executable, str(PROGRAM), json.dumps(options)]
        self.process = subprocess.Popen(command, env=environment, start_new_session=True, **ends)
        self.slave, self.raw, self._from = slave, "", 0
        self.screen = pyte.Screen(columns, ROWS)
        self.screen.write_process_input = self.type  # a terminal answers where its cursor is asked for
        self._stream = pyte.Stream(self.screen)

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def text(self, row: int = 0) -> str:
        """What is shown from a row to the cursor's."""
        last = self.screen.cursor
        lines = [line.rstrip() for line in self.screen.display[row : last.y + 1]]
        if not lines:  # the cursor went up: what was typed was wiped
            return ""
        return "\n".join([*lines[:-1], lines[-1].ljust(last.x)])

    def wait(self, text: str) -> str:
        """What came since the last wait, up to ``text``."""
        return self._until(lambda shown: text in shown, text)

    def _until(self, there: Callable[[str], bool], what: str) -> str:
        deadline = time.monotonic() + PATIENCE
        while not there(shown := self.text(self._from)):
            if not self._read() or time.monotonic() > deadline:
                pytest.fail(f"{what!r} did not come: {shown!r}")
        self._from = self.screen.cursor.y
        return shown

    def ask(self, keys: str) -> str:
        """Type a line; return what is shown until the next prompt."""
        row = self._from
        self.type(f"{keys}\r")
        return self._until(
            lambda shown: shown.endswith("\n> ") and self.screen.cursor.y > row, f"a prompt after {keys!r}"
        )

    def ask_raw(self, keys: str) -> str:
        """The same, with all escapes."""
        start = len(self.raw)
        self.ask(keys)
        return self.raw[start:]

    def _read(self) -> bool:
        ready, _, _ = select.select([self.master], [], [], 0.05)
        if not ready:
            return self.process.poll() is None
        try:
            data = os.read(self.master, 65536).decode()
        except OSError:
            return False
        self.raw += data
        self._stream.feed(data)
        return bool(data)

    def end(self) -> int:
        """The exit status."""
        while self.process.poll() is None:
            self._read()
        return self.process.wait()


@pytest.fixture
def open_chat(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    """Start a chat; its history lies in ``tmp_path``."""
    opened = []

    def start(*, columns: int = 80, environment: dict[str, str] | None = None, **options: Any) -> Terminal:
        own = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "INPUTRC")}
        own |= {"DAARI_MLX_CACHE": str(tmp_path), "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **(environment or {})}
        opened.append(Terminal(own, columns, options))
        opened[-1].wait("Ctrl-D quits\n> ")
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.process.kill()
        terminal.process.wait()
        os.close(terminal.master)
        os.close(terminal.slave)


def test_messages_of_several_lines_arrive_as_one(open_chat: Callable[..., Terminal]) -> None:
    chat = open_chat()
    assert '1: "one\\ntwo"' in chat.ask("one\\\rtwo")
    assert '3: "C:\\\\\\\\"' in chat.ask("C:\\\\")  # two backslashes are two
    assert '5: "a\\n\\n  b"' in chat.ask('"""\ra\r\r  b\r"""')
    assert '7: "a b"' in chat.ask('"""a b"""')
    assert '9: "a\\nb"' in chat.ask('"""a\rb"""')
    assert '11: "q"' in chat.ask('"""q"""')
    assert '13: "/help"' in chat.ask('"""\r/help\r"""')
    chat.ask('/system """\rBe\r\rbrief.\r"""')
    assert "\nBe\n\nbrief.\n" in chat.ask("/system")


def test_what_is_pasted_arrives_as_one_message_as_it_is(open_chat: Callable[..., Terminal]) -> None:
    chat = open_chat()
    assert '1: "def f():\\n\\treturn 1"' in chat.ask(f"{PASTE}def f():\r\treturn 1\r{END_PASTE}")
    assert '3: "/var/log: full\\nq"' in chat.ask(f"{PASTE}/var/log: full\rq{END_PASTE}")
    assert '5: "see\\n\\"\\"\\"x\\"\\"\\"\\ndone\\\\"' in chat.ask(f'{PASTE}see\r"""x"""\rdone\\{END_PASTE}')


def test_lines_are_edited_and_remembered_in_the_next_chat(open_chat: Callable[..., Terminal], tmp_path: Path) -> None:
    chat = open_chat()
    assert '1: "abc"' in chat.ask(f"ac{LEFT}b")
    chat.ask('"""\r/a\rb\r"""')
    chat.type(CTRL_D)
    assert chat.end() == 0
    kept = tmp_path / "chat_history.jsonl"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    chat = open_chat()
    assert '1: "/a\\nb"' in chat.ask(UP)  # the quotes are not typed again, and it is no command
    assert '3: "abc"' in chat.ask(UP * 3)  # through the two lines of the newest one


def test_a_history_that_cannot_be_kept_is_told_once(open_chat: Callable[..., Terminal], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    chat = open_chat(environment={"DAARI_MLX_CACHE": str(tmp_path / "file" / "cache")})
    told = [" ".join(chat.ask(word).split()) for word in ("one", "two")]  # the path can be as wide as the screen
    assert [text.count("cannot be written") for text in told] == [1, 0]


def test_ctrl_c_stops_the_answer_and_keeps_the_conversation(open_chat: Callable[..., Terminal]) -> None:
    chat = open_chat()
    chat.type("slowly\r")
    chat.wait(" on on")
    chat.type("typed ahead" + CTRL_C)
    said = chat.wait("\n> ")
    assert "stopped" in said and "^C" not in said
    assert "typed ahead" not in said  # it does not stain the answer, and Ctrl-C drops it
    assert '3: "and now"' in chat.ask("and now")


def test_what_is_pasted_during_an_answer_is_one_message_too(open_chat: Callable[..., Terminal]) -> None:
    chat = open_chat()
    chat.type("briefly\r")
    chat.wait(" on on")
    chat.type(f"{PASTE}a\rb{END_PASTE}\r")
    chat.wait('3: "a\\nb"')


def test_ctrl_c_at_the_prompt_drops_the_message_and_ctrl_d_a_block(open_chat: Callable[..., Terminal]) -> None:
    chat = open_chat()
    chat.type("never sent")
    chat.wait("never sent")
    chat.type(CTRL_C)
    chat.wait("q quits\n> ")
    chat.type('"""\rnor this\r')
    chat.wait("... nor this\n... ")
    chat.type(CTRL_D)
    chat.wait("q quits\n> ")
    assert '1: "sent"' in chat.ask("sent")
    chat.type(CTRL_D)
    assert chat.end() == 0


def test_an_empty_line_asks_nothing(open_chat: Callable[..., Terminal]) -> None:
    chat = open_chat()
    assert chat.ask("") == ">\n> " and chat.ask("   ") == ">\n> "
    assert '1: "x"' in chat.ask("x")


def test_drafted_tokens_are_coloured_on_demand(open_chat: Callable[..., Terminal]) -> None:
    chat = open_chat()
    assert "\x1b[38" not in chat.raw
    assert "\x1b[38;5;28mcopy\x1b[0m" in chat.ask_raw("/drafts on")
    shown = chat.ask_raw("red green")
    assert " 1:\x1b[38;5;28m" in shown and '\x1b[38;5;28m "red\x1b[0m' in shown
    assert "tokens by source: \x1b[38;5;28mcopy\x1b[0m 3 · teacher 1" in shown
    chat.ask("/drafts off")
    assert "\x1b[38" not in chat.ask_raw("blue")


def test_no_color_leaves_no_colours(open_chat: Callable[..., Terminal]) -> None:
    chat = open_chat(environment={"NO_COLOR": "1"})
    for line in ("/drafts on", "red", "/stats", "/nope"):
        chat.ask(line)
    assert not re.search(r"\x1b\[(2|[349]\d|38;[0-9;]*)m", chat.raw)
    assert '\x1b[4m "red"\x1b[0m' in chat.raw


def test_a_dumb_terminal_gets_no_escapes(open_chat: Callable[..., Terminal]) -> None:
    chat = open_chat(environment={"TERM": "dumb"})
    for line in ("/drafts on", "red", "/stats", "/nope"):
        chat.ask(line)
    assert "\x1b" not in chat.raw and "tokens by source: copy 2 · teacher 1" in chat.raw


@pytest.mark.parametrize("columns", [80, 200])
def test_no_line_is_wider_than_the_terminal(open_chat: Callable[..., Terminal], columns: int) -> None:
    chat = open_chat(columns=columns, title="a teacher · drafted by a graph of some length · context of 8,192 tokens")
    for line in ("x", "/drafts on", "x", "/stats", "/nope", "/drafts x", "/help"):
        chat.ask(line)
    typed = ("> ", " 1:", " 3:")
    lines = [line for line in chat.text().splitlines() if not line.startswith(typed)]
    assert len(lines) > 20 and max(map(len, lines)) <= columns


def test_control_characters_in_an_answer_are_pictures(open_chat: Callable[..., Terminal]) -> None:
    shown = open_chat().ask_raw(f"{PASTE}raw \x1b]0;title\x07{END_PASTE}")
    assert "␛]0;title␇" in shown and "\x1b]0;title" not in shown


def completed(text: str) -> list[str]:
    """What Tab makes of a line, one of each possibility."""
    found = _Commands().get_completions(Document(text), CompleteEvent())
    return [text[: len(text) + one.start_position] + one.text for one in found]


def test_tab_completes_the_file_behind_a_command_that_takes_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chats").mkdir()
    for name in ("mine.jsonl", "more.jsonl", "chats/old.jsonl"):
        (tmp_path / name).write_text("")
    for command in ("/save", "/load", "/save --force", "/LOAD", "/load "):
        assert completed(f"{command} m") == [f"{command} mine.jsonl", f"{command} more.jsonl"]
        assert completed(f"{command} chats/o") == [f"{command} chats/old.jsonl"]
        assert completed(f"{command} {tmp_path}/mi") == [f"{command} {tmp_path}/mine.jsonl"]
    for text in ("/system m", "/save mine.jsonl m", "m", "see /load m", "/loads m"):
        assert completed(text) == []
    assert completed("/lo") == ["/load "]


def test_help_names_every_command() -> None:
    assert [name for name in COMMANDS if name not in re.findall(r"/\w+", HELP)] == []


def test_tab_completes_commands_at_the_beginning_only(open_chat: Callable[..., Terminal]) -> None:
    chat = open_chat()
    assert "Nothing has been answered yet." in chat.ask("/sta\t")
    assert '1: "see /sta"' in chat.ask("see /sta\t")
