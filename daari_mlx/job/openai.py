"""Lines of OpenAI's Batch API: ``custom_id``, ``method``, ``url``, ``body`` in; with ``response`` and ``error`` out.

What would change an answer and is not known here makes a line a bad row, by the name of the field; null is absent. The
same lines give the same bytes: ids are made of what is asked, and ``created`` is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from daari_mlx.decode.options import Penalties, Sampling
from daari_mlx.decode.stops import stop_list
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.given import check_whole
from daari_mlx.job.asks import KEY, Ask, Own
from daari_mlx.job.files import Line
from daari_mlx.text.messages import BadInput, typed

URL = "/v1/chat/completions"
HARMLESS = {  # they change no answer
    *("model", "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"),
    "prompt_cache_retention",
}
SAMPLING = {name: name for name in ("top_p", "top_k", "min_p", "xtc_probability", "xtc_threshold")} | {
    "temperature": "temp"
}
PENALTIES = {name: name for name in Penalties.__dataclass_fields__}
KNOWN = {"messages", "max_tokens", "max_completion_tokens", "seed", "stop", "response_format", "n", "stream"}


def is_batch_line(fields: dict[str, Any]) -> bool:
    """Whether a row is one of OpenAI's batches."""
    return "custom_id" in fields and "body" in fields


class BatchShape:
    """Lines of one batch.

    Args:
        thinks_until: what stands before it is reasoning, where it is found; None for no mark.
    """

    def __init__(self, *, thinks_until: str | None = None) -> None:
        self._mark = thinks_until

    def ask(self, line: Line) -> Ask:
        """What a line asks."""
        if line.fields is None:
            raise BadInput(line.problem)
        typed(line.fields.get("custom_id"), str, "'custom_id'")
        if line.fields.get("url", URL) != URL or line.fields.get("method", "POST") != "POST":
            method, url = line.fields.get("method", "POST"), line.fields.get("url", URL)
            raise BadInput(f"asks for {method} {url}: only POST {URL} is answered")
        given = typed(line.fields.get("body"), dict, "'body'")
        body = {name: value for name, value in given.items() if value is not None and name not in HARMLESS}
        if unknown := sorted(body.keys() - KNOWN - SAMPLING.keys() - PENALTIES.keys()):
            raise BadInput(
                f"body has {unknown[0]!r}, which is not supported here and might change the answer: leave it out"
            )
        if body.get("n", 1) != 1 or body.get("stream", False) is not False:
            raise BadInput(
                "body asks for several answers (n) or a stream, and a line gets one whole answer: leave it out"
            )
        return Ask({"messages": body.get("messages")}, _own(body))

    def columns(self, columns: list[str]) -> list[str]:
        """Batches are no tables."""
        return columns

    def same(self, fields: dict[str, Any]) -> bool | None:
        """Their lines bring no answers along."""
        return None

    def written(self, line: Line, key: bytes, record: dict[str, Any]) -> dict[str, Any]:
        """The line of the answer."""
        fields = line.fields or {}
        number = int(line.place.rpartition(":")[2])
        own = key if any(key) else number.to_bytes(KEY, "big")  # a bad line has no key: its number tells it apart
        head = {"id": f"batch_req_{own.hex()}", "custom_id": fields.get("custom_id")}
        if record.get("answer") is None:
            error = {"code": "not_answered", "message": record["error"], "line": number}
            unread = {} if line.fields is not None else {"line": line.text}
            return {**head, "response": None, "error": error, **unread}
        before, mark, after = record["answer"].partition(self._mark) if self._mark else ("", "", "")
        message = {"role": "assistant", "content": after.lstrip() if mark else record["answer"], "refusal": None}
        if mark:
            message["reasoning"] = before
        counts = {name: record[name] for name in ("prompt_tokens", "completion_tokens")}
        body = {
            "id": f"chatcmpl-{key.hex()}",
            "object": "chat.completion",
            "created": 0,
            "model": fields["body"].get("model"),
            "choices": [{"index": 0, "message": message, "finish_reason": record["finish_reason"], "logprobs": None}],
            "usage": {**counts, "total_tokens": sum(counts.values())},
        }
        response = {"status_code": 200, "request_id": f"req_{key.hex()}", "body": body}
        return {**head, "response": response, "error": None}


def _own(body: dict[str, Any]) -> Own:
    """What a line says of its own answer."""
    limits = [_limit(name, body[name]) for name in ("max_completion_tokens", "max_tokens") if name in body]
    return Own(
        max_tokens=limits[0] if limits else None,
        stop=_stops(body["stop"]) if "stop" in body else None,
        seed=_checked(Sampling, {"seed": "seed"}, body).get("seed"),
        sampling=_checked(Sampling, SAMPLING, body),
        penalties=_checked(Penalties, PENALTIES, body),
        schema=_schema(body.get("response_format")),
    )


def _checked(record: Callable[..., Any], names: dict[str, str], body: dict[str, Any]) -> dict[str, Any]:
    """Those fields of a body that are fields of a record of options too, under its names.

    Args:
        names: theirs to ours.

    Raises:
        BadInput: a value that the record does not take; the field is named as the line names it.
    """
    given = {}
    for theirs, ours in names.items():
        if theirs in body:
            value = given[ours] = body[theirs]
            try:
                record(**{ours: value})
            except DaariError as error:
                raise BadInput(theirs + str(error).removeprefix(ours).removesuffix(".")) from error
    return given


def _limit(name: str, value: Any) -> int:
    try:
        check_whole(name, value, 1)
    except DaariError as error:
        raise BadInput(str(error).removesuffix(".")) from error
    return int(value)


def _stops(given: Any) -> list[str]:
    try:
        return stop_list(given)
    except DaariError as error:
        raise BadInput(str(error).removesuffix(".")) from error


def _schema(wanted: Any) -> dict[str, Any] | None:
    """The JSON schema of a ``response_format``; None for text."""
    if wanted is None:
        return None
    kind = typed(wanted, dict, "'response_format'").get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    if kind == "json_schema":
        return typed(typed(wanted.get("json_schema"), dict, "'json_schema'").get("schema"), dict, "'schema'")
    raise BadInput(f"response_format is {kind!r}: give text, json_object, or json_schema with its schema")
