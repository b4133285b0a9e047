"""The fields of requests, checked: null is absent, and a field that is not known is refused by its name."""

from __future__ import annotations

import json
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from daari_mlx.decode.options import Penalties, Sampling
from daari_mlx.ground.option import bounds
from daari_mlx.serve.errors import ApiError

F = TypeVar("F", bound="Fields")
MOST_ANSWERS = 32  # of one prompt


class Fields(BaseModel):
    """An object that a client sends."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    harmless: ClassVar[frozenset[str]] = frozenset()  # known fields that change no answer: taken and not looked at

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {key: item for key, item in value.items() if item is not None and key not in cls.harmless}


class Loose(Fields):
    """An object of which only some fields are looked at."""

    model_config = ConfigDict(extra="ignore")


class StreamOptions(Fields):
    """OpenAI's ``stream_options``."""

    harmless = frozenset({"include_obfuscation"})
    include_usage: bool = False


class TextPart(Loose):
    """``{"type": "text", "text": ...}``."""

    type: str
    text: str


class Prediction(Fields):
    """OpenAI's Predicted Outputs: text that much of the answer will repeat."""

    type: str
    content: str | list[TextPart]

    @property
    def text(self) -> str:
        """All of it."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


def _penalty(name: str) -> Any:
    """A field with the default and the bounds that the option of this name has."""
    least, most = bounds(Penalties, name)
    return Field(default=getattr(Penalties, name), ge=least, le=most)


class OpenAIFields(Fields):
    """The fields that OpenAI's chat and text completions share, and mlx_lm.server's own."""

    harmless = frozenset(
        {
            "user",
            "metadata",
            "store",
            "service_tier",
            "safety_identifier",
            "prompt_cache_key",
            "prompt_cache_retention",
            "parallel_tool_calls",
            "num_draft_tokens",
        }
    )
    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    max_tokens: int | None = Field(default=None, ge=1)
    n: int = Field(default=1, ge=1, le=MOST_ANSWERS)
    seed: int | None = None
    stop: str | list[str] | None = None
    prediction: Prediction | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    logit_bias: dict[str, float] | None = None
    presence_penalty: float | None = _penalty("presence_penalty")
    presence_context_size: int = _penalty("presence_context_size")
    frequency_penalty: float | None = _penalty("frequency_penalty")
    frequency_context_size: int = _penalty("frequency_context_size")
    repetition_penalty: float | None = _penalty("repetition_penalty")
    repetition_context_size: int = _penalty("repetition_context_size")

    def sampling(self, default: Sampling) -> Sampling:
        """How tokens are chosen: what was asked for, else what the server was started with.

        Raises:
            DaariError: a number that has no meaning.
        """
        names = {"temperature": "temp"}
        asked = ("temperature", "top_p", "top_k", "min_p", "xtc_probability", "xtc_threshold")
        given = {names.get(name, name): value for name in asked if (value := getattr(self, name)) is not None}
        return Sampling(**{**vars(default), **given, "seed": None})

    def processors(self, vocabulary: int) -> list[Any]:
        """mlx-lm's processors of biases and penalties.

        Raises:
            ApiError: a bias for what is no token.
        """
        given = {name: getattr(self, name) for name in Penalties.__dataclass_fields__}
        return Penalties(**given).processors(_biases(self.logit_bias or {}, vocabulary))


def _biases(given: dict[str, float], vocabulary: int) -> dict[int, float] | None:
    for key in given:
        if not key.isdecimal() or int(key) >= vocabulary:
            raise ApiError(
                400, f"logit_bias has {key!r}: give ids of tokens, from 0 to {vocabulary - 1}.", param="logit_bias"
            )
    return {int(key): value for key, value in given.items()} or None


def read(kind: type[F], body: bytes) -> F:
    """The fields of a request's body.

    Raises:
        ApiError: it is no JSON, or a field is not as it should be.
    """
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"The body is no JSON: {error}.") from error
    if not isinstance(found, dict):
        raise ApiError(400, f"The body is {type(found).__name__}, not a JSON object.")
    try:
        return kind.model_validate(found)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"]) or "the body"
        if first["type"] == "extra_forbidden":
            told = f"{name} is not supported here, and might change the answer: leave it out."
        else:
            told = f"{name}: {first['msg']}; found {json.dumps(first.get('input'), default=str)[:60]}."
        raise ApiError(400, told, param=name) from error
