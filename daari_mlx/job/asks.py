"""From a row to what the teacher is asked: the messages or the prompt, and a key that equal questions share."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from hashlib import blake2b
from string import Formatter
from typing import Any

from daari_mlx.ground.errors import DaariError
from daari_mlx.job.spelling import option
from daari_mlx.text.messages import BadInput, plain, typed
from daari_mlx.text.rows import LORA, Features

KEY = 16  # bytes of a key


@dataclass(frozen=True, slots=True)
class Own:
    """What a row says of its own answer; None leaves a setting to the job's.

    Attributes:
        max_tokens, stop, seed: as in :class:`daari_mlx.batch.request.Request`.
        sampling: fields of :class:`daari_mlx.decode.options.Sampling`.
        penalties: fields of :class:`daari_mlx.decode.options.Penalties`.
        schema: a JSON schema that the answer is held to.
    """

    max_tokens: int | None = None
    stop: list[str] | None = None
    seed: int | None = None
    sampling: dict[str, Any] = field(default_factory=dict)
    penalties: dict[str, Any] = field(default_factory=dict)
    schema: dict[str, Any] | None = None


NOTHING = Own()


@dataclass(frozen=True, slots=True)
class Ask:
    """One question.

    Attributes:
        row: as :class:`daari_mlx.text.rows.RowReader` takes it: ``messages`` or ``prompt``, and ``tools``.
        own: what the row says of its own answer.
        reference: the answer that the row brings along, or None.
    """

    row: dict[str, Any]
    own: Own = NOTHING
    reference: str | None = None

    @property
    def key(self) -> bytes:
        """``KEY`` bytes that are equal for equal questions, whatever else stands in their rows."""
        own = {name: getattr(self.own, name) for name in Own.__slots__} if self.own is not NOTHING else None
        text = json.dumps([self.row, own], sort_keys=True, ensure_ascii=False, default=str)
        return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=KEY).digest()


class Template:
    """A text with the names of fields in braces; ``{{`` and ``}}`` are braces.

    Args:
        flags: whether the text was given in a shell.

    Raises:
        DaariError: it has no field, or something in braces that is no name.
    """

    def __init__(self, text: str, *, flags: bool = False) -> None:
        self._option = option("template", flags)
        told = f"{self._option} {text[:60]!r}"
        try:
            self._parts = [(before, name) for before, name, form, way in _parsed(text)]
        except ValueError as error:
            raise DaariError(f"{told} {_wrong(error)}: write {{field}}, and {{{{ for a brace.") from error
        self.fields = list(dict.fromkeys(name for _, name in self._parts if name is not None))
        if not self.fields:
            raise DaariError(f"{told} names no field of the rows: write it as {{field}}.")

    def __call__(self, fields: dict[str, Any]) -> str:
        """The text with a row's own fields; what is no text is written as JSON.

        Raises:
            BadInput: the row lacks one.
        """
        if missing := [name for name in self.fields if fields.get(name) is None]:
            has = ", ".join(map(repr, list(fields)[:8]))
            raise BadInput(f"has no {missing[0]!r}, which {self._option} names; its fields are {has}")
        return "".join(before + ("" if name is None else _text(name, fields[name])) for before, name in self._parts)


def _parsed(text: str) -> list[tuple[str, str | None, str | None, str | None]]:
    found = list(Formatter().parse(text))
    for _, name, form, way in found:
        if name is not None and (not name or form or way or set(name) & set(".[]")):
            raise ValueError(f"has {{{name}}} with more than the name of a field")
    return found


def _wrong(error: ValueError) -> str:
    """What is wrong with a template's braces, as it goes on from the template."""
    return str(error) if str(error).startswith("has ") else "has a brace that stands alone"


def _text(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput(f"has in {name!r} {type(value).__name__} that cannot be written as JSON ({error})") from error


class Asker:
    """Rows → questions.

    Args:
        template: what the user's message is, with fields of the row; None takes the row's own messages or prompt.
        system_prompt: a message before all others.
        features: which fields are what.
        flags: whether these were given in a shell.
    """

    def __init__(
        self,
        template: str | None = None,
        system_prompt: str | None = None,
        features: Features = LORA,
        *,
        flags: bool = False,
    ) -> None:
        self._template = None if template is None else Template(template, flags=flags)
        self._system, self._features, self._flags = system_prompt, features, flags

    def __call__(self, fields: dict[str, Any]) -> Ask:
        """What a row asks.

        Raises:
            BadInput: it asks nothing.
        """
        its = self._features
        tools = {} if fields.get("tools") is None else {"tools": fields["tools"]}
        reference = fields.get(its.completion)
        reference = reference if isinstance(reference, str) else None
        if self._template is not None:
            return Ask(self._spoken(self._template(fields)) | tools, reference=reference)
        if its.prompt in fields and (its.completion in fields or its.chat not in fields):
            return Ask(self._spoken(typed(fields[its.prompt], str, repr(its.prompt))) | tools, reference=reference)
        if its.chat in fields:
            return self._chat(fields[its.chat], tools)
        if its.text in fields:
            raise BadInput(
                "is text without a question: say how to ask, such as "
                f"{option('template', self._flags, f'Classify: {{{its.text}}}')}, or name the prompt with "
                f"{option('prompt_feature', self._flags, its.text)}"
            )
        has = ", ".join(map(repr, list(fields)[:8]))
        raise BadInput(
            f"has neither {its.chat!r} nor {its.prompt!r} (its fields are {has}): say how to ask, such as "
            f"{option('template', self._flags, 'Classify: {text}')}"
        )

    def _spoken(self, said: str) -> dict[str, Any]:
        if self._system is None:
            return {"prompt": said}
        return {"messages": [{"role": "system", "content": self._system}, {"role": "user", "content": said}]}

    def _chat(self, given: Any, tools: dict[str, Any]) -> Ask:
        messages = typed(plain(given), list, repr(self._features.chat))
        last = messages[-1]
        answered = isinstance(last, dict) and last.get("role") == "assistant"
        reference = last.get("content") if answered else None
        asked = messages[:-1] if answered else messages
        if self._system is not None:
            if asked and isinstance(asked[0], dict) and asked[0].get("role") in ("system", "developer"):
                gives = option("system_prompt", self._flags)
                raise BadInput(f"has a system message of its own, and {gives} gives another: leave one out")
            asked = [{"role": "system", "content": self._system}, *asked]
        return Ask({"messages": asked} | tools, reference=reference if isinstance(reference, str) else None)
