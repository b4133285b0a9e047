"""Whether two answers are the same, and whether a difference is the teacher's own tie."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import mlx.core as mx
import mlx_lm
import numpy as np

from daari_mlx.decode.begun import processors_for
from daari_mlx.ground.evaluated import evaluated
from daari_mlx.measure.records import FAILED, IDENTICAL, TIE
from daari_mlx.teacher.judge import LogitsProcessor
from daari_mlx.teacher.load import Teacher

# A forward over m rows rounds differently from one over a single row. Two of plain's log-probabilities that
# lie closer than this (in nats) cannot be told apart: two steps of the 16-bit types at logits of 16 to 32; in
# float32, what sums of some thousand products leave.
GAP_BOUND = {mx.float32: 1e-4, mx.float16: 0.03125, mx.bfloat16: 0.25}


class Verdict(NamedTuple):
    """What :func:`compare` found; see :class:`daari_mlx.measure.records.Row` for the three values."""

    verdict: str
    first_difference: int | None = None
    gap: float | None = None


def bound_of(dtype: mx.Dtype) -> float:
    """The gap, in nats, below which log-probabilities of this type tie."""
    return GAP_BOUND.get(dtype, GAP_BOUND[mx.float32])


def stream_plain(
    teacher: Teacher,
    prompt: list[int],
    max_tokens: int,
    *,
    begun: int = 0,
    logits_processors: list[LogitsProcessor] | None = None,
    **options: Any,
) -> Iterator[mlx_lm.GenerationResponse]:
    """``mlx_lm.stream_generate`` itself; ``begun`` tokens at the prompt's end are the beginning of the answer."""
    if logits_processors is not None:
        options["logits_processors"] = processors_for(logits_processors, prompt, None, begun)
    return mlx_lm.stream_generate(
        model=teacher.model, tokenizer=teacher.tokenizer, prompt=prompt, max_tokens=max_tokens, **options
    )


def compare(
    teacher: Teacher,
    prompt: list[int],
    plain: list[int],
    ours: list[int],
    max_tokens: int,
    bound: float,
    **options: Any,
) -> Verdict:
    """Our token ids against plain's.

    A tie excuses one token: plain itself then decodes what follows our token, and that is compared next.

    Args:
        prompt: token ids that both answered, greedily.
        plain, ours: the answers' token ids.
        max_tokens: what both were given; -1 for no limit.
        bound: below this gap two log-probabilities tie.
        options: what else plain was given.
    """
    excused: Verdict | None = None
    expected = plain
    while (index := first_difference(expected, ours)) is not None:
        if index >= min(len(expected), len(ours)):
            return Verdict(FAILED, index)
        gap, behind = _gaps(teacher, prompt + ours[:index], index, ours[index], options)
        if behind >= bound:
            return Verdict(FAILED, index, gap)
        excused = excused or Verdict(TIE, index, gap)
        kept, left = ours[: index + 1], max_tokens if max_tokens < 0 else max_tokens - index - 1
        ended = left == 0 or kept[-1] in teacher.tokenizer.eos_token_ids
        rest = () if ended else stream_plain(teacher, prompt + kept, left, begun=len(kept), **options)
        expected = kept + [response.token for response in rest]
    return excused or Verdict(IDENTICAL)


def first_difference(left: list[int], right: list[int]) -> int | None:
    """Where two lists first differ; the shorter one's length where it merely ends before the other."""
    if left == right:
        return None
    pairs = enumerate(zip(left, right, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(left), len(right)))


def _gaps(teacher: Teacher, prompt: list[int], begun: int, token: int, options: dict[str, Any]) -> tuple[float, float]:
    """How far plain's best token after ``prompt`` lies above its second best and above ``token``, in nats."""
    *_, response = stream_plain(teacher, prompt, 1, begun=begun, **options)
    logprobs = evaluated(response.logprobs.astype(mx.float32))
    second, best = np.partition(logprobs, -2)[-2:]
    return float(best - second), float(best - logprobs[token])
