"""Who learns from whom, where several clients are served: all together, or each apart from the others."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from daari_mlx.ground.errors import DaariError
from daari_mlx.learn.learner import Learner

MOST = 64  # scopes that are remembered; the one that was not used for longest goes


class Learners(Protocol):
    """The learners of an engine.

    Attributes:
        any: a learner of its teacher.
    """

    @property
    def any(self) -> Learner:
        """A learner of the teacher, for what is the same of all: its base and layer."""

    def of(self, scope: str | None) -> Learner | None:
        """Who learns from, and drafts for, requests of a scope; None where nobody does."""

    def close(self) -> None:
        """Count what was heard, and let go of what is kept."""


class Together:
    """One learner for all requests: of one client, or where the operator says that all may share.

    Args:
        learner: who learns.

    Raises:
        DaariError: that is no learner.
    """

    def __init__(self, learner: Learner) -> None:
        if not isinstance(learner, Learner):
            raise DaariError(
                f"learn is {learner!r}: give a learner, such as daari_mlx.learner_for(model, tokenizer) makes it."
            )
        self.any = learner

    def of(self, scope: str | None) -> Learner | None:
        """The one learner."""
        return self.any

    def close(self) -> None:
        """See :class:`Learners`."""
        self.any.close()


class Apart:
    """A learner for each scope: nothing that was said in one is drafted in another.

    Requests without a scope are not learnt from; they get what was known before anything was learnt.

    Args:
        make: makes a learner that knows nothing of any client.
        most: scopes that are remembered.
    """

    def __init__(self, make: Callable[[], Learner], most: int = MOST) -> None:
        self.any = make()
        self._make, self._most = make, most
        self._learners: OrderedDict[str, Learner] = OrderedDict()

    def of(self, scope: str | None) -> Learner | None:
        """The scope's own learner; None without a scope."""
        if scope is None:
            return None
        if scope not in self._learners:
            self._learners[scope] = self._make()
            while len(self._learners) > self._most:
                self._learners.popitem(last=False)[1].close()
        self._learners.move_to_end(scope)
        return self._learners[scope]

    def close(self) -> None:
        """See :class:`Learners`."""
        while self._learners:
            self._learners.popitem()[1].close()
