"""A text that grows, and where every pair of its tokens was said before: what a copy is looked up in."""

from __future__ import annotations

TRIED = 4  # earlier places of a pair that are compared, newest first
LENGTHS = (4, 8, 16)  # how far back a match is followed


class Recall:
    """The newest tokens of a text as code points.

    Args:
        limit: how many tokens are remembered at least; up to twice as many are held.
    """

    def __init__(self, limit: int) -> None:
        self.text = ""
        self._limit = limit
        self._newest: dict[str, int] = {}  # a pair of tokens -> where the token behind its newest place stands
        self._earlier: list[int] = []  # the same for the place before that; -1 without any
        self._behind: dict[str, int] = {}  # a token -> where the one behind its newest place stands
        self._runs: set[str] = set()  # every run of ``LENGTHS[0]`` tokens that something followed

    def extend(self, more: str) -> None:
        """Add ``more`` behind the text."""
        known = len(self.text)
        text = self.text + more
        if len(text) > 2 * self._limit:
            text, known = text[-self._limit :], 0
            self._newest, self._earlier, self._behind, self._runs = {}, [], {}, set()
        self.text = text
        newest, earlier, behind, runs = self._newest, self._earlier, self._behind, self._runs
        for place in range(known, len(text)):
            if place:
                behind[text[place - 1]] = place
            if place < 2:
                earlier.append(-1)
                continue
            pair = text[place - 2 : place]
            earlier.append(newest.get(pair, -1))
            newest[pair] = place
            runs.add(text[max(0, place - LENGTHS[0]) : place])

    def find(self, said: str) -> tuple[int, int]:
        """Where the longest ending of ``said`` went on, of the newest places that its last two tokens stood at.

        Returns:
            The position of the token behind it, and a length of 1, 2 or one of ``LENGTHS`` that the match has at least;
            ``(-1, 0)`` where the last token was never followed by anything.
        """
        place = self._newest.get(said[-2:], -1)
        if place < 0:
            place = self._behind.get(said[-1:], -1)
            return place, int(place >= 0)
        found, best, least = place, 2, said[-LENGTHS[0] :]
        if least not in self._runs:
            return found, best
        text, earlier = self.text, self._earlier
        for _ in range(TRIED):
            if place >= LENGTHS[0] and text.startswith(least, place - LENGTHS[0]):
                length = _alike(text, place, said)
                if length > best:
                    found, best = place, length
                    if length == LENGTHS[-1]:
                        break
            place = earlier[place]
            if place < 0:
                break
        return found, best


def _alike(text: str, place: int, said: str) -> int:
    """The longest of ``LENGTHS`` over which the ending of ``said`` stands before ``place`` too; else 2."""
    length = 2
    for longer in LENGTHS:
        if place < longer or text[place - longer : place] != said[-longer:]:
            break
        length = longer
    return length
