"""The sources of a draft: the walk, the nearest states, this text.

All of it is look-ups in lists and strings, but for finding the nearest states, once a round.
"""

from __future__ import annotations

from collections.abc import Sequence

from daari_mlx.graph.cells import DISTANCES, LENGTH_OF, SHARES
from daari_mlx.graph.codepoints import BREAK_CHARACTER, as_text
from daari_mlx.graph.exemplars import REACH
from daari_mlx.graph.graph import Graph
from daari_mlx.graph.recall import Recall
from daari_mlx.graph.source import CELL_BITS, LOOK_BACK, NAMES, NO_NODE, SILENT, Moment, Source
from daari_mlx.ground.types import FloatArray

PROMPT = 65536  # tokens of a text that are remembered at least
LONGEST = len(LENGTH_OF) - 1


class Edge:
    """The walk: from the node where the draft stands, the token of its top edge."""

    name = "edge"

    def __init__(self, graph: Graph) -> None:
        self._step = graph.step
        self._voices, self._targets = graph.walk
        self.node, self._voice = NO_NODE, SILENT

    def start(self, moment: Moment) -> int:
        """See :class:`Source`."""
        return self._stand(self._step(moment.anchor, moment.last), moment)

    def push(self, token: int, moment: Moment) -> int:
        """See :class:`Source`."""
        on_edge = token == self._voice >> CELL_BITS
        return self._stand(self._targets[self.node] if on_edge else self._step(self.node, token), moment)

    def _stand(self, node: int, moment: Moment) -> int:
        self.node = moment.node = node
        self._voice = voice = self._voices[node]
        return voice


class Near:
    """What the teacher went on to say from the states nearest to its own, of those that chose the same token."""

    name = "near"

    def __init__(self, graph: Graph) -> None:
        self._kept, self._find, self._words = graph.exemplars, graph.exemplars_of, graph.words
        self._places, self._far = list[int](), list[float]()  # of the nearest: where each goes on, and how far it is
        self._weights: list[float] | None = None  # what each counts, once that is asked for
        self._texts: list[str] = []  # what each says next, of which ``_at`` tokens were drafted
        self._along: list[int] = []  # those that went along so far
        self._low = self._high = ""  # the least and the greatest of their texts: where these agree, all do
        self._at, self._torn, self._voice = 0, False, SILENT
        self._distance = self._agreed = 0  # the bucket of the nearest one's, and the cell where all agree

    def start(self, moment: Moment) -> int:
        """See :class:`Source`."""
        span = self._find.get(moment.last)
        if span is None or moment.state is None:
            self._along, self._voice = [], SILENT
            return SILENT
        self._places, self._far, self._distance = self._kept.nearest(span, moment.state)
        self._agreed = (SHARES - 1) * DISTANCES + self._distance
        self._weights, self._along = None, list(range(len(self._places)))
        self._read(0)
        return self._say()

    def push(self, token: int, moment: Moment) -> int:
        """See :class:`Source`."""
        if self._torn or token != self._voice >> CELL_BITS:
            said, at, texts = chr(token), self._at, self._texts
            self._along = [k for k in self._along if texts[k][at] == said]
            if not self._along:
                self._voice = SILENT
                return SILENT
            some = [texts[k] for k in self._along]
            self._low, self._high = min(some), max(some)
        self._at += 1
        if self._at == REACH:
            self._read(REACH)
        return self._say()

    def _read(self, further: int) -> None:
        """What the nearest say so many tokens behind where they were read before."""
        words = self._words
        self._places = places = [place + further for place in self._places] if further else self._places
        self._texts = texts = [words[place : place + REACH] for place in places]
        some = texts if len(self._along) == len(texts) else [texts[k] for k in self._along]
        self._low, self._high, self._at = min(some), max(some), 0

    def _say(self) -> int:
        """What all say that went along; where they are torn, what most say by weight."""
        said, cell = self._low[self._at], self._agreed
        self._torn = said != self._high[self._at]
        if self._torn:
            said, share = self._mostly()
            cell = int(share * (SHARES - 1) + 1e-6) * DISTANCES + self._distance
        self._voice = voice = SILENT if said == BREAK_CHARACTER else ord(said) << CELL_BITS | cell
        return voice

    def _mostly(self) -> tuple[str, float]:
        """The token of the greatest weight, and its share of the weight."""
        if self._weights is None:
            self._weights = self._kept.weigh(self._far)
        texts, at, weights, mass, total = self._texts, self._at, self._weights, dict[str, float](), 0.0
        for k in self._along:
            said, weight = texts[k][at], weights[k]
            mass[said] = mass.get(said, 0.0) + weight
            total += weight
        most = max(mass, key=mass.__getitem__)
        return most, mass[most] / total


class Copy:
    """What followed the longest ending of this text earlier in it, in the prompt or in the answer."""

    name = "copy"

    def __init__(self) -> None:
        self.recall = Recall(PROMPT)
        self._place, self._length, self._voice = -1, 0, SILENT

    def start(self, moment: Moment) -> int:
        """See :class:`Source`."""
        self._place, self._length = self.recall.find(moment.said)
        return self._look()

    def push(self, token: int, moment: Moment) -> int:
        """See :class:`Source`."""
        if token == self._voice >> CELL_BITS and self._place + 1 < len(self.recall.text):
            self._place += 1
            self._length += 1
        else:
            self._place, self._length = self.recall.find(moment.said)
        return self._look()

    def _look(self) -> int:
        if self._place < 0 or self.recall.text[self._place] == BREAK_CHARACTER:
            self._voice = SILENT
            return SILENT
        cell = LENGTH_OF[self._length if self._length < LONGEST else LONGEST]
        self._voice = voice = ord(self.recall.text[self._place]) << CELL_BITS | cell
        return voice


class Sources:
    """The sources of one graph, over one text at a time.

    Args:
        graph: the compiled tables.
        names: the sources that are asked, in this order.
        earlier: answers, as code points with a break behind each, that every text is taken to stand behind.
    """

    def __init__(self, graph: Graph, names: Sequence[str] = NAMES, earlier: str = "") -> None:
        self._own, self._earlier = Copy(), earlier
        made: dict[str, Source] = {"edge": Edge(graph), "near": Near(graph), "copy": self._own}
        self.all = [made[name] for name in names]
        self._tokens: list[int] = []
        self._read = 0

    def start(
        self, tokens: list[int], anchor: int, until: int | None = None, state: FloatArray | None = None
    ) -> Moment:
        """Look up the first token of a draft.

        Args:
            tokens: prompt and answer so far. Another list, or one that was longer before, is another text.
            anchor: the node of the state from which the last of them was chosen.
            until: how many of the tokens have been said; None for all.
            state: that state, reduced, ``(D,)`` float32; None where it is not known.
        """
        said = len(tokens) if until is None else until
        if tokens is not self._tokens or said < self._read:
            self.open(tokens)
        own = self._own.recall
        own.extend(as_text(tokens[self._read : said]))
        self._read = said
        moment = Moment(anchor, tokens[said - 1], own.text[-LOOK_BACK:], state)
        moment.voices = [source.start(moment) for source in self.all]
        return moment

    def push(self, token: int, moment: Moment) -> None:
        """Go on behind ``token``."""
        moment.said += chr(token)
        moment.voices = [source.push(token, moment) for source in self.all]

    def open(self, tokens: list[int]) -> None:
        """Begin another text."""
        self._own.recall, self._tokens, self._read = Recall(PROMPT), tokens, 0
        self._own.recall.extend(self._earlier)
