"""The batch engine of a job, with as many rows at once as pay."""

from __future__ import annotations

from typing import Any

import mlx.nn as nn

from daari_mlx.batch.engine import BatchEngine
from daari_mlx.batch.generate import make_engine
from daari_mlx.cost import machine
from daari_mlx.decode.options import DraftLength
from daari_mlx.graph.graph import Graph
from daari_mlx.graph.outlook import Outlook
from daari_mlx.ground.given import check_whole
from daari_mlx.job.concurrency import Foretold, cache_bytes
from daari_mlx.learn.learner import Learner
from daari_mlx.learn.scopes import Together


def foretold(model: nn.Module, drafts: bool, num_draft_tokens: DraftLength, outlook: Outlook | None = None) -> Foretold:
    """What answers are expected to cost here; T(B, m) as far as it was measured, else a provisional one.

    Args:
        drafts: whether somebody drafts, unless ``num_draft_tokens`` is 0.
        outlook: the graph's held-out answers, where it keeps some.
    """
    drafts = drafts and num_draft_tokens != 0
    return Foretold(machine.batch_cost_of(model), drafts, outlook if drafts else None)


def engine_for(
    model: nn.Module,
    tokenizer: Any,
    graph: Graph | None,
    num_draft_tokens: DraftLength,
    concurrency: int | str,
    found: Foretold | None = None,
    learner: Learner | None = None,
) -> tuple[BatchEngine, int]:
    """The engine, and how many rows it answers at once.

    Args:
        concurrency: so many rows at once, or ``"auto"``.
        found: what answers are expected to cost; None to find out.
        learner: who learns from answers and drafts them, in place of a graph; it may have begun with one.

    Raises:
        DaariError: a graph of another teacher; numbers that cannot be.
    """
    if concurrency == "auto":
        rows = (found or foretold(model, graph is not None or learner is not None, num_draft_tokens)).rows_at_once()
    else:
        check_whole("concurrency", concurrency, 1, mend="give a number from 1 on, or 'auto'")
        rows = int(concurrency)
    engine, _ = make_engine(
        model,
        tokenizer,
        graph=graph if learner is None else None,
        num_draft_tokens=num_draft_tokens,
        most_rows=rows,
        most_bytes=cache_bytes(),
        learners=None if learner is None else Together(learner),
    )
    return engine, rows
