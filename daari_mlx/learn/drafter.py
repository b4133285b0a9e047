"""The drafter of a learner: that of a graph, which is the newest one whenever a text begins."""

from __future__ import annotations

from collections.abc import Collection

from daari_mlx.cost.length import CostAt
from daari_mlx.draft.drafter import Context, Draft, GraphDrafter
from daari_mlx.learn.learner import Learner


class LearningDrafter(GraphDrafter):
    """Drafts from what a learner knows; within a text its graph stays the same.

    Args:
        learner: who makes the graphs.
        num_draft_tokens, cost, ends: see :class:`daari_mlx.draft.drafter.GraphDrafter`.
    """

    def __init__(
        self,
        learner: Learner,
        *,
        num_draft_tokens: int | None = None,
        cost: CostAt | None = None,
        ends: Collection[int] = (),
    ) -> None:
        self.learner, self._snapshot = learner, learner.snapshot
        super().__init__(self._snapshot.graph, num_draft_tokens=num_draft_tokens, cost=cost, ends=ends)
        self.use(self._snapshot.graph, self._snapshot.earlier)
        self._newest_text: list[int] | None = None

    def offer(self, context: Context, limit: int) -> Draft:
        """See :meth:`daari_mlx.draft.drafter.GraphDrafter.offer`."""
        if context.tokens is not self._newest_text:
            self._newest_text, newest = context.tokens, self.learner.snapshot
            if newest is not self._snapshot:
                self._snapshot = newest
                self.use(newest.graph, newest.earlier)
        return super().offer(context, limit)
