"""Stage 6, the sources of a draft: walk, anchored paths, nearest states, this text, earlier texts.

All of it is look-ups in lists and strings, but for finding the nearest states, once a round.
"""

from __future__ import annotations

from collections.abc import Sequence

from daari_mlx.graph.cells import DISTANCES, LENGTH_OF, LENGTHS, SHARES
from daari_mlx.graph.codepoints import BREAK_CHARACTER, as_text
from daari_mlx.graph.graph import Graph
from daari_mlx.graph.paths import END, REACH, Paths
from daari_mlx.graph.recall import Recall
from daari_mlx.graph.source import LOOK_BACK, NAMES, NO_NODE, SILENT, Moment, Source
from daari_mlx.ground.types import FloatArray, IntArray

PROMPT, SESSION = 65536, 16384  # tokens of this text, and of earlier ones, that are remembered
LONGEST = len(LENGTH_OF) - 1


class Edge:
    """The walk: from the node where the draft stands, the token of its top edge."""

    name = "edge"

    def __init__(self, graph: Graph) -> None:
        self._step = graph.step
        self._tokens, self._kinds, self._targets = graph.walk
        self.token, self.cell, self.node = SILENT, 0, NO_NODE

    def start(self, moment: Moment) -> None:
        moment.node = self._stand(self._step(moment.anchor, moment.last))

    def push(self, token: int, moment: Moment) -> None:
        node = self.node
        moment.node = self._stand(self._targets[node] if token == self.token else self._step(node, token))

    def _stand(self, node: int) -> int:
        self.node = node
        if node == NO_NODE:
            self.token = SILENT
        else:
            self.token, self.cell = self._tokens[node], self._kinds[node]
        return node


class Path:
    """What the teacher went on to say from the anchor, as long as the draft keeps to it."""

    name = "path"

    def __init__(self, paths: Paths, text: IntArray, vocab_size: int) -> None:
        self._find, self._places, self._steps = paths.find, paths.places, paths.steps
        self._tokens = text.data  # single items without a copy, as fast as a list's
        self._vocab_size = vocab_size
        self.token, self.cell = SILENT, 0
        self._place, self._step, self._kinds = 0, 0, b""

    def start(self, moment: Moment) -> None:
        row = self._find.get(moment.anchor * self._vocab_size + moment.last)
        if row is None:
            self.token = SILENT
            return
        self._place, self._step, self._kinds = self._places[row], 0, self._steps[row]
        self._look()

    def push(self, token: int, moment: Moment) -> None:
        if token != self.token:
            self.token = SILENT
        elif self.token != SILENT:
            self._step += 1
            self._look()

    def _look(self) -> None:
        step = self._step
        if step == REACH or self._kinds[step] == END:
            self.token = SILENT
        else:
            self.token, self.cell = self._tokens[self._place + 1 + step], self._kinds[step]


class Near:
    """What the teacher went on to say from the states nearest to its own, of those that chose the same token."""

    name = "near"

    def __init__(self, graph: Graph) -> None:
        self._kept, self._find, self._text = graph.exemplars, graph.exemplars_of, graph.text.data
        self.token, self.cell = SILENT, 0
        self._places: list[int] = []  # of what comes next, by each that went along so far
        self._weights: list[float] = []
        self._united, self._distance = False, 0

    def start(self, moment: Moment) -> None:
        span = self._find.get(moment.last)
        if span is None or moment.state is None:
            self.token, self._places = SILENT, []
            return
        places, self._weights, self._distance = self._kept.nearest(*span, moment.state)
        self._places = [place + 1 for place in places]
        self._look()

    def push(self, token: int, moment: Moment) -> None:
        if token == self.token and self._united:
            self._places = [place + 1 for place in self._places]
        else:
            text = self._text
            along = [k for k, place in enumerate(self._places) if text[place] == token]
            self._places = [self._places[k] + 1 for k in along]
            self._weights = [self._weights[k] for k in along]
        self._look()

    def _look(self) -> None:
        """What most of them say next, by weight."""
        text, places = self._text, self._places
        if not places:
            self.token = SILENT
            return
        said = [text[place] for place in places]
        self._united = said.count(said[0]) == len(said)
        if self._united:
            self.token, share = said[0], 1.0
        else:
            mass: dict[int, float] = {}
            for token, weight in zip(said, self._weights, strict=True):
                mass[token] = mass.get(token, 0.0) + weight
            self.token = max(mass, key=mass.__getitem__)
            share = mass[self.token] / sum(self._weights)
        self.cell = int(share * (SHARES - 1) + 1e-6) * DISTANCES + self._distance


class Copy:
    """What followed the longest ending of this text in some text at hand: this prompt and answer, or earlier ones."""

    def __init__(self, name: str, limit: int, habits: list[int]) -> None:
        self.name = name
        self._habit = [habit * LENGTHS for habit in habits]
        self.recall = Recall(limit)
        self.token, self.cell = SILENT, 0
        self._place, self._length = -1, 0

    def start(self, moment: Moment) -> None:
        self._look(moment.node, *self.recall.find(moment.said))

    def push(self, token: int, moment: Moment) -> None:
        if token == self.token and self._look(moment.node, self._place + 1, self._length + 1):
            return
        self.start(moment)

    def _look(self, node: int, place: int, length: int) -> bool:
        """Stand at a place of the text; whether anything is said there."""
        text = self.recall.text
        if not 0 <= place < len(text) or (said := text[place]) == BREAK_CHARACTER:
            self.token = SILENT
            return False
        self._place, self._length = place, length
        self.token, self.cell = ord(said), LENGTH_OF[length if length < LONGEST else LONGEST] + self._habit[node]
        return True


class Sources:
    """The sources of one graph, over one conversation.

    Args:
        graph: the compiled tables.
        names: the sources that are asked, in this order.
    """

    def __init__(self, graph: Graph, names: Sequence[str] = NAMES) -> None:
        self._own, self._earlier = Copy("copy", PROMPT, graph.habit), Copy("session", SESSION, [0] * (graph.size + 1))
        made: dict[str, Source] = {
            "path": Path(graph.paths, graph.text, graph.vocab_size),
            "edge": Edge(graph),
            "near": Near(graph),
            "copy": self._own,
            "session": self._earlier,
        }
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
        for source in self.all:
            source.start(moment)
        return moment

    def push(self, token: int, moment: Moment) -> None:
        """Go on behind ``token``."""
        moment.said += chr(token)
        for source in self.all:
            source.push(token, moment)

    def open(self, tokens: list[int]) -> None:
        """Begin another text; the last one becomes an earlier one."""
        own = self._own.recall
        if own.text:
            self._earlier.recall.extend(own.text + BREAK_CHARACTER)
        self._own.recall, self._tokens, self._read = Recall(PROMPT), tokens, 0
