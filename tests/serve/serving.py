"""A server on loopback, in this process, as the tests of the server use it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from daari_mlx.graph.graph import Graph
from daari_mlx.serve.options import ServeOptions
from daari_mlx.serve.run import Server, listen, make_service
from daari_mlx.serve.service import Service
from daari_mlx.teacher.load import Teacher


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
