"""Rows that cannot share a batch: each is answered by itself, a round between two rounds of the others."""

from __future__ import annotations

import copy
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache

from daari_mlx.batch.request import Event, Row
from daari_mlx.decode.answer import Answer
from daari_mlx.decode.limits import Options
from daari_mlx.ground.errors import DaariError
from daari_mlx.teacher.rewind import Cache, cached_tokens
from daari_mlx.teacher.row import Row as TeacherRow
from daari_mlx.teacher.tap import Tap, vocabulary_of


class Alone:
    """One row by itself.

    Args:
        model: the teacher.
        row: what is answered.
        tap: where its drafter's states are read, or None.
        options: of its answer.
        why: what keeps it from sharing the batch.
        stream: the MLX stream to run on.
    """

    def __init__(self, model: nn.Module, row: Row, tap: Tap | None, options: Options, why: str, stream: Any) -> None:
        request = row.request
        self.row, self.why = row, why
        self._model, self._options = model, options
        self._cache: Cache = make_prompt_cache(model)
        if request.prompt_cache is not None:
            if len(request.prompt_cache) != len(self._cache):
                raise DaariError(
                    f"This prompt cache is not this model's: it has {len(request.prompt_cache)} layers, the model "
                    f"{len(self._cache)}. Give one that this model made."
                )
            self._cache = copy.deepcopy(request.prompt_cache)
        self._teacher = TeacherRow(model, self._cache, row.judge, tap=tap, stream=stream, whole=request.keep_cache)
        self._read = request.known
        self._state: mx.array | None = None
        self._answer: Answer | None = None

    def step(self) -> Event | None:
        """A chunk of the prompt, or a round; None where nothing came of it yet."""
        event = Event(self.row.uid, alone=self.why)
        try:
            if self._answer is None and not self._chunk():
                return None
            self._round(event)
        except Exception as error:
            event.error = error
        return event

    def _chunk(self) -> bool:
        """Read some more of the prompt; whether all of it is read."""
        prompt, step = self.row.request.prompt, self._options.caching.prefill_step_size
        chunk = prompt[self._read : min(self._read + step, len(prompt) - 1)]
        if chunk:
            self._state = self._teacher.read(chunk, step, lambda _: None)
            self._read += len(chunk)
            self.row.prefill(self._read, len(prompt))
        if self._read < len(prompt) - 1:
            return False
        self._answer = self.row.answer = Answer(
            prompt,
            self._options,
            self.row.drafter,
            vocabulary_of(self._model),
            self.row.statistics,
            cached=cached_tokens(self._cache),
            state=self._state,
            learner=self.row.learner,
        )
        return True

    def _round(self, event: Event) -> None:
        answer = self._answer
        assert answer is not None
        plan = answer.plan(len(self._teacher.pending))
        verified = self._teacher.verify(answer.text, plan.draft.tokens)
        answer.taken = 0
        try:
            for emitted in answer.emit(plan, verified):
                event.responses.append(self.row.responder.respond(emitted))
                if event.ended:
                    break
        finally:
            self._teacher.settle(answer.taken)
        if event.ended:
            self._teacher.finish(answer.text[-1])
            if self.row.request.keep_cache:
                event.prompt_cache, event.held = self._cache, len(answer.text)
