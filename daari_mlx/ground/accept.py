"""The longest agreeing prefix plus the teacher's own next token, and what is counted.

Integers only: nothing here knows where the draft or the verdicts come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

TEACHER = "teacher"  # the source of every token that nobody drafted


def count_accepted(draft: Sequence[int], verdicts: Sequence[int]) -> int:
    """How many leading draft tokens equal the teacher's own tokens.

    With a drafter that proposes one token a position, keeping the draft while it equals the teacher's own draw leaves
    the teacher's distribution untouched (sample-and-match; mlx-lm's speculative loop does the same).

    Args:
        draft: the γ draft tokens.
        verdicts: the teacher's token at each row of the verify forward, at least γ of them.
    """
    for position, (drafted, own) in enumerate(zip(draft, verdicts, strict=False)):
        if drafted != own:
            return position
    return min(len(draft), len(verdicts))


def accept_block(draft: Sequence[int], verdicts: Sequence[int]) -> list[int]:
    """The tokens that one round emits: the accepted draft tokens, then the teacher's bonus token.

    Args:
        draft: the γ draft tokens, γ >= 0.
        verdicts: the teacher's own token at each of the γ+1 rows.

    Returns:
        Between 1 and γ+1 tokens; all of them are the teacher's own.
    """
    accepted = count_accepted(draft, verdicts)
    return list(verdicts[: accepted + 1])


@dataclass(slots=True)
class Statistics:
    """What a generation did. Every figure that is shown anywhere is one of these or derived from them here.

    Attributes:
        tokens: emitted tokens, the end-of-sequence token included (as mlx-lm counts them).
        forwards: teacher forwards after prefill.
        drafted: draft tokens that the teacher verified.
        accepted: draft tokens that were emitted.
        rounds_drafted: forwards that carried at least one draft token.
        draft_seconds: time spent in the drafter, re-anchoring included.
        sources: emitted tokens by the source that drafted them; ``"teacher"`` for bonus tokens.
        drafting_off: why nothing is drafted, or None while drafting is on.
    """

    tokens: int = 0
    forwards: int = 0
    drafted: int = 0
    accepted: int = 0
    rounds_drafted: int = 0
    draft_seconds: float = 0.0
    sources: dict[str, int] = field(default_factory=dict)
    drafting_off: str | None = None

    @property
    def tokens_per_forward(self) -> float:
        """Emitted tokens per teacher forward after prefill; plain decoding is 1.0, nothing done is 0.0."""
        return self.tokens / self.forwards if self.forwards else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted draft tokens per draft token; 0.0 when nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    def forward(self, drafted: int) -> None:
        """Count one teacher forward that verified ``drafted`` draft tokens."""
        self.forwards += 1
        self.drafted += drafted
        self.rounds_drafted += drafted > 0

    def emit(self, source: str | None) -> None:
        """Count one emitted token; ``source`` drafted it, None for the teacher's own bonus token."""
        self.tokens += 1
        self.accepted += source is not None
        name = source or TEACHER
        self.sources[name] = self.sources.get(name, 0) + 1

    def add(self, other: Statistics) -> None:
        """Add the counts of another generation to these."""
        for name in ("tokens", "forwards", "drafted", "accepted", "rounds_drafted", "draft_seconds"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for source, count in other.sources.items():
            self.sources[source] = self.sources.get(source, 0) + count
        self.drafting_off = self.drafting_off or other.drafting_off

    def as_dict(self) -> dict[str, object]:
        """The counts and the derived figures, ready for JSON; ``calls`` is an older name of ``forwards``."""
        return {
            "tokens": self.tokens,
            "forwards": self.forwards,
            "tokens_per_forward": self.tokens_per_forward,
            "calls": self.forwards,
            "tokens_per_call": self.tokens_per_forward,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "acceptance_rate": self.acceptance_rate,
            "draft_seconds": self.draft_seconds,
            "sources": dict(self.sources),
            "drafting_off": self.drafting_off,
        }
