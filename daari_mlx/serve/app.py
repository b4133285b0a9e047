"""The routes, and who may come in."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from daari_mlx.serve.chat import chat
from daari_mlx.serve.completions import completions
from daari_mlx.serve.errors import ApiError, Json, error_of
from daari_mlx.serve.messages import count_tokens, messages
from daari_mlx.serve.page import is_own, page
from daari_mlx.serve.responses import responses
from daari_mlx.serve.service import Service
from daari_mlx.serve.streaming import ClientGone

log = logging.getLogger("daari_mlx.server")
LOCAL = r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?"  # origins of pages of this machine
LOOPBACK = ("localhost", "127.0.0.1", "::1")
BODY_SECONDS = 60.0  # within which a request has to have come whole
Answer = Callable[[Service, HttpRequest, bytes, str], Awaitable[Response]]
POSTS: dict[str, Answer] = {
    "/v1/chat/completions": chat,
    "/chat/completions": chat,  # mlx_lm.server has it too
    "/v1/completions": completions,
    "/v1/responses": responses,
    "/v1/messages": messages,
    "/v1/messages/count_tokens": count_tokens,
}


def make_app(service: Service) -> Starlette:
    """The application of a service; it starts the worker, and ends it."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        service.worker.start()
        try:
            yield
        finally:
            await asyncio.to_thread(service.worker.close)
            service.close()

    gets = {
        "/": _page,
        "/health": _health,
        "/v1/models": _models,
        "/v1/models/{name:path}": _model,
        "/metrics": _metrics,
        "/daari/requests": _requests,
    }
    guard = _Guard(service)
    routes = [Route(path, guard.get(answer), methods=["GET"]) for path, answer in gets.items()]
    routes += [Route(path, guard.post(answer), methods=["POST"]) for path, answer in POSTS.items()]
    origins = service.options.allowed_origins
    listed = [] if origins is None else [origin.strip() for origin in origins.split(",")]
    cors = Middleware(
        CORSMiddleware,
        allow_origins=listed,
        allow_origin_regex=LOCAL if origins is None else None,
        allow_methods=["GET", "POST", "OPTIONS"],
        allow_headers=["*"],
    )
    return Starlette(
        routes=routes,
        middleware=[cors],
        lifespan=lifespan,
        exception_handlers={404: _not_found, 405: _not_found},
    )


class _Guard:
    """Lets in who may come, reads what they send within bounds, and tells them what went wrong."""

    def __init__(self, service: Service) -> None:
        self._service, options = service, service.options
        self._keys = options.keys
        origins = options.allowed_origins
        listed = None if origins is None else [re.escape(origin.strip()) for origin in origins.split(",")]
        pattern = LOCAL if listed is None else "|".join(".*" if origin == r"\*" else origin for origin in listed)
        self._origin = re.compile(pattern)
        self._local = options.host in LOOPBACK and origins is None

    def get(self, answer: Callable[[Service, HttpRequest], Response]) -> Any:
        """An endpoint that reads nothing."""

        async def endpoint(http: HttpRequest) -> Response:
            try:
                self._check_origin(http)
                if answer not in (_page, _health):
                    self._salt(http)
                return answer(self._service, http)
            except ApiError as error:
                return error.response()

        return endpoint

    def post(self, answer: Answer) -> Any:
        """An endpoint that answers a body."""

        async def endpoint(http: HttpRequest) -> Response:
            path, anthropic = http.scope["path"], http.scope["path"].startswith("/v1/messages")
            try:
                self._check_origin(http)
                salt = self._salt(http)
                body = await asyncio.wait_for(self._body(http), BODY_SECONDS)
                return await answer(self._service, http, body, salt)
            except (ClientGone, ClientDisconnect):
                return Response(status_code=499)  # nobody reads it
            except TimeoutError:
                error = ApiError(408, f"The request did not come within {BODY_SECONDS:g} seconds.")
            except Exception as raised:
                error = error_of(raised)
                if error.status >= 500 and not isinstance(raised, ApiError):
                    log.exception("%s failed", path)
            self._service.book.refused(path, error.status)
            return error.response(anthropic)

        return endpoint

    def _check_origin(self, http: HttpRequest) -> None:
        """A page of somebody else may not ask through its visitor's browser."""
        origin, asked = http.headers.get("origin"), http.headers.get("host", "")
        if origin is not None and not self._origin.fullmatch(origin) and not is_own(origin, asked):
            told = f"Web pages of {origin} may not ask this server: start it with --allowed-origins {origin}."
            raise ApiError(403, told)
        try:
            host = urlsplit(f"//{asked}").hostname or ""
        except ValueError as error:
            raise ApiError(400, f"The header Host is {asked!r}, which names no host: give the server's.") from error
        if self._local and host not in (*LOOPBACK, "testserver"):
            raise ApiError(403, f"This server answers to localhost, not to {host!r}: start it with another --host.")

    def _salt(self, http: HttpRequest) -> str:
        """Whose caches a client may use: those of its key."""
        if not self._keys:
            return ""
        given = http.headers.get("authorization", "").removeprefix("Bearer ").strip()
        given = given or http.headers.get("x-api-key", "")
        for key in self._keys:
            if hmac.compare_digest(key.encode(), given.encode()):
                return hashlib.sha256(key.encode()).hexdigest()  # it is written to disk with the caches
        told = "The API key is missing or wrong: send one as Authorization: Bearer KEY, or as x-api-key: KEY."
        raise ApiError(401, told, code="invalid_api_key")

    async def _body(self, http: HttpRequest) -> bytes:
        most = self._service.options.max_body_bytes
        found = bytearray()
        async for part in http.stream():
            found += part
            if len(found) > most:
                raise ApiError(413, f"The request has more than {most:,} bytes, this server's limit.", code="too_large")
        return bytes(found)


def _page(service: Service, http: HttpRequest) -> Response:
    return page()


def _health(service: Service, http: HttpRequest) -> Response:
    worker = service.worker
    state = "ok" if worker.healthy else "failed"
    state = "draining" if worker.healthy and worker.draining else state
    body = {"status": state, "failure": worker.failure, "running": worker.running, "queued": worker.queued}
    return Json(body, 200 if state == "ok" else 503)


def _models(service: Service, http: HttpRequest) -> Response:
    return Json({"object": "list", "data": [_card(service, name) for name in _listed(service)]})


def _listed(service: Service) -> list[str]:
    return [service.names[0], *(service.options.served_model_name or [])]


def _model(service: Service, http: HttpRequest) -> Response:
    return Json(_card(service, service.check_model(http.path_params["name"])))


def _card(service: Service, name: str) -> dict[str, Any]:
    context = service.teacher.context_length
    return {"id": name, "object": "model", "created": service.started, "owned_by": "daari-mlx", "context": context}


def _metrics(service: Service, http: HttpRequest) -> Response:
    worker = service.worker
    gauges = {
        "daari_running": worker.running,
        "daari_queued": worker.queued,
        "daari_cache_bytes": worker.cache_bytes,
        "daari_kept_cache_bytes": worker.caches.nbytes,
        "daari_kept_caches": len(worker.caches),
    }
    return PlainTextResponse(service.book.metrics(gauges), media_type="text/plain; version=0.0.4")


def _requests(service: Service, http: HttpRequest) -> Response:
    return Json({"requests": [record.as_dict() for record in reversed(service.book.newest)]})


async def _not_found(http: HttpRequest, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    told = f"There is no {http.method} {http.scope['path']} here."
    return ApiError(status, told, code="not_found").response(http.scope["path"].startswith("/v1/messages"))
