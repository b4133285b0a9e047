"""The commands of a chat: lines that begin with a slash, and mlx-lm's q, r and h."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

from daari_mlx.chat.figures import legend_of_all, stats_text
from daari_mlx.chat.saved import FORCE, read_conversation, write_rows
from daari_mlx.chat.screen import in_lines, plain, quiet
from daari_mlx.chat.session import Session
from daari_mlx.ground.errors import DaariError

HELP = """\
/help            this list
/reset           forget the conversation; the system prompt stays
/system TEXT     set the system prompt and start anew; "" takes it away,
                 without TEXT it is shown
/stats           figures of the conversation so far
/drafts on|off   show which tokens were drafted, in a colour for each source
/retry           answer the last message anew
/undo            take the last message and its answer back
/save FILE       write the conversation as JSONL, a row an answer, for
                 compile --data; --force replaces a FILE that is there
/load FILE       go on with a conversation that /save wrote
/quit, /exit     quit, as Ctrl-D does
q, r, h          quit, reset and help, as in mlx-lm

Several lines: Alt-Enter, or \\ at the end of a line, or \"\"\" before the
first and behind the last; what is pasted stays together. A message that
begins with a slash is sent as //… or with a space in front. Ctrl-C stops an answer and keeps
what was said, Ctrl-D quits."""

SHORT = {"q": "/quit", "r": "/reset", "h": "/help"}  # mlx-lm's
SHOWN = 60  # characters of a message that was taken back


class Quit(Exception):
    """The user wants to leave."""


def read_line(line: str, *, interactive: bool) -> tuple[str | None, str]:
    """What a line is: a command and its words, or ``None`` and the message to send.

    At a terminal each line that begins with a slash is a command, and ``//`` or a space in front makes it a message.
    From a pipe only the commands that exist are; any other line is a message as it is.

    Args:
        line: as it was typed; a message of several lines begins with a slash only for a command that exists.
        interactive: whether a person typed it.
    """
    if line in SHORT:
        return SHORT[line], ""
    word, _, rest = line.partition(" ") if "\n" not in line.partition(" ")[0] else line.partition("\n")
    if word.lower() in COMMANDS:
        return word.lower(), rest.strip()
    if not interactive:
        return None, line
    if line.startswith("//"):
        return None, line[1:]
    if line.startswith(" ") and _needs_escape(line[1:]):
        return None, line[1:]
    if line.startswith("/") and "\n" not in line:
        return word, rest.strip()
    return None, line


def as_message(text: str) -> str:
    """The line to type for ``text`` to be sent as a message, whatever it begins with."""
    return f" {text}" if _needs_escape(text) else text


def _needs_escape(text: str) -> bool:
    return text.lstrip(" ").startswith("/") or text.lstrip(" ") in SHORT


def run(session: Session, command: str, words: str) -> str | None:
    """Run one command; the message that is to be answered after it, or None.

    Args:
        command: with its slash.
        words: what follows it.

    Raises:
        DaariError: there is no such command, or it cannot do this.
        Quit: see :class:`Quit`.
    """
    if command not in COMMANDS:
        *names, last = COMMANDS
        raise DaariError(
            f"There is no command {command}: there are {', '.join(names)} and {last}. To send a message that begins "
            f"with a slash, type one more: /{command}"
        )
    wordless = command not in ("/system", "/drafts", "/save", "/load")
    if wordless and words:
        raise DaariError(f"{command} takes no words, found {words!r}: send it alone.")
    return COMMANDS[command](session, words)


def _help(_session: Session, _words: str) -> None:
    plain(HELP)


def _reset(session: Session, _words: str) -> None:
    session.reset()
    quiet("The conversation is forgotten.")


def _stats(session: Session, _words: str) -> None:
    if session.conversation.tally.answers:
        plain(stats_text(session))
    else:
        quiet("Nothing has been answered yet.")


def _system(session: Session, words: str) -> None:
    if not words:
        system = session.conversation.system
        plain(system if system is not None else "There is no system prompt: /system TEXT sets one.")
        return
    text = None if words in ('""', "''") else words
    session.set_system(text)
    quiet(f"The system prompt is {'gone' if text is None else 'set'}; the conversation starts anew.")


def _drafts(session: Session, words: str) -> None:
    if words not in ("", "on", "off"):
        raise DaariError(f"/drafts takes on or off, found {words!r}.")
    if words == "on" and not session.interactive:
        raise DaariError("/drafts on colours the answer at a terminal, and this is a pipe: leave it out.")
    if words:
        session.drafts = words == "on"
    if not session.drafts:
        quiet("Drafted tokens look like all others; /drafts on shows them.")
    elif session.drafter == "none":
        quiet("Drafted tokens will be shown, but nothing drafts here: start with --graph, --draft-model or --drafter.")
    else:
        plain(in_lines(legend_of_all(session.drafter)))


def _retry(session: Session, _words: str) -> str:
    return _take_back(session)


def _undo(session: Session, _words: str) -> None:
    message = _take_back(session)
    quiet(f"Taken back: {message if len(message) <= SHOWN else message[:SHOWN] + '…'}")


def _take_back(session: Session) -> str:
    turns = session.conversation.turns
    if len(turns) < 2:
        raise DaariError("Nothing has been answered yet.")
    message: str = turns[-2]["content"]
    del turns[-2:]
    return message


def _load(session: Session, words: str) -> None:
    path = _file(_names(words, "/load"), "/load")
    conversation = read_conversation(path)
    if conversation.system is not None:
        session.check_system()
    session.reset()
    session.conversation = conversation
    answers = sum(turn["role"] == "assistant" for turn in conversation.turns)
    quiet(f"The conversation of {path} goes on: {answers} answer{'s' * (answers != 1)}.")


def _names(words: str, command: str) -> list[str]:
    try:
        return shlex.split(words)
    except ValueError as error:
        raise DaariError(f"{command} cannot read {words!r}: {error}.") from error


def _file(names: list[str], command: str) -> Path:
    """The one file that is named."""
    if len(names) != 1:
        raise DaariError(
            f"{command} takes one file (in quotes where it has spaces), found {len(names)}: {command} FILE"
        )
    return Path(names[0]).expanduser()


def _save(session: Session, words: str) -> None:
    names = _names(words, "/save")
    path = _file([name for name in names if name != FORCE], "/save")
    rows = session.conversation.rows()
    if not rows:
        raise DaariError("There is no answer to save yet.")
    write_rows(path, rows, force=FORCE in names)
    quiet(f"Saved in {path}: {len(rows)} row{'s' * (len(rows) > 1)}, one for each answer; compile --data reads them.")


def _quit(_session: Session, _words: str) -> None:
    raise Quit


COMMANDS: dict[str, Callable[[Session, str], str | None]] = {
    "/help": _help,
    "/reset": _reset,
    "/system": _system,
    "/stats": _stats,
    "/drafts": _drafts,
    "/retry": _retry,
    "/undo": _undo,
    "/save": _save,
    "/load": _load,
    "/quit": _quit,
    "/exit": _quit,
}
