"""Who drafts for a row: its own drafter, or one of the engine's, handed on from row to row with what it has learnt."""

from __future__ import annotations

from collections.abc import Callable

from daari_mlx.batch.request import Row
from daari_mlx.draft.drafter import Drafter
from daari_mlx.draft.forced import ForceDrafts
from daari_mlx.learn.learner import Learner
from daari_mlx.learn.scopes import Learners


class Drafters:
    """The drafters of an engine.

    Args:
        make: makes one; None where rows draft with their own only.
        force: makes the drafter of a row with a grammar, from the grammar and the row's own drafter; None where what a
            grammar forces is not drafted.
        learners: who learns from answers; their rows get drafters of what was learnt. None learns nothing.
        make_learning: makes the drafter of a learner, for one row.
    """

    def __init__(
        self,
        make: Callable[[], Drafter] | None,
        force: ForceDrafts | None,
        learners: Learners | None,
        make_learning: Callable[[Learner], Drafter] | None,
    ) -> None:
        self._make, self.force, self._learners, self._make_learning = make, force, learners, make_learning
        self._spare: list[Drafter] = []

    def hand(self, row: Row) -> None:
        """Give a row its drafter."""
        row.own = row.request.drafter
        if self._learners is not None and self._make_learning is not None:
            row.learner = self._learners.of(row.request.scope)
            if row.own is None and row.learner is not None:
                row.own = self._make_learning(row.learner)
        if row.own is None and self._make is not None:
            row.own = self._spare.pop() if self._spare else self._make()
        row.drafter = row.own
        if row.grammar is not None and self.force is not None:
            row.drafter = self.force(row.grammar, row.own)

    def take(self, row: Row) -> None:
        """Keep the drafter of a row that is gone for a later one, and learn from what it said."""
        if row.learner is not None:
            if hasattr(row, "answer"):
                row.answer.end()
        elif row.own is not None and row.request.drafter is None:
            self._spare.append(row.own)
