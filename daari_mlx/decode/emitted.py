"""What the loop hands out: a token of the answer, and the round that it came in."""

from __future__ import annotations

from dataclasses import dataclass, field

import mlx.core as mx

from daari_mlx.draft.drafter import Draft

NOTHING = Draft()  # of rounds for which no drafter was asked; one for all of them: it costs nothing, and is not changed


@dataclass(slots=True)
class Round:
    """One draft and one teacher forward; all tokens of a round share it.

    Attributes:
        number: teacher forwards after prefill so far, this one included.
        tokens: what the teacher said: the accepted draft tokens, then the bonus token. The answer may end, or its
            reader stop, before the last of them: only tokens that come out are emitted.
        draft: what the drafter proposed; empty where it proposed nothing or was not asked.
        drafted: how many of its tokens the forward carried: fewer than proposed where a processor forbade one.
        accepted: how many of those the teacher agreed with, from the first on.
    """

    number: int
    tokens: list[int]
    draft: Draft = field(default_factory=lambda: NOTHING)
    drafted: int = 0
    accepted: int = 0


@dataclass(slots=True)
class Emitted:
    """One token of the answer.

    Attributes:
        token: its id.
        logprobs: ``(V,)`` log-probabilities it was chosen from.
        source: which source drafted it; None for the teacher's own bonus token.
        round: the round it came in.
    """

    token: int
    logprobs: mx.array
    source: str | None
    round: Round
