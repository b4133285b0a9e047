"""What a job will do, how long it may take and what drafting saves: a few words before the work."""

from __future__ import annotations

from daari_mlx.cost.probe import ProbeRecord
from daari_mlx.ground.counted import counted
from daari_mlx.job.concurrency import Foretold
from daari_mlx.job.plan import Plan


def what_is_left(plan: Plan, limit: int) -> str:
    """How many rows there are, and what is to be done with them.

    Args:
        limit: the most tokens of an answer; -1 for none.
    """
    pending, good = len(plan.pending()), len(plan) - len(plan.bad)
    known = sum(plan.place(row) is not None for row in range(len(plan)) if row not in plan.bad)
    parts = [f"{counted(len(plan), 'row')}: {pending:,} to answer"]
    parts += [f"{known:,} answered before"] if known else []
    same = good - known - pending
    parts += [f"{same:,} that ask{'s' * (same == 1)} the same as another"] if same > 0 else []
    parts += [f"{len(plan.bad):,} bad"] if plan.bad else []
    most = "" if limit < 0 else f", answers of at most {limit:,}"
    parts.append(f"prompts of {plan.prompt_tokens / max(good, 1):,.0f} tokens{most}")
    return "; ".join(parts)


def how_long(found: Foretold, timed: ProbeRecord, plan: Plan, rows: int) -> str:
    """How long the rows that are left may take one process, after a comma; empty where no held-out answers tell.

    Args:
        timed: T(m) in seconds.
        rows: at once.
    """
    tokens = found.answer_tokens()
    if tokens is None:
        return ""
    own = max(plan.prompt_tokens / max(len(plan) - len(plan.bad), 1) - plan.shared_tokens, 0.0)
    unit = len(plan.pending()) * timed.seconds[0]
    drafted, plain = (
        unit * (found.prompt(own) + tokens * which.token(rows)) for which in (found, Foretold(found.cost, drafts=False))
    )
    saved = f", without drafts {_span(plain)}" if drafted < 0.95 * plain else ""
    return f"; about {_span(drafted)} for answers of {tokens:.0f} tokens{saved}"


def _span(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
