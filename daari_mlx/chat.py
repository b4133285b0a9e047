"""The terminal chat: one conversation, one cache; answers go to stdout, everything about them to stderr."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from daari_mlx.errors import DaariError
from daari_mlx.prompts import template_failure
from daari_mlx.report import turn_text

if TYPE_CHECKING:
    from daari_mlx.decode import GenerationResponse

HELP = "q quits, r forgets the conversation, h shows this; Ctrl-C stops an answer, Ctrl-D quits"


class Engine(Protocol):
    """What the chat needs of :class:`daari_mlx.SpecEngine`."""

    @property
    def tokenizer(self) -> Any:
        """The teacher's."""

    def reset(self) -> None:
        """Forget the conversation."""

    def stream_chat(self, messages: list[dict[str, Any]], **options: Any) -> Iterator[GenerationResponse]:
        """Stream the answer to the last message."""


def chat(engine: Engine, *, system_prompt: str | None = None, **options: Any) -> None:
    """Read messages from stdin and answer them until ``q``, Ctrl-D or the end of stdin.

    At a terminal a mistake (a message longer than the context) is printed and the chat goes on; fed by a pipe, it ends
    with the error.

    Args:
        engine: whose cache is kept from turn to turn.
        system_prompt: put before the conversation, also after ``r``.
        options: those of :meth:`daari_mlx.SpecEngine.stream_chat`.

    Raises:
        DaariError: the tokenizer has no chat template; see above.
        KeyboardInterrupt: Ctrl-C while reading from a pipe.
    """
    if not engine.tokenizer.has_chat_template:
        raise DaariError("This tokenizer has no chat template, so its model cannot chat: use daari-mlx generate.")
    first = [] if system_prompt is None else [{"role": "system", "content": system_prompt}]
    messages = list(first)
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if terminal:
        with suppress(ImportError):
            import readline  # noqa: F401  gives input() its history and line editing
        quiet(HELP)
    for line in _lines(terminal):
        if line == "q":
            break
        if line == "h":
            quiet(HELP)
        elif line == "r":
            engine.reset()
            messages = list(first)
            quiet("The conversation is forgotten.")
        elif line.strip():
            try:
                _turn(engine, messages, line, options)
            except DaariError as error:
                if not terminal:
                    raise
                print(f"error: {error}", file=sys.stderr, flush=True)


def quiet(text: str) -> None:
    """A line about the chat: to stderr, dim where that is a terminal and NO_COLOR is unset."""
    dim = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    print(f"\033[2m{text}\033[0m" if dim else text, file=sys.stderr, flush=True)


def _lines(terminal: bool) -> Iterator[str]:
    """The lines typed, or piped in; at a terminal Ctrl-C drops the line."""
    if not terminal:
        yield from (line.rstrip("\r\n") for line in sys.stdin)
        return
    while True:
        try:
            yield input("> ")
        except KeyboardInterrupt:
            print(flush=True)
            quiet("q quits")
        except EOFError:
            print(flush=True)
            return


def _turn(engine: Engine, messages: list[dict[str, Any]], line: str, options: dict[str, Any]) -> None:
    """Ask and print one answer; ``messages`` grow by both, or stay as they were where no token of an answer came."""
    messages.append({"role": "user", "content": line})
    text, last, stopped = "", None, False
    try:
        with stop_on_interrupt() as is_stopped, closing(_answer(engine, messages, is_stopped, options)) as responses:
            for last in responses:
                text += last.text
                print(last.text, end="", flush=True)
                if stopped := is_stopped():
                    break
    except _StoppedBeforeAnswer:
        stopped = True
    finally:
        if last is None:
            messages.pop()
        else:
            messages.append({"role": "assistant", "content": text})
            print(flush=True)
    if stopped:
        quiet("stopped")
    if last is not None:
        quiet(turn_text(last))


class _StoppedBeforeAnswer(Exception):
    """Ctrl-C came while the prompt was still being read."""


def _answer(
    engine: Engine, messages: list[dict[str, Any]], is_stopped: Callable[[], bool], options: dict[str, Any]
) -> Generator[GenerationResponse, None, None]:
    """The answer's responses; between two steps of prefill Ctrl-C ends it too."""

    def between(done: int, total: int) -> None:
        if is_stopped() and done < total:
            raise _StoppedBeforeAnswer

    try:
        responses = engine.stream_chat(messages, prompt_progress_callback=between, **options)
    except DaariError:
        raise
    except Exception as error:  # nothing has run yet but the chat template, which can raise anything
        raise template_failure(error) from error
    yield from responses  # a generator is closed along with this one


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
