"""Reading messages: edited and remembered at a terminal, of one line or several, or lines from a pipe."""

from __future__ import annotations

import re
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.keys import Keys
from prompt_toolkit.shortcuts import CompleteStyle

from daari_mlx.chat.commands import COMMANDS, as_message
from daari_mlx.chat.history import History
from daari_mlx.chat.screen import quiet
from daari_mlx.ground.stdin import read_lines
from daari_mlx.show.shades import is_dumb

PROMPT, MORE = "> ", "... "
QUOTES = '"""'
_OPENS = re.compile(r'(/\w+\s+)?"""')  # a block, by itself or as the words of a command

_NAMES_FILE = re.compile(r"/(save|load)\s+(--force\s+)?(?!\S*\s)", re.IGNORECASE)  # ahead of the file's name


def piped() -> Iterator[str]:
    """The lines of stdin.

    Raises:
        DaariError: they are no text.
    """
    return read_lines("chat")


def typed(history: History) -> Iterator[str]:
    """What is typed at the terminal, a message at a time; Ctrl-C drops the message, Ctrl-D at its beginning ends all.

    Args:
        history: of earlier chats; what is typed is added to it.
    """
    read, told = _line_by_line if is_dumb() else Editor(history).read, False
    while True:
        try:
            text = read()
        except KeyboardInterrupt:
            quiet("q quits")
            continue
        except EOFError:
            return
        if text.strip():
            history.remember(text)
        if not history.kept and not told:
            told = True
            quiet(f"What you type is not kept for the next chat: {history.path} cannot be written.")
        yield text


class Editor:
    """Reads one message at a time; prompt_toolkit edits, pastes, completes and remembers.

    Enter sends, unless the message goes on: behind a backslash and within triple quotes it begins a new line, as
    Alt-Enter does anywhere. What was pasted, or comes from the history, is sent as it is.

    Args:
        history: of earlier chats.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        self._pasted = False  # whether the message has lines that were pasted
        self._session: PromptSession[str] = PromptSession(
            multiline=True,
            prompt_continuation=MORE,
            completer=_Commands(),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
            key_bindings=self._keys(),
            history=history,
            enable_suspend=True,
        )

    def read(self) -> str:
        """One message.

        Raises:
            KeyboardInterrupt: Ctrl-C; the message is dropped.
            EOFError: Ctrl-D at its beginning.
        """
        self._pasted = False
        text = self._session.prompt(PROMPT)
        return text.strip("\n") if self._stays(text) else message_of(text)

    def _stays(self, text: str) -> bool:
        """Whether backslashes and quotes in a message mean themselves."""
        return self._pasted or text in self._history.get_strings()

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add("enter")
        def _enter(event: Any) -> None:
            buffer = event.current_buffer
            if goes_on(buffer.text) and not self._stays(buffer.text):
                buffer.newline(copy_margin=False)
            else:
                buffer.validate_and_handle()

        @keys.add("escape", "enter")
        def _alt_enter(event: Any) -> None:
            event.current_buffer.newline(copy_margin=False)

        @keys.add("c-d")
        def _end(event: Any) -> None:
            buffer = event.current_buffer
            if not buffer.text:
                event.app.exit(exception=EOFError)
            elif not buffer.document.current_line:  # in the middle of a message it drops the message, not the chat
                event.app.exit(exception=KeyboardInterrupt)
            else:
                buffer.delete()

        @keys.add(Keys.BracketedPaste)
        def _paste(event: Any) -> None:
            text = event.data.replace("\r\n", "\n").replace("\r", "\n")
            self._pasted |= "\n" in text
            event.current_buffer.insert_text(text)

        return keys


def _line_by_line() -> str:
    """A message at a terminal that knows no escapes, where nothing can be edited but the line at hand."""
    text = input(PROMPT)
    while goes_on(text):
        try:
            text = f"{text}\n{input(MORE)}"
        except EOFError:
            raise KeyboardInterrupt from None
    return message_of(text)


class _Commands(Completer):
    """Completes a command at the beginning of a message, and the file behind one that takes a file."""

    def __init__(self) -> None:
        self._files = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        text = document.text_before_cursor
        if named := _NAMES_FILE.match(text):
            yield from self._files.get_completions(Document(text[named.end() :]), complete_event)
        elif text.startswith("/"):
            yield from (Completion(f"{name} ", -len(text)) for name in COMMANDS if name.startswith(text))


def goes_on(text: str) -> bool:
    """Whether more lines belong to what was typed: a block is open, or a backslash ends its last line."""
    if opened := _OPENS.match(text):
        return not text[opened.end() :].rstrip().endswith(QUOTES)
    return _odd_backslash(text.rsplit("\n", 1)[-1])


def message_of(text: str) -> str:
    """The message that was typed: without the quotes of a block, and without the backslashes that part lines."""
    if not (opened := _OPENS.match(text)):
        lines = text.split("\n")
        return "\n".join([*(line[:-1] if _odd_backslash(line) else line for line in lines[:-1]), lines[-1]])
    lines = text[opened.end() :].rstrip()[: -len(QUOTES)].split("\n")
    if len(lines) > 1:  # quotes that stand alone on their line are no line of the text
        lines = lines[not lines[0] : None if lines[-1] else -1]
    words = "\n".join(lines)
    return f"{opened[1]}{words}" if opened[1] else as_message(words)


def _odd_backslash(line: str) -> bool:
    """Whether a backslash ends the line; two of them are two."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


@contextmanager
def keys_unseen() -> Iterator[None]:
    """Keep what is typed or pasted while an answer streams from showing up in it; the next prompt takes it."""
    try:
        terminal = sys.stdin.fileno()
        before = termios.tcgetattr(terminal)
    except (OSError, ValueError, termios.error):  # no terminal
        yield
        return
    unseen = list(before)
    unseen[3] = before[3] & ~(termios.ECHO | termios.ICANON)  # Ctrl-C still interrupts
    brackets = sys.stdout.isatty() and not is_dumb()
    try:
        termios.tcsetattr(terminal, termios.TCSANOW, unseen)
        print("\033[?2004h" * brackets, end="", flush=True)
        yield
    finally:
        print("\033[?2004l" * brackets, end="", flush=True)
        termios.tcsetattr(terminal, termios.TCSANOW, before)
