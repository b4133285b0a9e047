"""The terminal chat: one conversation, one cache; answers go to stdout, everything about them to stderr."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from daari_mlx.chat import commands as chat_commands
from daari_mlx.chat import figures as chat_figures
from daari_mlx.chat import reading as chat_input
from daari_mlx.chat.conversation import Conversation
from daari_mlx.chat.history import NAME, History
from daari_mlx.chat.screen import AnswerText, in_lines, plain, prefill_line, quiet
from daari_mlx.chat.session import NO_TEMPLATE, Engine, Session, StoppedBeforeAnswer
from daari_mlx.cost.probe import cache_dir
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.given import is_text

if TYPE_CHECKING:
    from daari_mlx.decode.responses import GenerationResponse

WELCOME = "/help lists the commands, Ctrl-C stops an answer, Ctrl-D quits"


def chat(
    engine: Engine,
    *,
    system_prompt: str | None = None,
    context_length: int | None = None,
    drafter: str = "none",
    title: str | None = None,
    **options: Any,
) -> None:
    """Read messages from stdin and answer them until ``q``, Ctrl-D or the end of stdin.

    At a terminal a mistake (a message longer than the context) is printed and the chat goes on; fed by a pipe, it ends
    with the error.

    Args:
        engine: whose cache is kept from turn to turn.
        system_prompt: put before the conversation, also after ``r``.
        context_length: the most tokens the teacher holds; None where that is not known.
        drafter: who drafts: ``"graph"``, ``"model"``, ``"lookup"`` or ``"none"``.
        title: a line about teacher and drafter, shown first at a terminal.
        options: those of :meth:`daari_mlx.SpecEngine.stream_chat`.

    Raises:
        DaariError: the tokenizer has no chat template, or that has no place for the system prompt; see above.
        KeyboardInterrupt: Ctrl-C while reading from a pipe.
    """
    if not engine.tokenizer.has_chat_template:
        raise DaariError(NO_TEMPLATE)
    session = Session(
        engine,
        options,
        Conversation(system_prompt),
        context_length=context_length,
        drafter=drafter,
        interactive=sys.stdin.isatty() and sys.stdout.isatty(),
    )
    if system_prompt is not None:
        session.check_system()
    if not session.interactive:
        for line in chat_input.piped():
            if _done(session, line):
                break
        return
    if title:
        quiet(title)
    quiet(WELCOME)
    for line in chat_input.typed(History(cache_dir() / NAME)):
        try:
            if _done(session, line):
                break
        except DaariError as error:
            plain(in_lines(f"error: {error}"))


def _done(session: Session, line: str) -> bool:
    """Do what a line says; whether the chat is over."""
    if not is_text(line):
        raise DaariError("That has bytes that are no UTF-8, nothing is sent: type it anew.")
    command, words = chat_commands.read_line(line, interactive=session.interactive)
    before, message = [*session.conversation.turns], words
    if command is not None:
        try:
            message = chat_commands.run(session, command, words) or ""
        except chat_commands.Quit:
            return True
    if message.strip():
        try:
            _turn(session, message)
        finally:
            if len(session.conversation.turns) < len(before):  # nothing came in place of an answer that was there
                session.conversation.turns = before
    return False


def _turn(session: Session, message: str) -> None:
    """Ask and print one answer; what was said grows by both, or stays as it was where no token of an answer came."""
    turns = session.conversation.turns
    turns.append({"role": "user", "content": message})
    shown, last, stopped = AnswerText(session.engine.tokenizer, drafts=session.drafts), None, False
    try:
        with (
            chat_input.keys_unseen(),
            stop_on_interrupt() as is_stopped,
            prefill_line(session.interactive) as progress,
            closing(session.answer(progress, is_stopped)) as responses,
        ):
            for last in responses:
                shown.show(last)
                if stopped := is_stopped() and last.finish_reason is None:
                    break
    except StoppedBeforeAnswer:
        quiet("stopped: the message is taken back")
    finally:
        if last is None:
            turns.pop()
        else:
            turns.append({"role": "assistant", "content": shown.text})
            session.conversation.tally.add(last)
            print(flush=True)
    if last is not None:
        _tell(session, last, stopped=stopped)


def _tell(session: Session, last: GenerationResponse, *, stopped: bool) -> None:
    """The quiet line after an answer, and who drafted it where that is shown."""
    how_it_ended = "stopped" if stopped else session.why_cut(last)
    quiet(chat_figures.figures(last, chat_figures.fullness(session), how_it_ended))
    if session.drafts:
        plain(in_lines(chat_figures.legend(last.statistics.sources)))


@contextmanager
def stop_on_interrupt() -> Iterator[Callable[[], bool]]:
    """Turn Ctrl-C into a question that is asked between tokens, where the cache is exact; a second Ctrl-C is one again.

    Outside the main thread, where no signal can be handled, Ctrl-C stays what it was.
    """
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped.is_set
        return

    def handle(_number: int, _frame: FrameType | None) -> None:
        if stopped.is_set():
            raise KeyboardInterrupt
        stopped.set()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield stopped.is_set
    finally:
        signal.signal(signal.SIGINT, before)
