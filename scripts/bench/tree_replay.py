"""What a tree instead of a path would add, by replay: two tokens where a path is unsure, and a published tree."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import exp
from operator import itemgetter

from daari_mlx.cost.curves import Curve
from daari_mlx.decode.limits import Options
from daari_mlx.draft.drafter import Context
from daari_mlx.graph.arbiter import FLOOR
from daari_mlx.graph.graph import Graph
from daari_mlx.graph.sources import Sources
from daari_mlx.ground.types import FloatArray
from daari_mlx.measure.baselines import RecycledTokens, RecyclingDrafter, StepChances
from daari_mlx.measure.streams import Stream, Streams

# How many children each node of Token Recycling's published static tree has, by the ranks that lead to it.
STATIC = {
    (): 8,
    (0,): 8, (1,): 4, (2,): 3, (3,): 2, (4,): 1, (5,): 1, (6,): 1, (7,): 1,
    (0, 0): 8, (0, 1): 3, (0, 2): 2, (0, 3): 1, (0, 4): 1, (0, 5): 1, (0, 6): 1, (0, 7): 1,
    (1, 0): 2, (1, 1): 1, (2, 0): 1, (3, 0): 1, (4, 0): 1, (5, 0): 1,
    (0, 0, 0): 5, (0, 0, 1): 2, (0, 0, 2): 1, (0, 0, 3): 1, (0, 0, 4): 1, (0, 1, 0): 1, (0, 2, 0): 1,
    (1, 0, 0): 1, (2, 0, 0): 1, (3, 0, 0): 1,
    (0, 0, 0, 0): 3, (0, 0, 0, 1): 1, (0, 0, 0, 2): 1, (0, 0, 1, 0): 1, (0, 1, 0, 0): 1, (1, 0, 0, 0): 1,
    (0, 0, 0, 0, 0): 2, (0, 0, 0, 1, 0): 1,
}  # fmt: skip
STATIC_ROWS = 1 + sum(STATIC.values())


@dataclass
class Totals:
    """Tokens, forwards, rows of those, and projected time."""

    tokens: int = 0
    forwards: int = 0
    rows: int = 0
    time: float = 0.0

    def add(self, emitted: int, rows: int, time: float) -> None:
        """Count one forward."""
        self.tokens += emitted
        self.forwards += 1
        self.rows += rows
        self.time += time

    def as_dict(self) -> dict[str, float]:
        """Ready for JSON."""
        return {
            "tokens": self.tokens,
            "forwards": self.forwards,
            "tokens_per_forward": self.tokens / self.forwards,
            "rows_per_forward": self.rows / self.forwards,
            "speedup": self.tokens / self.time,
        }


@dataclass(frozen=True)
class Step:
    """One token of a path: its chance, and the runner-up with its own."""

    token: int
    chance: float
    second: int
    second_chance: float


class Branching:
    """Drafts a path and, at its ``branches`` most doubtful tokens, what would follow the runner-up.

    Args:
        graph: who names the tokens.
        branches: how many runners-up are followed; 0 for the path alone.
        ends: token ids that end an answer.
    """

    def __init__(self, graph: Graph, branches: int, ends: Collection[int]) -> None:
        self.graph, self.branches, self.ends = graph, branches, frozenset(ends)
        self.sources = Sources(graph, graph.arbiter.names)

    def tree(
        self, tokens: list[int], anchor: tuple[int, FloatArray], limit: int
    ) -> list[tuple[float, tuple[int, ...]]]:
        """Nodes as (chance that the path up to it is right, the tokens of that path), likeliest first."""
        main = self._follow(tokens, anchor, [], limit)
        nodes, reached, ways = [], 1.0, []
        for place, step in enumerate(main):
            if step.second >= 0:
                ways.append((reached * step.second_chance, place))
            reached *= step.chance
            nodes.append((reached, tuple(s.token for s in main[: place + 1])))
        for chance, place in sorted(ways, reverse=True)[: self.branches]:
            prefix = [*(s.token for s in main[:place]), main[place].second]
            nodes.append((chance, tuple(prefix)))
            if prefix[-1] in self.ends:
                continue
            for step in self._follow(tokens, anchor, prefix, limit - len(prefix), chance):
                chance *= step.chance
                prefix.append(step.token)
                nodes.append((chance, tuple(prefix)))
        return sorted(nodes, key=lambda node: -node[0])  # stable: no node comes before its parent

    def _follow(
        self, tokens: list[int], anchor: tuple[int, FloatArray], prefix: list[int], limit: int, reached: float = 1.0
    ) -> list[Step]:
        moment = self.sources.start(tokens, anchor[0], state=anchor[1])
        for token in prefix:
            self.sources.push(token, moment)
        arbiter, steps = self.graph.arbiter, []
        while len(steps) < limit and reached > FLOOR:
            named = arbiter.weigh(tuple(moment.voices))
            if not named:
                break
            (best, odds, _), *others = sorted(named, key=itemgetter(1), reverse=True)
            chance = _chance(odds)
            second = others[0][0] if others else -1
            second_chance = min(_chance(others[0][1]), 1 - chance) if others else 0.0
            steps.append(Step(best, chance, second, second_chance))
            reached *= chance
            if best in self.ends:
                break
            self.sources.push(best, moment)
        return steps


def _chance(odds: float) -> float:
    return 1 / (1 + exp(-min(max(odds, -12.0), 12.0)))


def replay_branching(streams: Streams, graph: Graph, curve: Curve, branches: int) -> Totals:
    """Trees of the size with the most expected tokens per second; what was promised is not corrected on the way."""
    totals, options = Totals(), Options(max_tokens=streams.max_tokens, context_length=streams.context_length)
    for stream in streams.items:
        drafter = Branching(graph, branches, streams.ends)
        anchors = [graph.nodes.anchor(state) for state in stream.states[graph.layer]]
        tokens, answer, emitted = stream.prompt, stream.answer, 0
        while emitted < len(answer):
            limit = min(options.draft_limit(emitted, stream.start + emitted - 1), curve.most)
            nodes = drafter.tree(tokens, anchors[emitted], limit) if limit else []
            size = _best_size([chance for chance, _ in nodes], curve)
            drafted = {path for _, path in nodes[:size]}
            right = 0
            while emitted + right < len(answer) and tuple(answer[emitted : emitted + right + 1]) in drafted:
                right += 1
            new = min(right + 1, len(answer) - emitted)
            totals.add(new, 1 + size, curve.cost(1 + size))
            tokens.extend(answer[emitted : emitted + new])
            emitted += new
    return totals


def _best_size(chances: list[float], curve: Curve) -> int:
    best, expected, best_rate = 0, 1.0, 1.0
    for size, chance in enumerate(chances[: curve.most], start=1):
        expected += chance
        if expected / curve.cost(1 + size) > best_rate:
            best, best_rate = size, expected / curve.cost(1 + size)
    return best


def replay_static(streams: Streams, table: RecycledTokens, curve: Curve) -> Totals:
    """Token Recycling with its published tree of 81 rows.

    No curve was measured so far: each forward is given the time of its curve's last row, which is too little.
    """
    totals = Totals()
    time = curve.cost(min(STATIC_ROWS, curve.cost.rows[-1]))
    for stream in streams.items:
        reader = RecyclingDrafter(stream, table, StepChances(), curve.cost, ())
        context, answer, emitted = Context(stream.prompt, None), stream.answer, 0
        while emitted < len(answer):
            reader.read(context.tokens)
            new = min(_static_right(table, context.tokens[-1], answer[emitted:]) + 1, len(answer) - emitted)
            totals.add(new, STATIC_ROWS, time)
            context.tokens.extend(answer[emitted : emitted + new])
            emitted += new
    return totals


def _static_right(table: RecycledTokens, last: int, answer: list[int]) -> int:
    """How many tokens of the answer the static tree holds."""
    ranks: tuple[int, ...] = ()
    for right, token in enumerate(answer):
        likeliest = table.after.get(last, [])[: STATIC.get(ranks, 0)]
        if token not in likeliest:
            return right
        ranks, last = (*ranks, likeliest.index(token)), token
    return len(answer)


def fresh_table(streams: tuple[Stream, ...]) -> RecycledTokens:
    """What followed each token in the training answers."""
    table = RecycledTokens()
    for stream in streams:
        for token, after in zip(stream.tokens[stream.start - 1 :], stream.answer, strict=False):
            table.put(token, [after])
    return table
