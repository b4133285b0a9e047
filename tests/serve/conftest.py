"""One server for the tests that only ask it something."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from graphs import Compiled
from serving import Running, running


@pytest.fixture(scope="session")
def server(compiled: Compiled) -> Iterator[Running]:
    """The tiny teacher with its graph."""
    with running(compiled.teacher, compiled.graph) as found:
        yield found


@pytest.fixture
def openai(server: Running) -> Iterator[Any]:
    """OpenAI's own client."""
    from openai import OpenAI

    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client
