"""The sources of a draft: the walk, the nearest states, this text.

All of it is look-ups in lists and strings, but for finding the nearest states, once a round.
"""

from __future__ import annotations

from collections.abc import Sequence

from daari_mlx.graph.cells import DISTANCES, LENGTH_OF, LENGTHS, SHARES
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
        self._places: list[int] = []  # where each goes on that went along until the run began
        self._far, self._least = list[float](), 0.0  # how far each of them is, and the nearest of all
        self._run, self._at = "", 0  # what they all say next, or most of them; how much of it was drafted
        self._voice, self._sure, self._distance = SILENT, 0, 0

    def start(self, moment: Moment) -> int:
        """See :class:`Source`."""
        span = self._find.get(moment.last)
        if span is None or moment.state is None:
            self._places, self._voice = [], SILENT
            return SILENT
        self._places, self._far, self._distance = self._kept.nearest(span, moment.state)
        self._least = min(self._far)
        return self._look()

    def push(self, token: int, moment: Moment) -> int:
        """See :class:`Source`."""
        if token == self._voice >> CELL_BITS and self._at + 1 < len(self._run):
            self._at += 1
            self._voice = voice = ord(self._run[self._at]) << CELL_BITS | self._sure
            return voice
        if not self._places:
            return SILENT
        said, words, on, ahead = chr(token), self._words, self._at + 1, self._places
        along = [k for k, place in enumerate(ahead) if words[place + on - 1] == said]
        if len(along) < len(ahead):
            self._far = [self._far[k] for k in along]
        self._places = [ahead[k] + on for k in along]
        return self._look()

    def _look(self) -> int:
        """Begin a run: what all of them say, as far as they are one; where they are not, what most say by weight."""
        words, places, share = self._words, self._places, 1.0
        self._at = 0
        if not places:
            self._voice = SILENT
            return SILENT
        heads = [words[place] for place in places]
        if heads.count(heads[0]) == len(heads):
            ahead = [words[place : place + REACH] for place in places]
            run = _common(min(ahead), max(ahead))
        else:
            weights, mass = self._kept.weigh(self._far, self._least), dict[str, float]()
            for head, weight in zip(heads, weights, strict=True):
                mass[head] = mass.get(head, 0.0) + weight
            run = max(mass, key=mass.__getitem__)
            share = mass[run] / sum(weights)
        self._run = run
        if run[0] == BREAK_CHARACTER:
            self._voice = SILENT
        else:
            self._sure = int(share * (SHARES - 1) + 1e-6) * DISTANCES + self._distance
            self._voice = ord(run[0]) << CELL_BITS | self._sure
        return self._voice


def _common(low: str, high: str) -> str:
    """What two texts begin with alike, up to the first break but for one at their head."""
    end = low.find(BREAK_CHARACTER, 1)
    if end < 0:
        end = len(low)
    if low[:end] == high[:end]:
        return low[:end]
    return low[: next(k for k, (one, other) in enumerate(zip(low, high, strict=False)) if one != other)]


class Copy:
    """What followed the longest ending of this text earlier in it, in the prompt or in the answer."""

    name = "copy"

    def __init__(self, habits: list[int]) -> None:
        self._habit = [habit * LENGTHS for habit in habits]
        self.recall = Recall(PROMPT)
        self._place, self._length, self._voice = -1, 0, SILENT

    def start(self, moment: Moment) -> int:
        """See :class:`Source`."""
        self._place, self._length = self.recall.find(moment.said)
        return self._look(moment.node)

    def push(self, token: int, moment: Moment) -> int:
        """See :class:`Source`."""
        if token == self._voice >> CELL_BITS and self._place + 1 < len(self.recall.text):
            self._place += 1
            self._length += 1
        else:
            self._place, self._length = self.recall.find(moment.said)
        return self._look(moment.node)

    def _look(self, node: int) -> int:
        if self._place < 0 or self.recall.text[self._place] == BREAK_CHARACTER:
            self._voice = SILENT
            return SILENT
        cell = LENGTH_OF[self._length if self._length < LONGEST else LONGEST] + self._habit[node]
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
        self._own, self._earlier = Copy(graph.habit), earlier
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
