"""Replay: any drafter over recorded streams, without the teacher, in seconds, for any T(m).

The answer is known, so what the teacher would have accepted is too: rounds come out as in a live run, token for token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

from daari_mlx.cost.length import Cost
from daari_mlx.decode.answer import MAX_STATES
from daari_mlx.decode.limits import NO_LIMIT, Options
from daari_mlx.draft.drafter import Context, Draft, Drafter
from daari_mlx.ground.accept import TEACHER, accept_block, count_accepted
from daari_mlx.ground.errors import DaariError
from daari_mlx.measure.streams import Stream, Streams
from daari_mlx.teacher.tap import FINAL

SAME = 1e-9  # projected times differ by no more than rounding

Round = tuple[int, int, int]  # drafted, accepted, emitted tokens of one forward
DrafterOf = Callable[[Stream], Drafter]  # called once a stream, in their order; may give the same one again


@dataclass(frozen=True)
class Answer:
    """One answer, replayed.

    Attributes:
        prompt_tokens: tokens before it.
        rounds: one a forward after prefill.
        sources: emitted tokens by the source that drafted them.
        draft_seconds: time spent in the drafter on this machine.
    """

    prompt_tokens: int
    rounds: tuple[Round, ...]
    sources: dict[str, int]
    draft_seconds: float

    @property
    def tokens(self) -> int:
        """Emitted tokens, the end-of-sequence token included."""
        return sum(emitted for _, _, emitted in self.rounds)

    def time(self, cost: Cost) -> float:
        """What the forwards would take, in units of T(1); drafting itself is not counted."""
        total, context = 0.0, self.prompt_tokens
        for drafted, _, emitted in self.rounds:
            total += cost.at(context)(1 + drafted)
            context += emitted
        return total

    def speedup(self, cost: Cost) -> float:
        """Tokens in units of plain decoding's time for one, over :meth:`time`."""
        return self.tokens / self.time(cost)


@dataclass(frozen=True)
class Replayed:
    """What a drafter did on some streams; every figure that is shown is defined here."""

    answers: tuple[Answer, ...]

    @property
    def tokens(self) -> int:
        """Emitted tokens."""
        return sum(answer.tokens for answer in self.answers)

    @property
    def forwards(self) -> int:
        """Teacher forwards after prefill."""
        return sum(len(answer.rounds) for answer in self.answers)

    @property
    def tokens_per_forward(self) -> float:
        """A: every forward after prefill counts."""
        return self.tokens / self.forwards

    def speedup(self, cost: Cost) -> float:
        """All tokens over all projected time: the mean over tokens."""
        return self.tokens / sum(answer.time(cost) for answer in self.answers)

    def as_dict(self, cost: Cost) -> dict[str, Any]:
        """The figures under a T(m), ready for JSON."""
        each = [answer.speedup(cost) for answer in self.answers]
        drafted = sum(r[0] for a in self.answers for r in a.rounds)
        accepted = sum(r[1] for a in self.answers for r in a.rounds)
        sources: Counter[str] = Counter()
        for answer in self.answers:
            sources.update(answer.sources)
        return {
            "n": len(each),
            "tokens": self.tokens,
            "forwards": self.forwards,
            "tokens_per_forward": self.tokens_per_forward,
            "forwards_per_answer": self.forwards / len(each),
            "speedup": self.speedup(cost),
            "median_speedup": median(each),
            "least_speedup": min(each),
            "losing": sum(s < 1 - SAME for s in each),
            "drafted": drafted,
            "accepted": accepted,
            "acceptance_rate": accepted / max(drafted, 1),
            "draft_seconds": sum(answer.draft_seconds for answer in self.answers),
            "sources": dict(sources),
        }


def replay(
    streams: Streams, drafter_of: DrafterOf, *, most: int = NO_LIMIT, told: Callable[[], None] = lambda: None
) -> Replayed:
    """Run a drafter over every stream, as :func:`daari_mlx.decode.loop.generate_step` would.

    Args:
        streams: what the teacher said.
        drafter_of: who drafts on a stream; it may look at nothing of the stream that has not been said.
        most: the most tokens that may be drafted, e.g. what a T(m) was measured for.
        told: called after each stream.

    Raises:
        DaariError: the drafter reads a layer that was not recorded.
    """
    options = Options(max_tokens=streams.max_tokens, context_length=streams.context_length)
    answers = []
    for stream in streams.items:
        answers.append(_answer(stream, drafter_of(stream), options, most))
        told()
    return Replayed(tuple(answers))


def _answer(stream: Stream, drafter: Drafter, options: Options, most: int) -> Answer:
    layer = getattr(drafter, "layer", FINAL)
    if layer is not None and layer not in stream.states:
        raise DaariError(f"The drafter reads layer {layer!r}, these streams have {list(stream.states)}: record it too.")
    states = None if layer is None else stream.states[layer]
    context = Context(stream.prompt, None if states is None or stream.start == 1 else states[0])
    answer, emitted, seconds = stream.answer, 0, 0.0
    rounds: list[Round] = []
    sources: Counter[str] = Counter()

    def go_on(tokens: Sequence[int], newest: int) -> None:
        nonlocal emitted
        context.tokens.extend(tokens)
        emitted += len(tokens)
        if states is not None:
            context.states = states[emitted + 1 - newest : emitted + 1]
            context.state = context.states[-1]

    while emitted < len(answer):
        cached = stream.start + emitted - 1
        limit, draft, rest = min(options.draft_limit(emitted, cached), most), Draft(), 1
        if limit > 0:
            start = perf_counter()
            draft = drafter.draft(context, limit, 0)
            seconds += perf_counter() - start
            rest = draft.rest + (not draft.tokens)
        if draft.tokens:
            verdicts = answer[emitted : emitted + len(draft.tokens) + 1]
            tokens, accepted = accept_block(draft.tokens, verdicts), count_accepted(draft.tokens, verdicts)
            sources.update(draft.source_of(row) for row in range(accepted))
            sources[TEACHER] += len(tokens) - accepted
            rounds.append((len(draft.tokens), accepted, len(tokens)))
            go_on(tokens, len(tokens))
        if rest and emitted < len(answer):
            rest = min(rest, options.row_limit(emitted, stream.start + emitted - 1), len(answer) - emitted)
            sources[TEACHER] += rest
            rounds += [(0, 0, 1)] * rest
            go_on(answer[emitted : emitted + rest], min(rest, MAX_STATES))
    return Answer(stream.start, tuple(rounds), dict(sources), seconds)
