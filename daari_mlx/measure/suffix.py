"""Baseline: what followed the longest ending of this text, in the corpus's answers and in the text itself.

:class:`SuffixDrafter` calibrates matches by their length and lets T(m) choose how far to draft, as the graph does. It
learns as it goes: each answer that was decoded joins the corpus. The published method on the same tables:
scripts/bench/suffix_decoding.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from daari_mlx.cost.length import MAX_DRAFT, Cost, best_length
from daari_mlx.draft.drafter import Context, Draft
from daari_mlx.graph.cells import LENGTH_OF, LENGTHS
from daari_mlx.ground.types import IntArray

BREAK = -1
LONGEST = 32  # tokens of a match: longer ones say no more
FLOOR = 0.02  # a path less likely than this as a whole is not drafted further
PRIOR, MEMORY = 4.0, 0.99  # of what is learnt about matches
HELD_OUT, ANCHORS = 5, 16  # every so many-th answer, and places of it, that matches are first tried on
SHARES = (0.5, 0.75, 1.0)  # of a match's places, how many go on alike: buckets begin here


class History:
    """Texts one after the other, and where an ending was said in them."""

    def __init__(self) -> None:
        self._buffer = np.full(1024, BREAK, np.int32)
        self._size = 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Go on with the newest text."""
        need = self._size + len(tokens)
        if need > len(self._buffer):
            self._buffer = np.concatenate([self._buffer, np.full(need, BREAK, np.int32)])
        self._buffer[self._size : need] = tokens
        self._size = need

    def close(self) -> None:
        """End the newest text: no match reaches across."""
        self.extend([BREAK])

    def endings(self, context: Sequence[int], longest: int) -> Iterator[NDArray[np.intp]]:
        """The places behind each match of the last 1, 2, ... tokens of ``context``, in order, as long as there are any.

        A place behind the newest token of all is among them: nothing follows there yet.
        """
        text = self._buffer[: self._size]
        places = np.flatnonzero(text == context[-1]) + 1
        for length in range(1, min(longest, len(context)) + 1):
            if length > 1:
                before = places - length
                places = places[(before >= 0) & (text[before] == context[-length])]
            if len(places) == 0:
                return
            yield places

    def following(self, places: NDArray[np.intp]) -> tuple[IntArray, NDArray[np.intp]]:
        """The tokens that follow at places, and those of the places that are followed by any."""
        places = places[places < self._size]
        tokens = self._buffer[places]
        said = tokens != BREAK
        return tokens[said], places[said]


def commonest(tokens: IntArray) -> tuple[int, int]:
    """The commonest token and how often it came; the newest of equals, but the oldest where each came once."""
    counts = Counter(tokens.tolist())
    most = max(counts.values())
    if most == 1:
        return int(tokens[0]), 1
    return next((token, most) for token in reversed(tokens.tolist()) if counts[token] == most)


class Texts:
    """The corpus and the text at hand, kept up to date with a growing list of tokens.

    Args:
        lead: how many of a prompt's last tokens join the corpus with its answer.
    """

    def __init__(self, lead: int) -> None:
        self.corpus, self.own, self._lead = History(), History(), lead
        self._tokens: list[int] = []
        self._read = self._start = 0

    def read(self, tokens: list[int]) -> bool:
        """Take in what is new; whether it is another text than before, which then begins with a prompt."""
        other = tokens is not self._tokens or len(tokens) < self._read
        if other:
            self.corpus.extend(self._tokens[max(self._read, self._start) :])
            self.corpus.close()
            self.own, self._tokens, self._read, self._start = History(), tokens, 0, len(tokens) - self._lead
        self.own.extend(tokens[self._read :])
        self.corpus.extend(tokens[max(self._read, self._start) :])
        self._read = len(tokens)
        return other

    def learn(self, answer: Sequence[int]) -> None:
        """Add a whole answer to the corpus."""
        self.corpus.extend(answer)
        self.corpus.close()


class SuffixDrafter:
    """The longest match in the corpus or in this text, believed as far as such matches came true.

    Args:
        answers: of the corpus, each behind the token that came before it, as ``[last prompt token, *answer]``.
        prompts: the tokens before each of those; None where they are not known.
        cost: T(m)/T(1).
        ends: token ids that end an answer: nothing is drafted behind them.
    """

    layer = None

    def __init__(
        self,
        answers: Sequence[Sequence[int]],
        cost: Cost,
        ends: Collection[int] = (),
        prompts: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self.cost, self._ends = cost, frozenset(ends)
        shape = (2, LENGTHS, len(SHARES) + 1)  # corpus or this text, match's length, share of its places
        self._kept, self._judged = np.zeros(shape), np.zeros(shape)
        self._shown: tuple[int, list[int], list[tuple[int, int, int]]] = (0, [], [])
        self._texts = Texts(lead=1)
        held = range(0, len(answers), HELD_OUT) if len(answers) >= HELD_OUT else range(0)
        for number, answer in enumerate(answers):
            if number not in held:
                self._texts.learn(answer)
        for number in held:
            self._try(list(prompts[number]) if prompts else [], list(answers[number]))
        for number in held:
            self._texts.learn(answers[number])

    def draft(self, context: Context, limit: int, pending: int = 0) -> Draft:
        """See :meth:`daari_mlx.draft.drafter.Drafter.draft`."""
        if not self._texts.read(context.tokens):
            self._learn(context.tokens)
        tokens, cells, chances = self._path(context.tokens, min(limit, MAX_DRAFT))
        length = best_length(chances, self.cost.at(len(context.tokens)), pending)
        shown = max(length, 1)
        self._shown = (len(context.tokens), tokens[:shown], cells[:shown])
        return Draft(tokens[:length], chances[:length], ["suffix"] * length)

    def _path(self, said: list[int], limit: int) -> tuple[list[int], list[tuple[int, int, int]], list[float]]:
        """The likeliest path: its tokens, the cell of each, and the chance that each is right."""
        context = said[-LONGEST:]
        tokens: list[int] = []
        cells: list[tuple[int, int, int]] = []
        chances: list[float] = []
        path, places, kind, length = 1.0, np.zeros(0, np.intp), 0, 0
        histories = (self._texts.corpus, self._texts.own)
        while len(tokens) < limit and path > FLOOR:
            following, places = histories[kind].following(places)
            if len(following) == 0:
                kind, length, places = self._longest(context)
                following, places = histories[kind].following(places)
                if length == 0:
                    break
            token, count = commonest(following)
            share = sum(count / len(following) >= bound for bound in SHARES)
            cell = (kind, LENGTH_OF[length], share)
            chances.append(self._chance(cell))
            path *= chances[-1]
            tokens.append(token)
            cells.append(cell)
            if token in self._ends:
                break
            context.append(token)
            places, length = places[following == token] + 1, min(length + 1, LONGEST)
        return tokens, cells, chances

    def _longest(self, context: list[int]) -> tuple[int, int, NDArray[np.intp]]:
        """Which history has the longest match that something follows, how long it is, and the places behind it."""
        best: tuple[int, int, NDArray[np.intp]] = (0, 0, np.zeros(0, np.intp))
        for kind, history in enumerate((self._texts.corpus, self._texts.own)):
            for length, places in enumerate(history.endings(context, LONGEST), start=1):
                if length > best[1] and len(history.following(places)[0]):
                    best = kind, length, places
        return best

    def _chance(self, cell: tuple[int, int, int]) -> float:
        """Drawn towards what holds for all matches of this length, and that towards a guess."""
        kind, length, _ = cell
        guess = (length + 1) / (length + 3)
        kept, judged = self._kept[kind, length].sum(), self._judged[kind, length].sum()
        parent = (kept + PRIOR * guess) / (judged + PRIOR)
        return float((self._kept[cell] + PRIOR * parent) / (self._judged[cell] + PRIOR))

    def _learn(self, tokens: list[int]) -> None:
        start, drafted, cells = self._shown
        self._shown = (0, [], [])
        for own, token, cell in zip(tokens[start:], drafted, cells, strict=False):
            self._kept[cell] = self._kept[cell] * MEMORY + (own == token)
            self._judged[cell] = self._judged[cell] * MEMORY + 1
            if own != token:
                break

    def _try(self, prompt: list[int], answer: list[int]) -> None:
        """See how matches fare on an answer that the corpus does not know."""
        texts, self._texts = self._texts, Texts(lead=1)
        self._texts.corpus = texts.corpus
        for place in sorted({round(k) for k in np.linspace(1, len(answer), ANCHORS, endpoint=False)}):
            said = prompt + answer[:place]
            self._texts.own = History()
            self._texts.own.extend(said)
            drafted, cells, _ = self._path(said, MAX_DRAFT)
            self._shown = (len(said), drafted, cells)
            self._learn(prompt + answer)
        self._texts = texts
