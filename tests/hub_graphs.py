"""Graphs of a person who has something to hide, and the command line that pushes and pulls them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from test_artifact import COUNTED
from typer.testing import CliRunner

from daari_mlx.cli import main as cli

TEACHER = {
    "model_type": "llama",
    "weights": "9" * 32,
    "tokenizer": "d" * 32,
    "quantisation": "4-bit affine, group 64",
    "vocab_size": 60,
    "adapter": "5" * 32,
    "source": "/home/fatima/models/secret-teacher",
    "adapter_path": "/home/fatima/adapters",
}
PRIVATE = (b"fatima", b"/home", b"secret", b"~")
STATS_OF_A_PERSON = {
    **COUNTED,
    "settings": {"answers": "teacher", "corpus": "c" * 32, "data": "/home/fatima/mail.jsonl", "note": "fatima's"},
    "command": "daari-mlx compile --model /home/fatima/models/secret-teacher --data ~/secret.jsonl",
    "seconds": {"answers": 3.5, "/home/fatima/mail.jsonl": 1.0},
    "parts": ["/home/fatima/a.graph"],
}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def run(*args: object) -> Any:
    return CliRunner().invoke(cli.app, [str(a) for a in args])


def done(*args: object) -> Any:
    result = run(*args)
    assert result.exit_code == 0, (result.stdout, result.stderr, result.exception)
    return result


def failed(*args: object) -> str:
    """The one line on stderr that tells a mistake; stdout stays empty."""
    result = run(*args)
    assert result.exit_code == 1 and result.stdout == "", (result.stdout, result.stderr, result.exception)
    assert isinstance(result.exception, SystemExit)
    return str(result.stderr)
