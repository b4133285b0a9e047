"""How a command ends: mistakes in one line on stderr, the exit status, and nothing after a closed pipe."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand

from daari_mlx import report
from daari_mlx.errors import DaariError

RESUMES = ("extract", "compile")


class Command(TyperCommand):
    """A command whose mistakes end in one line on stderr instead of a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run it; exit 1 with ``error: ...`` for what the user can mend, 130 for Ctrl-C."""
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
            if error.filename is None:
                raise
            _fail(f"{error.filename}: {error.strerror}")
        except KeyboardInterrupt:
            resumes = ctx.info_name in RESUMES
            report.note("\nStopped. What is done is kept: the same command resumes." if resumes else "\nStopped.")
            raise typer.Exit(130) from None


def _fail(message: str) -> NoReturn:
    report.note(f"error: {message}")
    raise typer.Exit(1)


def lacks_backend(error: ImportError) -> bool:
    """Whether MLX itself is missing, or is there without the library that computes (Linux: no backend was chosen)."""
    return "libmlx" in str(error) or (error.name or "").split(".")[0] == "mlx"
