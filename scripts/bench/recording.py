"""What every measurement ends with: who made its record where, and the record's line on stdout and in a file."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

SHORT = ("commit", "python", "platform", "versions")  # enough where nothing is timed


def origin(*keys: str) -> dict[str, Any]:
    """The command that runs, and where: all of :func:`daari_mlx.measure.about.environment`, or only ``keys`` of it."""
    from daari_mlx.measure.about import environment

    where = environment()
    return {"command": shlex.join(["python", *sys.argv]), **{key: where[key] for key in keys or where}}


def tell(record: dict[str, Any], out: str | Path | None = None) -> None:
    """Print a record as a line of JSON, and append it to a file."""
    print(json.dumps(record, ensure_ascii=False), flush=True)
    if out is not None:
        append(record, out)


def append(record: dict[str, Any], out: str | Path) -> None:
    """Append a record to a file, as a line of JSON."""
    from daari_mlx.measure.records import append_record

    append_record(Path(out), record)
