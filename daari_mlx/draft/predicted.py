"""A drafter that is shown a text which the answer will probably repeat, as if it had been said before."""

from __future__ import annotations

from typing import Any

from daari_mlx.draft.drafter import Context, Draft, Drafter

LEAD = 8  # last tokens of the prompt that the predicted text follows, so that it is found from the first token on


class PredictedDrafter:
    """Another drafter over a longer text: the prediction, then prompt and answer.

    Args:
        inner: a drafter that copies from the text, for this answer alone.
        prediction: token ids.
    """

    def __init__(self, inner: Drafter, prediction: list[int]) -> None:
        self._inner: Any = inner
        self.layer = getattr(inner, "layer", None)
        self._prediction = prediction
        self._of: list[int] | None = None  # the text that `_seen` was made of
        self._seen: list[int] = []
        self._read = 0
        self._offered = Draft()

    def draft(self, context: Context, limit: int, pending: int = 0) -> Draft:
        """See :meth:`daari_mlx.draft.drafter.Drafter.draft`."""
        return self._inner.draft(self._longer(context), limit, pending)

    def offer(self, context: Context, limit: int) -> Draft:
        """See :meth:`daari_mlx.draft.drafter.GraphDrafter.offer`."""
        offer = getattr(self._inner, "offer", None)
        longer = self._longer(context)
        self._offered = self._inner.draft(longer, limit, 0) if offer is None else offer(longer, limit)
        return self._offered

    def take(self, length: int) -> Draft:
        """See :meth:`daari_mlx.draft.drafter.GraphDrafter.take`."""
        take = getattr(self._inner, "take", None)
        return self._offered.first(length) if take is None else take(length)

    def _longer(self, context: Context) -> Context:
        tokens = context.tokens
        if tokens is not self._of or len(tokens) < self._read:
            self._of, self._seen, self._read = tokens, [*tokens[-LEAD:], *self._prediction], 0
        self._seen += tokens[self._read :]
        self._read = len(tokens)
        return Context(self._seen, context.state, context.states)
