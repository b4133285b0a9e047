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

    def draft(self, context: Context, limit: int, pending: int = 0) -> Draft:
        """See :meth:`daari_mlx.draft.drafter.Drafter.draft`."""
        self._renew(context.tokens)
        return super().draft(context, limit, pending)

    def offer(self, context: Context, limit: int) -> Draft:
        """See :meth:`daari_mlx.draft.drafter.GraphDrafter.offer`."""
        self._renew(context.tokens)
        return super().offer(context, limit)

    def _renew(self, tokens: list[int]) -> None:
        """Take the newest snapshot where another text begins."""
        if tokens is self._newest_text:
            return
        self._newest_text, newest = tokens, self.learner.snapshot
        if newest is not self._snapshot:
            self._snapshot = newest
            self.use(newest.graph, newest.earlier)
