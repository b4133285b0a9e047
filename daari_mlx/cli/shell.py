"""How a command ends: mistakes in one line on stderr, the exit status, and nothing after a closed pipe."""

from __future__ import annotations

import errno
import os
import signal
import sys
from io import TextIOWrapper
from types import TracebackType
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand

from daari_mlx.cli.words import check_bytes, check_values, with_values
from daari_mlx.ground.errors import DaariError
from daari_mlx.show import report

RESUMES = ("extract", "compile", "map")
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Command(TyperCommand):
    """A command whose mistakes end in one line on stderr instead of a traceback."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words; what no option can mean is a usage error."""
        check_bytes(args)
        rest = super().parse_args(ctx, with_values(args))
        check_values(ctx, self.params)
        return rest

    def invoke(self, ctx: Any) -> Any:
        """Run it; exit 1 with ``error: ...`` for what the user can mend, 130 for Ctrl-C."""
        open_streams()
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()  # here a closed pipe is still the command's affair, and typer keeps quiet about it
            return result
        except DaariError as error:
            _fail(str(error))
        except KeyboardInterrupt as error:
            if isinstance(error.__context__, DaariError):  # it came while the command was ending, and hides why
                _fail(str(error.__context__))
            _stop(_resumes(ctx), _status(error))
        except Exception as error:
            if interrupted(error):  # an extension module that is being initialised makes an ImportError of a Ctrl-C
                _stop(_resumes(ctx), _status(error))
            _tell(error)
            raise


def open_streams() -> None:
    """Let those of stdin, stdout and stderr that were closed lead nowhere, and escape what the others cannot show.

    The next file would take the number of a closed one, which MLX takes for no file at all, and be printed to. A
    terminal of another encoding than UTF-8 gets ``\\u0ca6`` for what that lacks.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            try:
                os.fstat(number)
            except OSError:
                os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
            setattr(sys, name, open(os.devnull, "w" if number else "r", encoding="utf-8"))  # noqa: SIM115  as long as the process
        elif number and isinstance(stream := getattr(sys, name), TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _leave_unsaid() -> None:
    """Drop what stdout still holds, where it cannot be written: Python would try again at its end, and complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def _fail(message: str) -> NoReturn:
    report.note(f"error: {message}")
    _leave_to_signals(signal.SIGINT, signal.SIGTERM)
    raise typer.Exit(1)


def _tell(error: Exception) -> None:
    """End with one line where somebody can mend it."""
    if isinstance(error, ImportError) and lacks_backend(error):
        _fail(f"MLX cannot start ({error}): install daari-mlx[cpu], or [cuda12] or [cuda13] for a GPU.")
    if not isinstance(error, OSError) or isinstance(error, BrokenPipeError):
        return
    if error.filename is not None:
        _fail(f"{error.filename}: {error.strerror}")
    if error.errno in NO_ROOM:
        _leave_unsaid()
        _fail(f"What this run writes, or prints, finds no room: {error.strerror}. Make some and run it again.")


class Terminated(KeyboardInterrupt):
    """A SIGTERM, of which a command tells as of a Ctrl-C."""


def _status(error: BaseException | None) -> int:
    """The exit status of a command that was stopped, as a shell gives it: 143 for SIGTERM, else 130."""
    while error is not None:
        if isinstance(error, Terminated):
            return 128 + signal.SIGTERM
        error = error.__cause__ or error.__context__
    return 128 + signal.SIGINT


def _resumes(ctx: Any) -> bool:
    """Whether the same command goes on where this one stops: what goes to stdout is nowhere kept."""
    return ctx.info_name in RESUMES and ctx.params.get("out") != "-"


def _stop(resumes: bool, status: int = 130) -> NoReturn:
    """Tell of a Ctrl-C or SIGTERM; what is left is the process's own end, which a further one may cut short."""
    _leave_to_signals(signal.SIGINT)
    report.note("\nStopped. What is done is kept: the same command resumes." if resumes else "\nStopped.")
    _leave_to_signals(signal.SIGTERM)
    raise typer.Exit(status) from None


def _leave_to_signals(*numbers: int) -> None:
    """What is left is the process's own end, which these signals may cut short without a word."""
    for number in numbers:
        if signal.getsignal(number) in (interrupt, terminate):  # else the process is somebody else's
            signal.signal(number, signal.SIG_DFL)


def interrupted(error: BaseException | None) -> bool:
    """Whether an error came of a Ctrl-C."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False


def interrupt(number: int, frame: Any) -> NoReturn:
    """What Ctrl-C, and in a rank SIGTERM, does in a process of our own, until all is told."""
    raise KeyboardInterrupt


def terminate(number: int, frame: Any) -> NoReturn:
    """What SIGTERM does in a command that has something to clean up."""
    raise Terminated


def hear_terminations() -> None:
    """From here on clean up at a SIGTERM and tell of it, in a process of our own."""
    if signal.getsignal(signal.SIGINT) is interrupt and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, terminate)


def interrupts_unsaid() -> None:
    """Print nothing of a Ctrl-C that comes where no command can tell of it: after another, while all is cleaned up."""
    print_uncaught, print_unraisable = sys.excepthook, sys.unraisablehook

    def uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not interrupted(error):
            print_uncaught(kind, error, trace)

    def unraisable(told: Any) -> None:
        if not interrupted(told.exc_value):
            print_unraisable(told)

    sys.excepthook, sys.unraisablehook = uncaught, unraisable


def lacks_backend(error: ImportError) -> bool:
    """Whether MLX itself is missing, or is there without the library that computes (Linux: no backend was chosen)."""
    return "libmlx" in str(error) or (error.name or "").split(".")[0] == "mlx"
