"""What a benchmark measured: one row a prompt, and the figures over all rows, each defined once, here."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

IDENTICAL, TIE, FAILED = "identical", "tie", "FAILED"


@dataclass(frozen=True)
class Row:
    """One prompt, decoded by both arms.

    Attributes:
        source: where the prompt stands, ``"file:line"``.
        prompt_tokens: its length.
        plain_tokens, tokens: tokens that plain and we emitted, the end token included.
        verdict: ``"identical"`` ids; ``"tie"``: ours differ only where plain's own log-probabilities tie within
            the record's ``gap_bound``, and plain goes on from there as we did; ``"FAILED"``: anything else.
        first_difference: index of the first token that no tie excuses, else of the first that differs, else
            None.
        gap: plain's top-two log-probability gap there, in nats; None without a difference, and where one answer
            merely ends before the other.
        plain_ids, ids: the tokens themselves, kept only where they differ.
        plain_seconds, seconds: decoding alone: from the end of prefill (the cache holds all prompt tokens but
            the last) to the arrival of the last token.
        plain_wall_seconds, wall_seconds: from the call to the arrival of the last token.
        forwards, drafted, accepted, draft_seconds, sources: see :class:`daari_mlx.ground.accept.Statistics`.
        rounds: (drafted, accepted, emitted) tokens of each forward.
        plain_first: whether plain ran before us here; the order alternates, so that drift hits both arms.
    """

    source: str
    prompt_tokens: int
    plain_tokens: int
    tokens: int
    verdict: str
    first_difference: int | None
    gap: float | None
    plain_ids: tuple[int, ...] | None
    ids: tuple[int, ...] | None
    plain_seconds: float
    seconds: float
    plain_wall_seconds: float
    wall_seconds: float
    forwards: int
    drafted: int
    accepted: int
    draft_seconds: float
    sources: dict[str, int]
    rounds: tuple[tuple[int, int, int], ...] = field(repr=False)
    plain_first: bool

    @property
    def ratio(self) -> float:
        """Plain's decode seconds per token over ours: above 1 we are faster."""
        return (self.plain_seconds / self.plain_tokens) / (self.seconds / self.tokens)

    @property
    def wall_ratio(self) -> float:
        """The same with prefill included."""
        return (self.plain_wall_seconds / self.plain_tokens) / (self.wall_seconds / self.tokens)

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON; the single rounds are left out (the record adds them up)."""
        values = asdict(self)
        del values["rounds"]
        return {**values, "ratio": self.ratio, "wall_ratio": self.wall_ratio}


@dataclass(frozen=True)
class Spread:
    """A sample's quartiles and extremes."""

    median: float
    lower: float
    upper: float
    least: float
    most: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """Of at least one value; the quartiles include the extremes."""
        if len(values) == 1:
            return cls(*values * 5)
        lower, _, upper = quantiles(values, n=4, method="inclusive")
        return cls(median(values), lower, upper, min(values), max(values))


@dataclass(frozen=True)
class BenchRecord:
    """A benchmark: where it ran, on what, and its rows.

    Attributes:
        about: command, commit, versions, device, teacher, graph and settings; JSON values.
        gap_bound: below which plain's top-two log-probability gap counts as a tie in the teacher's type.
        rows: one a prompt, in the order they ran.
    """

    about: dict[str, Any]
    gap_bound: float
    rows: tuple[Row, ...]

    @property
    def ok(self) -> bool:
        """Whether every row is identical to plain, ties excused."""
        return all(row.verdict != FAILED for row in self.rows)

    @property
    def speedup(self) -> float | None:
        """The median decode ratio; None where a row failed, since then nothing was sped up."""
        return self.decode_ratio.median if self.ok else None

    @property
    def decode_ratio(self) -> Spread:
        """Of each row's :attr:`Row.ratio`."""
        return Spread.of([row.ratio for row in self.rows])

    @property
    def wall_ratio(self) -> Spread:
        """Of each row's :attr:`Row.wall_ratio`."""
        return Spread.of([row.wall_ratio for row in self.rows])

    @property
    def losing(self) -> list[Row]:
        """The rows on which we decode slower than plain."""
        return [row for row in self.rows if row.ratio < 1]

    def of_verdict(self, verdict: str) -> list[Row]:
        """The rows of one verdict."""
        return [row for row in self.rows if row.verdict == verdict]

    @property
    def positions(self) -> tuple[list[int], list[int]]:
        """(drafted, accepted) tokens by position in the draft; they sum to those of the rows."""
        rounds = [counts for row in self.rows for counts in row.rounds]
        places = range(max(drafted for drafted, _, _ in rounds))
        return (
            [sum(drafted > place for drafted, _, _ in rounds) for place in places],
            [sum(accepted > place for _, accepted, _ in rounds) for place in places],
        )

    @property
    def round_sizes(self) -> dict[int, int]:
        """How many forwards emitted so many tokens."""
        sizes = [emitted for row in self.rows for _, _, emitted in row.rounds]
        return {size: sizes.count(size) for size in sorted(set(sizes))}

    def as_dict(self) -> dict[str, Any]:
        """The whole record, ready for JSON."""
        rows = self.rows
        tokens, forwards, seconds = _sum(rows, "tokens"), _sum(rows, "forwards"), _sum(rows, "seconds")
        drafted, accepted = self.positions
        sources: dict[str, int] = {}
        for row in rows:
            for name, count in row.sources.items():
                sources[name] = sources.get(name, 0) + count
        return {
            **self.about,
            "ok": self.ok,
            "speedup": self.speedup,
            "n": len(rows),
            "identity": {
                "identical": len(self.of_verdict(IDENTICAL)),
                "ties": len(self.of_verdict(TIE)),
                "failed": len(self.of_verdict(FAILED)),
                "failed_rows": [row.source for row in self.of_verdict(FAILED)],
                "gap_bound": self.gap_bound,
            },
            "decode_ratio": {**asdict(self.decode_ratio), "total": _total_ratio(rows, "seconds")},
            "wall_ratio": {**asdict(self.wall_ratio), "total": _total_ratio(rows, "wall_seconds")},
            "losing": {"count": len(self.losing), "rows": [row.source for row in self.losing]},
            "tokens_per_second": {
                "plain": asdict(Spread.of([row.plain_tokens / row.plain_seconds for row in rows])),
                "ours": asdict(Spread.of([row.tokens / row.seconds for row in rows])),
            },
            "tokens": tokens,
            "forwards": forwards,
            "tokens_per_forward": tokens / forwards,
            "drafted": sum(drafted),
            "accepted": sum(accepted),
            "acceptance_rate": sum(accepted) / max(sum(drafted), 1),
            "draft_time_share": _sum(rows, "draft_seconds") / seconds,
            "mean_tokens": tokens / len(rows),
            "sources": sources,
            "positions": {"drafted": drafted, "accepted": accepted},
            "round_sizes": {str(size): count for size, count in self.round_sizes.items()},
            "rows": [row.as_dict() for row in rows],
        }


def append_record(path: Path, values: dict[str, Any]) -> None:
    """Append a record to a file, as one line of JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(values, ensure_ascii=False) + "\n")


def _sum(rows: tuple[Row, ...], name: str) -> Any:
    return sum(getattr(row, name) for row in rows)


def _total_ratio(rows: tuple[Row, ...], seconds: str) -> float:
    """All of plain's seconds per token over all of ours."""
    plain = _sum(rows, f"plain_{seconds}") / _sum(rows, "plain_tokens")
    return float(plain / (_sum(rows, seconds) / _sum(rows, "tokens")))
