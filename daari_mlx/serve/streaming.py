"""Server-sent events, and clients that leave while their answer is made."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from daari_mlx.serve.errors import ApiError, error_of

T = TypeVar("T")
STALLED = 60.0  # seconds that a client may take to read what it was sent


async def unless_gone(http: HttpRequest, work: Awaitable[T]) -> T:
    """The result of ``work``, which ends where the client leaves.

    Raises:
        ClientGone: it has left.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(http.receive))
    try:
        await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        for one in (task, gone):
            one.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await one


class ClientGone(Exception):
    """The client has left: nobody is there to be answered."""


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Server-sent events; what makes them ends with the client.

    Args:
        events: whole events as text, or None for a sign of life.
        close: called at the end, however it ends.
        failed: the event that tells of an error.
    """

    def __init__(
        self, events: AsyncIterator[str | None], close: Callable[[], None], failed: Callable[[ApiError], str]
    ) -> None:
        super().__init__(
            media_type="text/event-stream", headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        )
        del self.headers["content-length"]
        self._events, self._close, self._failed = events, close, failed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI's."""
        sending = asyncio.ensure_future(self._send(send))
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait([sending, gone], return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        except OSError:  # the client left while it was written to
            pass
        finally:
            for one in (sending, gone):
                one.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await one
            self._close()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})

        async def body(text: str, more: bool = True) -> None:
            sent = {"type": "http.response.body", "body": text.encode("utf-8", "replace"), "more_body": more}
            async with asyncio.timeout(STALLED):
                await send(sent)

        try:
            async for event in self._events:
                await body(": keepalive\n\n" if event is None else event)
        except OSError:  # TimeoutError is one
            raise
        except Exception as error:
            await body(self._failed(error_of(error)))
        await body("", more=False)


def event(value: Any, name: str | None = None) -> str:
    """One server-sent event."""
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n"
