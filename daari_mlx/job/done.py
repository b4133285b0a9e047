"""What a run of a job did, on one rank and on all of them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from daari_mlx.ground.accept import Statistics
from daari_mlx.job.output import Counted
from daari_mlx.job.plan import Plan
from daari_mlx.job.work import Answer
from daari_mlx.teacher.ranks import Alone


@dataclass
class Done:
    """What one run did.

    Attributes:
        answered, failed: rows of this run with an answer, and with an error.
        seconds: of answering.
        statistics: of its answers together.
        alone: why rows did not share forwards, or None.
    """

    answered: int = 0
    failed: int = 0
    seconds: float = 0.0
    statistics: Statistics = field(default_factory=Statistics)
    alone: str | None = None

    def take(self, answer: Answer) -> None:
        """Count an answer."""
        self.answered += answer.error is None
        self.failed += answer.error is not None
        self.statistics.add(answer.statistics)
        self.alone = self.alone or answer.alone

    def figures(self) -> str:
        """So far, for a bar."""
        counted = self.statistics
        errors = f", {self.failed} errors" if self.failed else ""
        rate = counted.tokens / max(self.seconds, 1e-9)
        return f"{rate:,.0f} tok/s, {counted.tokens_per_forward:.1f} a forward{errors}"

    def together(self, crew: Alone) -> Done:
        """What all ranks did."""
        told = {name: getattr(self, name) for name in ("answered", "failed", "seconds", "alone")}
        counts = {name: getattr(self.statistics, name) for name in ("tokens", "forwards", "drafted", "accepted")}
        found = Done()
        for theirs, counted in map(json.loads, crew.each(json.dumps([told, counts]))):
            found.answered += theirs["answered"]
            found.failed += theirs["failed"]
            found.seconds = max(found.seconds, theirs["seconds"])
            found.alone = found.alone or theirs["alone"]
            found.statistics.add(Statistics(**counted))
        return found


def summary(plan: Plan, asked: int, done: Done, counted: Counted) -> dict[str, Any]:
    """What was done, as JSON values.

    Args:
        asked: rows that were to be answered by this run.
        done: by all ranks.
        counted: what was written.
    """
    return {
        "rows": counted.rows,
        "errors": counted.errors,
        "bad_rows": len(plan.bad),
        "asked": asked,
        "answered": done.answered,
        "failed": done.failed,
        "prompt_tokens": plan.prompt_tokens,
        "completion_tokens": counted.completion_tokens,
        "seconds": done.seconds,
        "rows_per_second": (done.answered + done.failed) / done.seconds if done.seconds else 0.0,
        "tokens_per_second": done.statistics.tokens / done.seconds if done.seconds else 0.0,
        "tokens_per_forward": done.statistics.tokens_per_forward,
        "acceptance_rate": done.statistics.acceptance_rate,
        "compared": counted.compared,
        "same": counted.same,
        "alone": done.alone,
    }
