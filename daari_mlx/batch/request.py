"""A request for an answer, the row that it becomes, what comes of it, and what an engine counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from daari_mlx.decode.answer import Answer
from daari_mlx.decode.begun import Begun
from daari_mlx.decode.responses import GenerationResponse, Prefill, Responder
from daari_mlx.draft.drafter import Drafter
from daari_mlx.draft.forced import Forcing
from daari_mlx.ground.accept import Statistics
from daari_mlx.ground.errors import DaariError
from daari_mlx.learn.learner import Learner
from daari_mlx.teacher.judge import Judge, LogitsProcessor, Sampler
from daari_mlx.teacher.rewind import Cache


@dataclass(slots=True)
class Request:
    """What one row is asked for; names are mlx-lm's.

    Attributes:
        prompt: its token ids, at least one.
        max_tokens: how many tokens at the most; -1 for no limit.
        sampler: from ``(1, V)`` log-probabilities to a token; None for greedy.
        logits_processors: functions of (tokens so far, ``(1, V)`` logits), of this row alone; or None.
        stop: texts that end the answer.
        seed: of the row's own random numbers, so that it draws what it draws alone; None takes one from MLX's.
        drafter: who drafts for this row alone; None takes the engine's.
        prompt_cache: what came before the prompt, of one row; it is copied, and left as it is. Or None.
        known: how many first tokens of the prompt ``prompt_cache`` holds instead; 0 where it holds what came before.
        begun: how much of the prompt's end is the beginning of the answer; see :func:`daari_mlx.stream_generate`.
        keep_cache: give the row's prompt cache back at the end, with the prompt and all emitted tokens in it.
        whole_cache: the kept cache has to hold the newest token too, which may cost one more forward.
        shared: how many first tokens of the prompt others will probably have too: those are read first and kept.
        salt: requests with another one share no beginning with this one: how fast an answer comes tells what was read.
        prompt_progress_callback: called with (prompt tokens done, prompt tokens).
        scope: whose request it is, where the engine learns apart for each: it learns from requests of the same scope,
            and they are drafted by what was learnt. None is nobody's, and learns nothing.
    """

    prompt: list[int]
    max_tokens: int = 256
    sampler: Sampler | None = None
    logits_processors: list[LogitsProcessor] | None = None
    stop: list[str] = field(default_factory=list)
    seed: int | None = None
    drafter: Drafter | None = None
    prompt_cache: Cache | None = None
    known: int = 0
    begun: Begun = 0
    keep_cache: bool = False
    whole_cache: bool = True
    shared: int = 0
    salt: str = ""
    prompt_progress_callback: Callable[[int, int], None] | None = None
    scope: str | None = None

    def check(self, vocabulary: int) -> None:
        """See that it can be answered by a teacher of this many tokens.

        Raises:
            DaariError: the prompt is empty or has ids that are none; a number that cannot be.
        """
        if not self.prompt:
            raise DaariError("The prompt is empty: it has no tokens. Give at least one.")
        if not 0 <= self.known < len(self.prompt):
            raise DaariError(f"known is {self.known}: give 0 to {len(self.prompt) - 1}; the last token has to be read.")
        if self.max_tokens == 0 or self.max_tokens < -1:
            raise DaariError(f"max_tokens is {self.max_tokens}: give at least 1, or -1 for no limit.")
        if not all(0 <= token < vocabulary for token in self.prompt):  # it would fail for all rows
            raise DaariError(f"The prompt has ids that this teacher lacks: give some in 0…{vocabulary - 1}.")


@dataclass(slots=True, eq=False)
class Row:
    """A request that is being answered.

    Attributes:
        uid: its number.
        prefill: when its prompt was read.
        learner: who learns from it, and made its drafter; or None.
        judge, answer, responder: what chooses, plans and tells its tokens.
        cached: tokens that came before the prompt.
        grammar: of its answer; None where it has none, or it does not draft.
        drafter: who drafts for it.
        own: who drafts where a grammar leaves a choice; without a grammar the same.
    """

    uid: int
    request: Request
    prefill: Prefill
    statistics: Statistics
    judge: Judge
    responder: Responder
    cached: int
    grammar: Forcing | None = None
    drafter: Drafter | None = None
    own: Drafter | None = None
    learner: Learner | None = None
    answer: Answer = field(init=False)

    @property
    def most(self) -> int:
        """How many tokens its cache will hold at the most, as far as its budget tells."""
        return self.cached + len(self.request.prompt) + max(self.request.max_tokens, 0)


@dataclass(slots=True)
class Event:
    """What a step brought for one row.

    Attributes:
        uid: of the request.
        responses: one a token, as :func:`daari_mlx.stream_generate` gives them; the last one of an answer has a
            ``finish_reason``.
        error: what ended the row instead; it was its own, and the others go on.
        prompt_cache: at the end of a request that wanted it.
        held: how many tokens of prompt and answer it holds: all, or all but the last.
        alone: why this row does not share the batch, or None.
    """

    uid: int
    responses: list[GenerationResponse] = field(default_factory=list)
    error: Exception | None = None
    prompt_cache: Cache | None = None
    held: int = 0
    alone: str | None = None

    @property
    def ended(self) -> bool:
        """Whether this is the row's last event."""
        return self.error is not None or bool(self.responses and self.responses[-1].finish_reason is not None)


@dataclass(slots=True)
class Counts:
    """What an engine did so far.

    Attributes:
        prompt_seconds: spent reading prompts.
        rounds: forwards over all rows that emit tokens.
        round_seconds: spent in rounds, drafting and telling tokens included.
    """

    prompt_seconds: float = 0.0
    rounds: int = 0
    round_seconds: float = 0.0
