"""The batch engine: admit → read a chunk of prompts → draft, verify, emit → let go of rows that ended.

It knows no text files and no HTTP. One thread steps it; requests may be added and cancelled between steps.
"""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from time import perf_counter
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from daari_mlx.batch.alone import Alone
from daari_mlx.batch.drafters import Drafters
from daari_mlx.batch.newcomers import Newcomers
from daari_mlx.batch.prefixes import Prefixes
from daari_mlx.batch.request import Counts, Event, Request, Row
from daari_mlx.batch.running import Running
from daari_mlx.cost.batch_cost import BatchCost
from daari_mlx.decode.answer import Answer
from daari_mlx.decode.begun import processors_for
from daari_mlx.decode.limits import Options
from daari_mlx.decode.options import CacheOptions
from daari_mlx.decode.responses import Prefill, Responder
from daari_mlx.draft.drafter import Drafter
from daari_mlx.draft.forced import ForceDrafts, grammar_among
from daari_mlx.ground.accept import Statistics
from daari_mlx.ground.types import FloatArray
from daari_mlx.learn.learner import Learner
from daari_mlx.learn.scopes import Learners
from daari_mlx.teacher.draws import OwnDraws
from daari_mlx.teacher.fingerprint import context_length
from daari_mlx.teacher.judge import Judge
from daari_mlx.teacher.quirks import blocks_until
from daari_mlx.teacher.rewind import cached_tokens
from daari_mlx.teacher.tap import Tap, vocabulary_of

STEP = 512  # prompt tokens that are read between two rounds


class BatchEngine:
    """Answers many requests at once.

    Args:
        model: the teacher.
        tokenizer: mlx-lm's wrapper.
        make_drafter: makes the drafter of a row; rows that end hand theirs on to later ones, with what it heard. None
            drafts nothing.
        tap: where the drafters' states are read; needed with drafters that look at states.
        cost: T(B, m), for rows that draft as far as it pays; None drafts as far as drafters offer.
        most_rows: how many rows share a forward at the most.
        most_bytes: what their caches may take; a request that alone takes more is answered alone. None for no limit.
        prefill_step_size: prompt tokens that are read between two rounds.
        why_alone: why this model's rows cannot share a batch; None where they can.
        force: makes the drafter of a row with a grammar, from the grammar and the row's own drafter; None where what a
            grammar forces is not drafted.
        off: why rows without a drafter of their own do not draft; None where they do.
        stream: the MLX stream to run on; None for mlx-lm's generation stream.
        learners: who learns from answers; their rows get drafters of what was learnt. None learns nothing.
        make_learning: makes the drafter of a learner, for one row.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any,
        *,
        make_drafter: Callable[[], Drafter] | None = None,
        tap: Tap | None = None,
        cost: BatchCost | None = None,
        most_rows: int = 32,
        most_bytes: int | None = None,
        prefill_step_size: int = STEP,
        why_alone: str | None = None,
        force: ForceDrafts | None = None,
        off: str | None = None,
        stream: Any = None,
        learners: Learners | None = None,
        make_learning: Callable[[Learner], Drafter] | None = None,
    ) -> None:
        self.learners = learners
        self.model, self.tokenizer = model, tokenizer
        self.stream = importlib.import_module("mlx_lm.generate").generation_stream if stream is None else stream
        self._drafters, self._off = Drafters(make_drafter, force, learners, make_learning), off
        self._tap, self.cost = tap, cost
        self._most_rows, self._most_bytes, self._why_alone = most_rows, most_bytes, why_alone
        self._step = prefill_step_size
        self._vocabulary = vocabulary_of(model)
        self._waiting: deque[Row] = deque()
        self._alone: deque[Alone] = deque()
        self._cancelled: set[int] = set()
        self._uids = count()
        self.counts = Counts()
        self._reading: Iterator[int] | None = None  # a prefix that is being read
        self._shares = True  # prefixes are read for several prompts at once
        self._prefixes = Prefixes(model, prefill_step_size, self.stream)
        if why_alone is None:
            self._running = Running(model, tap, cost, self._drafters.take, self.stream)
            self._newcomers = Newcomers(model, tap, prefill_step_size, self.stream)

    def __len__(self) -> int:
        """How many requests are not answered yet."""
        together = 0 if self._why_alone is not None else len(self._newcomers) + len(self._running)
        return len(self._waiting) + len(self._alone) + together

    @property
    def nbytes(self) -> int:
        """Bytes of the rows' caches, and of what prompts share."""
        if self._why_alone is not None:
            return 0
        return self._running.teacher.cache.nbytes + self._newcomers.nbytes + self._prefixes.nbytes

    def add(self, request: Request) -> int:
        """Take a request; its number, which its events carry.

        Raises:
            DaariError: the prompt is empty, or longer than the teacher can hold; a grammar that cannot follow what the
                prompt begins.
        """
        request.check(self._vocabulary)
        if not len(self):  # while answers are under way, the model stays as it is
            self._prefixes.renew()
        request = replace(request, prompt=list(request.prompt))  # nobody else's list
        uid, statistics = next(self._uids), Statistics()
        prefill = Prefill(request.prompt_progress_callback)
        before = request.prompt_cache if not request.known else None
        cached = 0 if before is None else cached_tokens(before)
        seed = int(mx.random.randint(0, 2**31 - 1)) if request.seed is None and request.sampler else request.seed or 0
        processors = processors_for(request.logits_processors, request.prompt, None, request.begun)
        judge = Judge(request.sampler, processors, request.prompt[:-1], self.stream, OwnDraws(seed))
        responder = Responder(
            self.tokenizer, len(request.prompt), request.max_tokens, statistics, request.stop, prefill
        )
        grammar = None if self._drafters.force is None else grammar_among(processors)
        if grammar is None and request.drafter is None:
            statistics.drafting_off = self._off
        self._waiting.append(Row(uid, request, prefill, statistics, judge, responder, cached, grammar))
        return uid

    def price(self, cost: BatchCost) -> None:
        """Let rows draft as far as it pays by this T(B, m)."""
        self.cost = cost
        if self._why_alone is None:
            self._running.cost = cost

    def cancel(self, uid: int) -> None:
        """Let go of a request, wherever it is; the next step frees its place, and no event comes of it any more."""
        self._cancelled.add(uid)

    def step(self) -> list[Event]:
        """One chunk of prompts and one round of all rows; what came of it.

        An error of one row is its event. What the teacher raises for all of them is raised for each of them.
        """
        self._let_go()
        events = self._admit()
        together = self._why_alone is None
        if together and self._running.started and len(self._newcomers):
            events += self._timed_round()  # what is under way ends before anybody joins
        if self._reading is not None or (together and len(self._newcomers)):
            start = perf_counter()
            events += self._read()
            self.counts.prompt_seconds += perf_counter() - start
        if (together and len(self._running)) or self._alone:
            events += self._timed_round()
        return events

    def _timed_round(self) -> list[Event]:
        start = perf_counter()
        if self._why_alone is None:
            events = self._running.round(ahead=not len(self._newcomers) and self._reading is None)
        else:
            events = self._step_alone()
        self.counts.round_seconds += perf_counter() - start
        self.counts.rounds += 1
        return events

    # rows come

    def _let_go(self) -> None:
        """Free the places of cancelled requests."""
        if not self._cancelled:
            return
        gone, self._cancelled = self._cancelled, set()
        self._waiting = deque(row for row in self._waiting if row.uid not in gone)
        for alone in [alone for alone in self._alone if alone.row.uid in gone]:
            self._alone.remove(alone)
            self._drafters.take(alone.row)
        if self._why_alone is None:
            self._running.cancel(gone)
            for row in self._newcomers.cancel(gone):
                self._drafters.take(row)

    def _admit(self) -> list[Event]:
        """Begin with what waits, in its order, as far as there is room; the events of rows that cannot be begun."""
        events = []
        while self._waiting and self._reading is None and self._has_place(self._waiting[0]):
            row = self._waiting[0]
            known, cache = row.request.known, row.request.prompt_cache
            if self._why_alone is None and cache is None:
                prompt, salt = row.request.prompt, row.request.salt
                waiting = [other.request for other in list(self._waiting)[1 : self._most_rows]]
                others = [other.prompt for other in waiting if other.salt == salt]
                if self._shares and (shared := self._prefixes.shared(prompt, others, salt, row.request.shared)):
                    self._reading = self._prefixes.read(prompt[:shared], salt)
                    break
                known, cache = self._prefixes.find(prompt, salt)
            self._waiting.popleft()
            try:
                self._begin(row, cache, known)
            except Exception as error:  # a prompt cache of another model, a callback of its own
                self._drafters.take(row)
                events.append(Event(row.uid, error=error))
        return events

    def _begin(self, row: Row, cache: Any, known: int) -> None:
        self._drafters.hand(row)
        if self._why_alone is not None:
            self._alone.append(Alone(self.model, row, self._tap, self._options(row), self._why_alone, self.stream))
        else:
            row.prefill(known, len(row.request.prompt))
            self._newcomers.admit(row, cache, known)

    def _has_place(self, row: Row) -> bool:
        if self._why_alone is not None:
            return True
        return len(self._running) + len(self._newcomers) < self._most_rows and self._fits(row)

    def _fits(self, row: Row) -> bool:
        """Whether a row's cache finds room; with no other row there, it always does."""
        if self._most_bytes is None or not (len(self._running) or len(self._newcomers)):
            return True
        planned = [*self._running.planned, *(other.most for other in self._newcomers.rows), row.most]
        left = self._most_bytes - self._running.teacher.cache.bytes_for(planned)
        if 0 <= left < self._prefixes.nbytes:  # rows come first
            self._prefixes.forget()
            self._shares = False
        return left >= 0

    def _options(self, row: Row) -> Options:
        return Options(
            max_tokens=row.request.max_tokens,
            caching=CacheOptions(prefill_step_size=self._step),
            prompt_progress_callback=row.request.prompt_progress_callback,
            context_length=context_length(self.model),
            blocks_until=blocks_until(self.model),
            stream=self.stream,
        )

    def _read(self) -> list[Event]:
        """A chunk of the newcomers' prompts, or of what those that wait share."""
        if self._reading is None or (self._why_alone is None and len(self._newcomers)):
            return self._read_newcomers()
        try:
            if next(self._reading, None) is None:
                self._reading = None
        except Exception:  # what fails here fails again with the prompt itself, as its error
            self._reading, self._shares = None, False
        return []

    def _read_newcomers(self) -> list[Event]:
        try:
            read, failed = self._newcomers.read(self._running.teacher)
        except Exception as error:
            read, failed = [], [(row, error) for row in self._newcomers.rows]
            self._newcomers = Newcomers(self.model, self._tap, self._step, self.stream)
        for row, _ in failed:
            self._drafters.take(row)
        for row, state in read:
            row.answer = self._answer(row, state)
            self._running.join(row)
        return [Event(row.uid, error=error) for row, error in failed]

    def _answer(self, row: Row, state: FloatArray | None) -> Answer:
        return Answer(
            row.request.prompt,
            self._options(row),
            row.drafter,
            self._vocabulary,
            row.statistics,
            cached=row.cached + len(row.request.prompt) - 1,
            state=state,
            learner=row.learner,
        )

    def _step_alone(self) -> list[Event]:
        alone = self._alone[0]
        event = alone.step()
        if event is None:
            return []
        if event.ended:
            self._alone.popleft()
            self._drafters.take(alone.row)
        return [event]
