"""What a client is told when a request cannot be answered, in OpenAI's form and in Anthropic's."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from starlette.responses import JSONResponse, Response

from daari_mlx.ground.errors import DaariError

ANTHROPIC = {  # Anthropic's names of kinds of errors, by status
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


@dataclass
class ApiError(Exception):
    """A request that cannot be answered.

    Attributes:
        status: of HTTP.
        message: what was wrong, what was found, what to do.
        kind: OpenAI's name of the kind of error.
        param: the field that is to blame, or None.
        code: OpenAI's short name of the error, or None.
        retry_after: seconds after which another try makes sense, or None.
    """

    status: int
    message: str
    kind: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    retry_after: int | None = None

    def __post_init__(self) -> None:
        """Names and texts of the client's may hold halves of characters, which no answer can."""
        self.message = self.message.encode("utf-8", "backslashreplace").decode()
        self.param = self.param and self.param.encode("utf-8", "backslashreplace").decode()

    def body(self, anthropic: bool = False) -> dict[str, Any]:
        """The error object."""
        if anthropic:
            kind = ANTHROPIC.get(self.status, "api_error")
            return {"type": "error", "error": {"type": kind, "message": self.message}}
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def response(self, anthropic: bool = False) -> Response:
        """The whole answer."""
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return Json(self.body(anthropic), self.status, headers)


class Json(JSONResponse):
    """JSON, whatever halves of characters a client has put into what is told again."""

    def render(self, content: Any) -> bytes:
        """As bytes."""
        return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def error_of(error: BaseException) -> ApiError:
    """What a client is told of an error: its own mistakes in full, ours by their kind."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, DaariError):
        return ApiError(400, str(error))
    return ApiError(500, f"The server failed at this request: {type(error).__name__}: {error}", "server_error")


def too_long(tokens: int, context: int) -> ApiError:
    """A prompt that leaves no room for an answer."""
    return ApiError(
        413,
        f"The prompt has {tokens:,} tokens, and this model's context of {context:,} has room for {context - 1:,} and "
        "an answer: shorten it.",
        param="messages",
        code="context_length_exceeded",
    )
