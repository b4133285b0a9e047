"""How a command ends: mistakes in one line on stderr, the exit status, and nothing after a closed pipe."""

from __future__ import annotations

import errno
import os
import sys
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand

from daari_mlx.ground.errors import DaariError
from daari_mlx.show import report

RESUMES = ("extract", "compile")
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Command(TyperCommand):
    """A command whose mistakes end in one line on stderr instead of a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run it; exit 1 with ``error: ...`` for what the user can mend, 130 for Ctrl-C."""
        open_streams()
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()  # here a closed pipe is still the command's affair, and typer keeps quiet about it
            return result
        except DaariError as error:
            _fail(str(error))
        except ImportError as error:
            if not lacks_backend(error):
                raise
            _fail(f"MLX cannot start ({error}): install daari-mlx[cpu], or [cuda12] or [cuda13] for a GPU.")
        except BrokenPipeError:
            raise
        except OSError as error:
            if error.filename is None and error.errno in NO_ROOM:
                _leave_unsaid()
                _fail(f"What this run writes, or prints, finds no room: {error.strerror}. Make some and run it again.")
            if error.filename is None:
                raise
            _fail(f"{error.filename}: {error.strerror}")
        except KeyboardInterrupt:
            resumes = ctx.info_name in RESUMES
            report.note("\nStopped. What is done is kept: the same command resumes." if resumes else "\nStopped.")
            raise typer.Exit(130) from None


def open_streams() -> None:
    """Let those of stdin, stdout and stderr that were closed lead nowhere.

    The next file would take the number of a closed one, which MLX takes for no file at all, and be printed to.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            try:
                os.fstat(number)
            except OSError:
                os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
            setattr(sys, name, open(os.devnull, "w" if number else "r", encoding="utf-8"))  # noqa: SIM115  as long as the process


def _leave_unsaid() -> None:
    """Drop what stdout still holds, where it cannot be written: Python would try again at its end, and complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def _fail(message: str) -> NoReturn:
    report.note(f"error: {message}")
    raise typer.Exit(1)


def lacks_backend(error: ImportError) -> bool:
    """Whether MLX itself is missing, or is there without the library that computes (Linux: no backend was chosen)."""
    return "libmlx" in str(error) or (error.name or "").split(".")[0] == "mlx"
