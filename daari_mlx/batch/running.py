"""The rows that share forwards. A round: plan every row's draft, verify them by one forward, emit, settle."""

from __future__ import annotations

from collections.abc import Callable, Collection
from time import perf_counter
from typing import Any

import mlx.nn as nn

from daari_mlx.batch.judging import Ask
from daari_mlx.batch.lengths import best_common_length
from daari_mlx.batch.request import Event, Row
from daari_mlx.batch.rows import Rows
from daari_mlx.cost.batch_cost import BatchCost
from daari_mlx.decode.answer import Plan
from daari_mlx.decode.emitted import NOTHING
from daari_mlx.teacher.judge import Verified
from daari_mlx.teacher.row import Row as TeacherRow
from daari_mlx.teacher.tap import Tap


class Running:
    """Rows whose prompts are read.

    Args:
        model: the teacher.
        tap: where to read states; None where no drafter needs them.
        cost: T(B, m); None drafts as far as drafters offer.
        gone: called with each row that leaves.
        stream: the MLX stream to run on.

    Attributes:
        teacher: owns their cache.
        cost: as given.
    """

    def __init__(
        self, model: nn.Module, tap: Tap | None, cost: BatchCost | None, gone: Callable[[Row], None], stream: Any
    ) -> None:
        self.teacher = Rows(model, tap, stream)
        self._model, self._tap, self.cost, self._gone, self._stream = model, tap, cost, gone, stream
        self._rows: list[Row] = []  # in the order of the cache
        self._parked = False  # the newest round had no draft
        self._rounds = 0

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def planned(self) -> list[int]:
        """How many tokens each row will hold at the most."""
        return [max(row.most, held) for row, held in zip(self._rows, self.teacher.cache.tokens, strict=True)]

    def join(self, row: Row) -> None:
        """Add a row whose tokens are in the cache already, behind the others."""
        self._rows.append(row)

    def cancel(self, uids: Collection[int]) -> None:
        """Let these go."""
        for place in reversed(range(len(self._rows))):
            if self._rows[place].uid in uids:
                self._drop(place)

    @property
    def started(self) -> bool:
        """Whether the next round's forward is under way: nobody may join before that round."""
        return self.teacher.started

    def round(self, *, ahead: bool = False) -> list[Event]:
        """One forward for all rows; what came of it.

        Args:
            ahead: nobody joins before the next round, so its forward may be started before this one is read, where
                neither of them drafts.
        """
        rows, owed, start = self._rows, self.teacher.owed, perf_counter()
        plans, failed = self._plan(rows, owed)
        ahead = ahead and all(row.answer.resting for row in rows) and not all(row.answer.ends_next for row in rows)
        asks = [Ask(r.answer.text, p.draft.tokens, r.judge) for r, p in zip(rows, plans, strict=True)]
        try:
            verified = self.teacher.verify(asks, ahead=ahead)
        except Exception as error:  # the teacher fails for all of them
            return self._fail(error)
        said = [failed.get(k, one) for k, one in enumerate(verified)]
        events = [_emit(row, plan, one) for row, plan, one in zip(rows, plans, said, strict=True)]
        keeps = [event.ended and row.request.keep_cache for event, row in zip(events, rows, strict=True)]
        self.teacher.settle([row.answer.taken for row in rows], keeps)
        if self.cost is not None:
            width = max(len(p.draft.tokens) + due for p, due in zip(plans, owed, strict=True)) + 1
            self.cost.learn(len(rows), width, perf_counter() - start)
        for place in reversed(range(len(events))):
            if events[place].ended:
                self._end(place, events[place])
        return events

    def _plan(self, rows: list[Row], owed: list[int]) -> tuple[list[Plan], dict[int, Exception]]:
        """What each row drafts, and what the drafters of some raised, by the row's place."""
        self._rounds += 1
        offers, paths, failed = [NOTHING] * len(rows), [list[float]()] * len(rows), dict[int, Exception]()
        for place, (row, due) in enumerate(zip(rows, owed, strict=True)):
            try:
                offer = row.answer.offer(due)
                paths[place] = [p if 0 <= p <= 1 else 0.0 for p in offer.probabilities[: len(offer.tokens)]]
                offers[place] = offer
            except Exception as error:
                failed[place] = error
        length = max(len(offer.tokens) for offer in offers)
        if self.cost is not None and length:
            length = best_common_length(paths, owed, self.cost, parked=self._parked)
        self._parked = length == 0
        plans = [Plan(NOTHING)] * len(rows)
        for place, (row, offer) in enumerate(zip(rows, offers, strict=True)):
            try:
                plans[place] = row.answer.take(offer, length, self._rounds)
            except Exception as error:
                failed[place] = error
        return plans, failed

    def _fail(self, error: Exception) -> list[Event]:
        """All rows end; what their cache came to is forgotten with it."""
        events = [Event(row.uid, error=error) for row in self._rows]
        self.teacher = Rows(self._model, self._tap, self._stream)
        while self._rows:
            self._remove(len(self._rows) - 1)
        return events

    def _end(self, place: int, event: Event) -> None:
        """Take a row out; what it keeps goes with its last event."""
        row = self._rows[place]
        if not row.request.keep_cache or event.error is not None:
            self._drop(place)
            return
        event.held = self.teacher.cache.tokens[place] - row.cached
        try:
            event.prompt_cache = self.teacher.leave(place)
            if event.held < len(row.answer.text) and row.request.whole_cache:
                newest = TeacherRow(self._model, event.prompt_cache, row.judge, stream=self._stream, whole=True)
                newest.finish(row.answer.text[-1])
                event.held = len(row.answer.text)
        except Exception as error:
            event.prompt_cache, event.error = None, error
        self._remove(place)

    def _drop(self, place: int) -> None:
        self.teacher.drop(place)
        self._remove(place)

    def _remove(self, place: int) -> None:
        """Forget the row at a place; the last one takes it, as in the caches."""
        row, self._rows[place] = self._rows[place], self._rows[-1]
        self._rows.pop()
        self._gone(row)


def _emit(row: Row, plan: Plan, said: Verified | Exception) -> Event:
    event = Event(row.uid)
    row.answer.taken = 0
    if isinstance(said, Exception):
        event.error = said
        return event
    try:
        for emitted in row.answer.emit(plan, said):
            event.responses.append(row.responder.respond(emitted))
            if event.ended:
                break
    except Exception as error:  # of this row's processor, sampler or text
        event.error = error
    return event
