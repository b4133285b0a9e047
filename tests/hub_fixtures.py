"""What the tests of the Hub share: the stand-in in the client's way, graphs of a person, and the command line."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from graphs import full_graph
from hub_stand_in import TOKEN, StandIn
from huggingface_hub import constants
from test_artifact import COUNTED
from typer.testing import CliRunner

from daari_mlx import cli, hub
from daari_mlx.artifact import save_graph

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


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """The stand-in, with its own empty cache; alice is signed in, and nobody waits between retries."""
    stand_in = StandIn()
    monkeypatch.setattr(constants, "ENDPOINT", stand_in.url)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", stand_in.url + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # its storage has another protocol
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(hub, "_fetched", {})
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.chdir(tmp_path)
    yield stand_in
    stand_in.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_graph(full_graph(teacher=TEACHER), tmp_path / "my.graph", STATS_OF_A_PERSON)


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
