"""How an answered row is written: the fields it came with, and what came of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Protocol

from daari_mlx.ground.errors import DaariError
from daari_mlx.job.asks import Ask
from daari_mlx.job.files import Line
from daari_mlx.job.spelling import option
from daari_mlx.text.messages import BadInput
from daari_mlx.text.rows import strict_json


class Shape(Protocol):
    """From a row to its question, and from both to what is written."""

    def ask(self, line: Line) -> Ask:
        """What a row asks; raises `BadInput`."""

    def written(self, line: Line, key: bytes, record: dict[str, Any]) -> dict[str, Any]:
        """The row as it is written.

        Args:
            key: of its question.
            record: ``answer``, ``finish_reason``, ``prompt_tokens`` and ``completion_tokens``, or ``error``.
        """

    def columns(self, columns: list[str]) -> list[str]:
        """The columns of a table that is written for one with these."""

    def same(self, fields: dict[str, Any]) -> bool | None:
        """Whether a written row's answer is the one that it brought along; None where that is not told."""


class RowShape:
    """A row's own fields, with ours behind them.

    Args:
        asked: a row's question.
        prefix: stands before the name of each field of ours.
        parsed: whether answers are JSON, which is written beside the text.
        compare: whether the row's own answer is compared with ours.
        flat: write numbers and text only, as a table needs it.
        thinks_until: behind this mark the JSON begins, where it is found; None for no mark.
        flags: whether options are given in a shell.
    """

    def __init__(
        self,
        asked: Callable[[dict[str, Any]], Ask],
        *,
        prefix: str = "",
        parsed: bool = False,
        compare: bool = False,
        flat: bool = False,
        thinks_until: str | None = None,
        flags: bool = False,
    ) -> None:
        self._asked, self._prefix, self._parsed, self._compare, self._flat = asked, prefix, parsed, compare, flat
        self._mark, self._flags = thinks_until, flags
        usage = ["prompt_tokens", "completion_tokens"] if flat else ["usage"]
        own = ["answer", *["parsed"] * parsed, "finish_reason", *usage, *["same"] * compare, "error"]
        self.names = [prefix + name for name in own]

    def ask(self, line: Line) -> Ask:
        """What a row asks."""
        if line.fields is None:
            raise BadInput(line.problem)
        if taken := [name for name in self.names if name in line.fields]:
            raise BadInput(
                f"has a field {taken[0]!r}, which is written here: rename it, or give a prefix, such as "
                f"{option('prefix', self._flags, 'my_')}"
            )
        return self._asked(line.fields)

    def columns(self, columns: list[str]) -> list[str]:
        """The row's own, then ours."""
        return [*columns, *self.names]

    def written(self, line: Line, key: bytes, record: dict[str, Any]) -> dict[str, Any]:
        """The row's own fields, then ours; what there is none of is null."""
        text = record.get("answer")
        counts = {name: record.get(name) for name in ("prompt_tokens", "completion_tokens")}
        own: dict[str, Any] = {name: record.get(name) for name in ("answer", "finish_reason", "error")} | counts
        if not self._flat:
            total = None if text is None else record["prompt_tokens"] + record["completion_tokens"]
            own["usage"] = None if text is None else {**counts, "total_tokens": total}
        if self._parsed:
            own["parsed"] = self._json(text)
        if self._compare:
            own["same"] = self._same(line, text)
        fields = line.fields if line.fields is not None else {} if self._flat else {"line": line.text}
        return {**fields, **{name: own[name.removeprefix(self._prefix)] for name in self.names}}

    def same(self, fields: dict[str, Any]) -> bool | None:
        """What was compared."""
        return fields.get(self._prefix + "same") if self._compare else None

    def _json(self, text: str | None) -> Any:
        if text is None:
            return None
        try:
            return strict_json(text.rpartition(self._mark)[2] if self._mark else text)
        except (ValueError, RecursionError):
            return None

    def _same(self, line: Line, text: str | None) -> bool | None:
        """Whether the row's own answer says the same, as text or as JSON; None where either is missing."""
        if text is None or line.fields is None or (wanted := self._asked(line.fields).reference) is None:
            return None
        if wanted.strip() == text.strip():
            return True
        try:
            return bool(json.loads(wanted) == json.loads(text))
        except (ValueError, RecursionError):
            return False


def check_columns(flat: bool, table_in: bool) -> None:
    """See that a table is written of a table only, since lines of JSON have no columns.

    Raises:
        DaariError: it is not so.
    """
    if flat and not table_in:
        raise DaariError("--out is a table, and --data is none, so its columns are not known: write .jsonl.")
