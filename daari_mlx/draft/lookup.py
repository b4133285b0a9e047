"""Prompt lookup: where the newest tokens stood before in this text, what followed them there is drafted."""

from __future__ import annotations

from daari_mlx.cost.length import MAX_DRAFT, CostAt, best_length
from daari_mlx.draft.drafter import Context, Draft
from daari_mlx.ground.given import check_whole

SHORTEST, LONGEST = 2, 8  # tokens of a match: shorter ones say nothing, longer ones say no more
PRIOR, MEMORY = 4.0, 0.97  # of what is learnt about matches of each length
SOURCE = "prompt"


class LookupDrafter:
    """Copies from prompt and answer. It looks at no state and no model; an index grows with the text.

    Args:
        num_draft_tokens: draft exactly this many tokens where so many follow; None lets ``cost`` decide.
        cost: T(m)/T(1) of the teacher on this machine; needed when ``num_draft_tokens`` is None.
    """

    layer = None

    def __init__(self, *, num_draft_tokens: int | None = None, cost: CostAt | None = None) -> None:
        if num_draft_tokens is None and cost is None:
            raise ValueError("LookupDrafter needs num_draft_tokens or a cost curve to choose a length from.")
        if num_draft_tokens is not None:
            check_whole("num_draft_tokens", num_draft_tokens, 1)
        self.num_draft_tokens, self.cost = num_draft_tokens, cost
        self._kept = [PRIOR * length / (length + 2) for length in range(LONGEST + 1)]
        self._judged = [PRIOR] * (LONGEST + 1)
        self._new_text([])

    def _new_text(self, text: list[int]) -> None:
        self._text = text
        self._indexed = 0  # of how many leading tokens all n-grams that end before them are in the index
        self._after: dict[tuple[int, ...], int] = {}  # n-gram -> where it was last followed by something
        self._shown: tuple[int, list[int], int] = (0, [], 0)  # start, tokens and match of the newest draft

    def draft(self, context: Context, limit: int, pending: int = 0) -> Draft:
        """See :meth:`daari_mlx.draft.drafter.Drafter.draft`; ``pending`` rows count in the choice of a length."""
        text = context.tokens
        if text is not self._text or len(text) < self._indexed:
            self._new_text(text)
        self._learn()
        self._index()
        place, match = self._find()
        if match == 0:
            return Draft()
        most = min(limit, MAX_DRAFT if self.num_draft_tokens is None else self.num_draft_tokens)
        tokens = self._copy(place, most)
        chances = [self._kept[m] / self._judged[m] for m in (min(match + k, LONGEST) for k in range(len(tokens)))]
        length = len(tokens)
        if self.num_draft_tokens is None and self.cost is not None:
            length = best_length(chances, self.cost.at(len(text)), pending)
        self._shown = (len(text), tokens[: max(length, 1)], match)
        return Draft(tokens[:length], chances[:length], [SOURCE] * length)

    def _index(self) -> None:
        """Take in every n-gram that something follows by now."""
        for end in range(max(self._indexed, SHORTEST), len(self._text)):
            for length in range(SHORTEST, min(LONGEST, end) + 1):
                self._after[tuple(self._text[end - length : end])] = end
        self._indexed = len(self._text)

    def _find(self) -> tuple[int, int]:
        """Where what follows the longest match begins, and the match's length; 0 for none."""
        for length in range(min(LONGEST, len(self._text) - 1), SHORTEST - 1, -1):
            place = self._after.get(tuple(self._text[-length:]))
            if place is not None:
                return place, length
        return 0, 0

    def _copy(self, place: int, most: int) -> list[int]:
        """``most`` tokens from ``place`` on; behind the end of the text they repeat what was copied."""
        tokens = self._text[place : place + most]
        while tokens and len(tokens) < most:
            tokens.append(tokens[place + len(tokens) - len(self._text)])
        return tokens

    def _learn(self) -> None:
        start, tokens, match = self._shown
        self._shown = (0, [], 0)
        for number, (own, drafted) in enumerate(zip(self._text[start:], tokens, strict=False)):
            length = min(match + number, LONGEST)
            self._kept[length] = self._kept[length] * MEMORY + (own == drafted)
            self._judged[length] = self._judged[length] * MEMORY + 1
            if own != drafted:
                break
