"""The commands of a chat: lines that begin with a slash, and mlx-lm's q, r and h."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

from daari_mlx.chat.figures import legend_of_all, stats_text
from daari_mlx.chat.screen import in_lines, plain, quiet
from daari_mlx.chat.session import Session
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.regular import FILE, FOLDER, what_is

HELP = """\
/help            this list
/reset           forget the conversation; the system prompt stays
/system TEXT     set the system prompt and start anew; "" takes it away,
                 without TEXT it is shown
/stats           figures of the conversation so far
/drafts on|off   show which tokens were drafted, in a colour for each source
/save FILE       write the conversation as JSONL, a row an answer, for
                 compile --data; --force replaces a FILE that is there
/quit            quit, as Ctrl-D does
q, r, h          quit, reset and help, as in mlx-lm

Several lines: end a line with \\, or type \"\"\" before the first and behind
the last; what is pasted stays together. A message that begins with a slash
is sent as //… or with a space in front. Ctrl-C stops an answer and keeps
what was said, Ctrl-D quits."""

SHORT = {"q": "/quit", "r": "/reset", "h": "/help", "/exit": "/quit"}  # the letters are mlx-lm's
FORCE = "--force"


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


def run(session: Session, command: str, words: str) -> None:
    """Run one command.

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
    wordless = command not in ("/system", "/drafts", "/save")
    if wordless and words:
        raise DaariError(f"{command} takes no words, found {words!r}: send it alone.")
    COMMANDS[command](session, words)


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


def _save(session: Session, words: str) -> None:
    try:
        names = shlex.split(words)
    except ValueError as error:
        raise DaariError(f"/save cannot read {words!r}: {error}.") from error
    force = FORCE in names
    names = [name for name in names if name != FORCE]
    if len(names) != 1:
        raise DaariError(f"/save takes one file, found {len(names)}: /save FILE (in quotes where it has spaces).")
    rows = session.conversation.rows()
    if not rows:
        raise DaariError("There is no answer to save yet.")
    path = Path(names[0]).expanduser()
    _write(path, "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows), force)
    quiet(f"Saved in {path}: {len(rows)} row{'s' * (len(rows) > 1)}, one for each answer; compile --data reads them.")


def _write(path: Path, text: str, force: bool) -> None:
    from daari_mlx.ground.files import whole

    if (found := what_is(path)) == FOLDER:
        raise DaariError(f"{path} is a folder: give the name of a file in it.")
    if found not in (None, FILE):
        raise DaariError(f"{path} is {found}: choose another name.")
    if found is not None and not force:
        raise DaariError(f"{path} is there already: choose another name, or replace it with /save {path} {FORCE}")
    if not path.parent.is_dir():
        raise DaariError(f"There is no folder {path.parent} for {path.name}: make it, or give another place.")
    try:
        with whole(path) as beside:
            beside.write_text(text, encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise DaariError(f"Cannot write {path}: {getattr(error, 'strerror', None) or error}.") from error


def _quit(_session: Session, _words: str) -> None:
    raise Quit


COMMANDS: dict[str, Callable[[Session, str], None]] = {
    "/help": _help,
    "/reset": _reset,
    "/system": _system,
    "/stats": _stats,
    "/drafts": _drafts,
    "/save": _save,
    "/quit": _quit,
}
