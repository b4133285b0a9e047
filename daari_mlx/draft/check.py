"""What a drafter returns is looked at before the teacher sees it: a draft never makes an answer wrong, or ends it."""

from __future__ import annotations

from operator import index
from typing import Any

from daari_mlx.draft.drafter import Context, Draft, Drafter
from daari_mlx.ground.errors import DaariError


def checked(
    drafter: Drafter, context: Context, limit: int, pending: int, vocabulary: int, offered: bool = False
) -> Draft:
    """The drafter's draft, cut to ``limit`` tokens and before the first id that is none of the vocabulary's.

    Args:
        drafter: who is asked.
        context, limit, pending: see :meth:`Drafter.draft`.
        vocabulary: how many token ids there are.
        offered: ask for all that could be drafted, where the drafter can tell: a length is chosen later.

    Raises:
        DaariError: naming the drafter, where it returns something that is no draft, or changed the text it was shown.
    """
    said, newest = len(context.tokens), context.tokens[-1]
    offer = getattr(drafter, "offer", None) if offered else None
    draft = drafter.draft(context, limit, pending) if offer is None else offer(context, limit)
    if len(context.tokens) != said or context.tokens[-1] != newest:
        raise DaariError(
            f"The drafter {_name(drafter)} changed the text that it was shown: let it work on a copy of context.tokens."
        )
    try:
        tokens = [index(token) for token in draft.tokens[:limit]]
        rest = index(draft.rest)
    except (AttributeError, TypeError) as error:
        raise DaariError(
            f"The drafter {_name(drafter)} returned {_shown(draft)}, which is no draft ({error}): return a "
            "daari_mlx.draft.drafter.Draft of token ids."
        ) from error
    if rest < 0:
        raise DaariError(f"The drafter {_name(drafter)} rests for {rest} rounds: give 0 or more.")
    good = next((place for place, token in enumerate(tokens) if not 0 <= token < vocabulary), len(tokens))
    if good == len(draft.tokens) and tokens == draft.tokens:
        return draft
    draft = draft.first(good)
    draft.tokens = tokens[:good]
    return draft


def _name(drafter: Any) -> str:
    return type(drafter).__name__


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
