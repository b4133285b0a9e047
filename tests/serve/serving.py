"""A server on loopback, in this process, as the tests of the server use it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from daari_mlx.graph.graph import Graph
from daari_mlx.serve.options import ServeOptions
from daari_mlx.serve.run import Server, listen, make_service
from daari_mlx.serve.service import Service
from daari_mlx.teacher.load import Teacher

ROOT = Path(__file__).parents[2]
RUN = "from daari_mlx.cli.start import main; main()"


class Running:
    """A server that runs: its address, its insides, and a plain client."""

    def __init__(self, service: Service, port: int) -> None:
        self.service, self.url = service, f"http://127.0.0.1:{port}"
        self.http = httpx.Client(base_url=self.url, timeout=60)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(path, json=body)

    def chat(self, text: str = "hello", **fields: Any) -> httpx.Response:
        fields = {"max_tokens": 12, "messages": [{"role": "user", "content": text}], **fields}
        return self.post("/v1/chat/completions", **fields)


@contextmanager
def running(
    teacher: Teacher, graph: Graph | None = None, draft: Any = "auto", learners: Any = None, **options: Any
) -> Iterator[Running]:
    """Start a server, and end it as SIGTERM does."""
    settings = ServeOptions(**{"port": 0, "decode_concurrency": 4, "prefill_step_size": 64, **options})
    service = make_service(teacher, graph, settings, num_draft_tokens=draft, learners=learners)
    sock = listen(settings)
    server = Server(service, "warning")
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    found = Running(service, sock.getsockname()[1])
    try:
        yield found
    finally:
        found.http.close()
        server.should_exit = True
        thread.join(60)
        sock.close()
        assert not thread.is_alive(), "the server ends"


def process(*options: Any, run: str = RUN) -> tuple[subprocess.Popen[str], str]:
    """The command as a process of its own that listens, and its address.

    Args:
        run: what its Python runs.
    """
    words = [sys.executable, "-c", run, "server", "--port", "0", *map(str, options)]
    started = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert started.stderr is not None
    url = next((line.rsplit(" ", 1)[1].strip() for line in started.stderr if "listening on" in line), None)
    assert url is not None, f"the server ended with {started.wait()}"
    threading.Thread(target=started.stderr.read, daemon=True).start()
    return started, url
