"""Reading messages: edited and remembered lines at a terminal, messages of several lines, or lines from a pipe."""

from __future__ import annotations

import re
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from daari_mlx.chat.commands import COMMANDS, as_message
from daari_mlx.chat.history import History
from daari_mlx.chat.screen import quiet
from daari_mlx.ground.stdin import read_lines
from daari_mlx.show.shades import is_dumb

PROMPT, MORE = "> ", "... "
QUOTES = '"""'
_OPENS = re.compile(r'(/\w+\s+)?"""')  # a block, by itself or as the words of a command


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
    remember = _edited(history)
    told = False
    while True:
        try:
            text = _message(input)
        except KeyboardInterrupt:
            print(flush=True)
            quiet("q quits")
            continue
        except EOFError:
            print(flush=True)
            return
        except UnicodeDecodeError as error:
            quiet(f"That was no {error.encoding.upper()} text, nothing is sent: paste it once more.")
            continue
        if text.strip():
            remember(text)
        if not history.kept and not told:
            told = True
            quiet(f"What you type is not kept for the next chat: {history.path} cannot be written.")
        yield text


def _message(read: Callable[[str], str]) -> str:
    """One message of one or several lines, as the line that would be typed for it.

    Lines that were pasted together come in one piece and stay as they are.
    """
    line = read(PROMPT).rstrip("\n")
    if "\n" in line:
        return line
    if opened := _OPENS.match(line):
        return _block(line[opened.end() :], opened[1], read)
    parts = []
    while _goes_on(line):
        parts.append(line[:-1])
        line = _further(read)
    return "\n".join([*parts, line])


def _goes_on(line: str) -> bool:
    """Whether a backslash ends the line; two of them are two."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _block(first: str, command: str | None, read: Callable[[str], str]) -> str:
    """The text between two triple quotes; ``first`` is what follows the opening ones."""
    lines = [first]
    while not lines[-1].rstrip().endswith(QUOTES):
        lines.append(_further(read))
    lines[-1] = lines[-1].rstrip()[: -len(QUOTES)]
    if len(lines) > 1:  # quotes that stand alone on their line are no line of the text
        lines = lines[not lines[0] : None if lines[-1] else -1]
    text = "\n".join(lines)
    return f"{command}{text}" if command else as_message(text)


def _further(read: Callable[[str], str]) -> str:
    try:
        return read(MORE).rstrip("\n")
    except EOFError:  # Ctrl-D in the middle of a message drops the message, not the chat
        raise KeyboardInterrupt from None


def _edited(history: History) -> Callable[[str], None]:
    """Give ``input`` line editing, bracketed paste, completion of commands and a history; return what adds to that."""
    try:
        import readline
    except ImportError:  # a Python without it: the terminal's own editing remains
        return lambda _text: None
    readline.set_auto_history(False)
    for entry in history.load():
        readline.add_history(entry)
    if "libedit" not in (readline.__doc__ or ""):  # it knows no pasting, and a pasted tab would complete
        if _pastes_whole():
            readline.parse_and_bind("set enable-bracketed-paste on")  # Python turns it off
        readline.set_completer(_complete)
        readline.set_completer_delims("\n")
        readline.parse_and_bind("tab: complete")

    def remember(text: str) -> None:
        count = readline.get_current_history_length()
        if count == 0 or readline.get_history_item(count) != text:
            readline.add_history(text)
            history.append(text)

    return remember


def _complete(text: str, number: int) -> str | None:
    """The ``number``-th command that begins with ``text``; None for no more."""
    found = [f"{name} " for name in COMMANDS if text.startswith("/") and name.startswith(text)]
    return found[number] if number < len(found) else None


def _pastes_whole() -> bool:
    """Whether pasted lines come in one piece: GNU readline, and a terminal that brackets what is pasted."""
    readline = sys.modules.get("readline")
    return readline is not None and "libedit" not in (readline.__doc__ or "") and not is_dumb()


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
    brackets = sys.stdout.isatty() and _pastes_whole()
    try:
        termios.tcsetattr(terminal, termios.TCSANOW, unseen)
        print("\033[?2004h" * brackets, end="", flush=True)
        yield
    finally:
        print("\033[?2004l" * brackets, end="", flush=True)
        termios.tcsetattr(terminal, termios.TCSANOW, before)
