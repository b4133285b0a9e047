"""A teacher's answers to many prompts, each drafted by what it answered before: the same ids, in fewer forwards."""

from __future__ import annotations

from typing import Any

from daari_mlx.batch.engine import BatchEngine
from daari_mlx.batch.generate import make_engine
from daari_mlx.batch.request import Request
from daari_mlx.ground.wired import wired
from daari_mlx.learn.scopes import Together
from daari_mlx.learn.start import learner_for
from daari_mlx.teacher.load import Teacher

ROWS = 16  # answers that grow side by side


class LearningAnswerer:
    """Answers greedily and learns from its own answers, for :func:`daari_mlx.compile.answers.answer_prompts`.

    Args:
        options: those of :func:`daari_mlx.batch.generate.make_engine`.
    """

    def __init__(self, **options: Any) -> None:
        self._options = {"most_rows": ROWS, **options}
        self._engine: BatchEngine | None = None

    def __call__(
        self, teacher: Teacher, prompts: list[list[int]], max_tokens: list[int], progress: Any
    ) -> list[list[int]]:
        """The answers to some prompts.

        Args:
            teacher: the same in all calls.
            prompts: token ids, at least one each.
            max_tokens: the longest answer to each.
            progress: a bar, told of every answer that ends.

        Raises:
            Whatever the teacher raises.
        """
        engine = self._engine = self._engine or self._make(teacher)
        places = {
            engine.add(Request(prompt, max_tokens=most)): place
            for place, (prompt, most) in enumerate(zip(prompts, max_tokens, strict=True))
        }
        answers: list[list[int]] = [[] for _ in prompts]
        with wired(teacher.model, engine.stream):
            while len(engine):
                for event in engine.step():
                    if event.error is not None:
                        raise event.error
                    answers[places[event.uid]] += [response.token for response in event.responses]
                    progress.update(event.ended)
        return answers

    def _make(self, teacher: Teacher) -> BatchEngine:
        # counted between answers, not beside them: another thread's BLAS settings would be the teacher's too
        learner = learner_for(teacher.model, teacher.tokenizer, beside=False)
        return make_engine(teacher.model, teacher.tokenizer, learners=Together(learner), **self._options)[0]
