"""The Hub's stand-in in its client's way, for modules that name this one in ``pytest_plugins``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from graphs import full_graph
from hub_graphs import STATS_OF_A_PERSON, TEACHER
from hub_stand_in import TOKEN, StandIn
from huggingface_hub import constants

from daari_mlx.graph.artifact import save_graph
from daari_mlx.share import hub


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
