"""The loop: draft → verify → accept → re-anchor, until the budget is spent or the caller stops."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from time import perf_counter

import mlx.nn as nn

from daari_mlx.decode.answer import Answer, Hears
from daari_mlx.decode.emitted import Emitted
from daari_mlx.decode.limits import Options
from daari_mlx.decode.plain import plain_steps
from daari_mlx.draft.drafter import Drafter
from daari_mlx.ground.accept import Statistics
from daari_mlx.teacher.judge import Judge
from daari_mlx.teacher.rewind import Cache, cached_tokens, can_drop_one
from daari_mlx.teacher.row import Row
from daari_mlx.teacher.tap import Tap, vocabulary_of


def generate_step(
    prompt: list[int],
    model: nn.Module,
    cache: Cache,
    *,
    options: Options,
    drafter: Drafter | None,
    tap: Tap | None,
    statistics: Statistics,
    earlier: list[int] | None = None,
    whole: bool = False,
    vocabulary: int | None = None,
    learner: Hears | None = None,
    told: Callable[[int, float], None] | None = None,
) -> Generator[Emitted, None, None]:
    """Yield the teacher's own tokens, several a forward where the drafter was right.

    A token counts as emitted once it is yielded. However a generation ends (the budget, ``close()``, an exception or
    Ctrl-C at any yield), the cache is exact: see ``whole``. If prefill itself is interrupted, it holds the part of the
    prompt that was done.

    Args:
        prompt: token ids, at least one; ``cache`` may already hold what came before them.
        model: the teacher.
        cache: the prompt cache, changed in place.
        options: see :class:`Options`.
        drafter: who drafts; None for mlx-lm's own loop where the cache can then be made exact, else one alike.
        tap: where the drafter's states are read; needed with a drafter.
        statistics: counts are added to it.
        earlier: the tokens that ``cache`` holds already, where they are known: the drafter reads them too.
        whole: afterwards the cache holds the prompt and all emitted tokens, as mlx-lm leaves it, and as many random
            numbers are used; else it holds all but the newest token, which may save a forward.
        vocabulary: how many token ids the teacher knows; None finds out.
        learner: who learns from the answer, however it ends; where states are read.
        told: is told of each round how many rows its forward had, and the seconds that it took.
    """
    if drafter is None and can_drop_one(cache):
        yield from plain_steps(prompt, model, cache, options, statistics, whole)
        return
    judge = Judge(options.sampler, options.logits_processors, prompt[:-1], options.run_stream())
    quantise = options.quantise if options.caching.kv_bits is not None else None
    row = Row(model, cache, judge, tap=tap, quantise=quantise, stream=options.run_stream(), whole=whole)
    state = row.read(prompt[:-1], options.caching.prefill_step_size, options.report(len(prompt)))
    if vocabulary is None:
        vocabulary = 0 if drafter is None else vocabulary_of(model)
    cached = cached_tokens(cache)
    answer = Answer(
        prompt,
        options,
        drafter,
        vocabulary,
        statistics,
        cached=cached,
        earlier=earlier,
        state=state,
        learner=learner if tap is not None else None,
    )
    ahead = False
    quiet: tuple[type[Exception], ...] = ()
    try:
        while not answer.ended:
            plan, owed, start = answer.plan(len(row.pending)), len(row.pending), perf_counter()
            verified = row.verify(answer.text, plan.draft.tokens, ahead=plan.ahead)
            if told is not None and not plan.ahead and not ahead:  # those that overlap with others take less
                told(1 + owed + len(verified.draft), perf_counter() - start)
            ahead = plan.ahead
            try:
                yield from answer.emit(plan, verified)
            finally:
                row.settle(answer.taken)
    except Exception:
        quiet = (Exception,)  # the first failure is told, not what comes of it
        raise
    finally:
        with contextlib.suppress(*quiet):
            row.finish(answer.text[-1])
        answer.end()
