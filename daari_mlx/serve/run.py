"""A server from its start to its end."""

from __future__ import annotations

import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn

from daari_mlx.batch.engine import BatchEngine
from daari_mlx.batch.generate import make_engine
from daari_mlx.decode.choose import graph_drafter, lookup_drafter
from daari_mlx.decode.options import DraftLength, Sampling
from daari_mlx.draft.drafter import Drafter
from daari_mlx.graph.artifact import attach
from daari_mlx.graph.graph import Graph
from daari_mlx.ground.errors import DaariError
from daari_mlx.learn.scopes import Learners
from daari_mlx.serve.app import make_app
from daari_mlx.serve.book import Book
from daari_mlx.serve.cache_files import CacheFiles
from daari_mlx.serve.caches import PromptCaches
from daari_mlx.serve.options import ServeOptions
from daari_mlx.serve.service import Service
from daari_mlx.serve.worker import Worker
from daari_mlx.teacher.load import Teacher
from daari_mlx.teacher.quirks import refuses_blocks
from daari_mlx.text.template import ChatTemplate

log = logging.getLogger("daari_mlx.server")
SWITCH = 0.0005  # seconds after which the model's thread lets asyncio's run; Python's own 0.005 are felt in each answer


def make_service(
    teacher: Teacher,
    graph: Graph | None = None,
    options: ServeOptions | None = None,
    *,
    num_draft_tokens: DraftLength = "auto",
    sampling: Sampling | None = None,
    chat_template_config: dict[str, Any] | None = None,
    whitespace: str = "compact",
    learners: Learners | None = None,
) -> Service:
    """Everything that a server is but its sockets.

    Args:
        learners: who learns from answers, beginning with the graph; a request's scope is its key. None learns nothing.

    Raises:
        DaariError: a graph of another teacher.
    """
    options = options or ServeOptions()
    engine, copier = drafting(teacher, graph, options, num_draft_tokens, learners)
    kept = options.prompt_cache_size, options.cache_bytes
    folder = options.prompt_cache_dir
    files = None if folder is None else CacheFiles(folder, teacher.fingerprint(), *kept)
    worker = Worker(
        engine,
        PromptCaches(*kept, files),
        copier,
        most_rows=options.decode_concurrency,
        queue_limit=options.queue_limit,
    )
    return Service(
        teacher,
        worker,
        Book(options.show_prompts),
        options,
        sampling or Sampling(),
        ChatTemplate(teacher.tokenizer, chat_template_config),
        whitespace,
    )


def drafting(
    teacher: Teacher,
    graph: Graph | None,
    options: ServeOptions,
    num_draft_tokens: DraftLength,
    learners: Learners | None = None,
) -> tuple[Callable[[], BatchEngine], Callable[[], Drafter] | None]:
    """What makes the engine with a graph, and what makes drafters for predicted texts.

    Raises:
        DaariError: a graph of another teacher.
    """
    if graph is not None:
        graph = attach(graph, teacher.model, teacher.tokenizer)

    def engine() -> BatchEngine:
        made, off = make_engine(
            teacher.model,
            teacher.tokenizer,
            graph=graph if learners is None else None,  # learners begin with it
            learners=learners,
            num_draft_tokens=num_draft_tokens,
            most_rows=options.decode_concurrency,
            prefill_step_size=options.prefill_step_size,
        )
        if off is not None and graph is not None:
            log.warning("nothing is drafted: %s", off)
        return made

    def copier() -> Drafter:
        return (
            lookup_drafter(teacher, num_draft_tokens)
            if graph is None
            else graph_drafter(graph, teacher.model, teacher.tokenizer, num_draft_tokens)
        )

    copies = bool(num_draft_tokens) and refuses_blocks(teacher.model) is None
    if copies:
        copier()  # what is wrong with the graph is told now, and what has to be measured is
    return engine, copier if copies else None


class Server(uvicorn.Server):
    """uvicorn's, which says where it listens, and refuses new requests once it is told to end."""

    def __init__(self, service: Service, log_level: str = "info") -> None:
        config = uvicorn.Config(
            make_app(service), log_level=log_level, lifespan="on", timeout_keep_alive=30, server_header=False
        )
        super().__init__(config)
        self._service = service
        # the page asks for these again and again
        logging.getLogger("uvicorn.access").addFilter(lambda record: "/daari/requests" not in record.getMessage())

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """What runs is finished, and the process ends well; a second Ctrl-C ends it at once."""
        self._service.worker.draining = True
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def listen(options: ServeOptions) -> socket.socket:
    """The socket to listen on.

    Raises:
        DaariError: the address cannot be had.
    """
    try:
        family = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)[0][0]
        # asyncio sends at once (no Nagle, 40 ms an answer) where it is told that this is TCP
        made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((options.host, options.port))
        made.listen(1024)
    except OSError as error:
        raise DaariError(
            f"{options.host}:{options.port} cannot be listened on ({error.strerror or error}): give another --port, "
            "or --host."
        ) from error
    return made


def serve(
    service: Service,
    sock: socket.socket,
    log_level: str = "info",
    *,
    load_graph: Callable[[], Graph | None] | None = None,
    num_draft_tokens: DraftLength = "auto",
) -> None:
    """Answer until a signal says to end; then finish what runs.

    Args:
        load_graph: reads the graph anew at SIGHUP; None where the server learns, and a SIGHUP changes nothing.
        num_draft_tokens: with it.
    """

    def renew() -> None:
        if load_graph is None:
            log.warning("no graph is read anew: this server learns its own")
            return
        try:
            service.worker.renew(*drafting(service.teacher, load_graph(), service.options, num_draft_tokens))
            log.info("the graph was read anew")
        except DaariError as error:
            log.error("the graph stays as it was: %s", error)

    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, lambda *_: threading.Thread(target=renew).start())  # answers go on meanwhile
    sys.setswitchinterval(SWITCH)
    server = Server(service, log_level)
    host, port = sock.getsockname()[:2]
    log.info("listening on http://%s:%d", f"[{host}]" if ":" in host else host, port)
    server.run(sockets=[sock])
    if server.force_exit:
        raise SystemExit(128 + signal.SIGINT)
