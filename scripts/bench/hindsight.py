"""What no drafter can know: how far its own draft, or the best of what its sources name, will turn out to be right."""

from __future__ import annotations

from typing import Any

from daari_mlx.cost.length import MAX_DRAFT, Cost, best_length
from daari_mlx.draft.drafter import Draft
from daari_mlx.graph.graph import Graph
from daari_mlx.graph.source import CELL_BITS
from daari_mlx.graph.sources import Sources
from daari_mlx.ground.accept import count_accepted
from daari_mlx.measure.streams import Stream


class Hindsight:
    """Drafts only what the teacher will accept, and of that as much as pays.

    Args:
        any_source: a token counts where any source names it; else the arbiter's choice has to be right.
    """

    def __init__(self, graph: Graph, cost: Cost, stream: Stream, *, any_source: bool) -> None:
        self.layer, self._graph, self._cost, self._stream, self._any = graph.layer, graph, cost, stream, any_source
        self._sources = Sources(graph, graph.arbiter.names)

    def draft(self, context: Any, limit: int, pending: int = 0) -> Draft:
        """See :meth:`daari_mlx.draft.drafter.Drafter.draft`."""
        ahead = self._stream.tokens[len(context.tokens) :][: min(limit, MAX_DRAFT)]
        anchor, reduced = self._graph.nodes.anchor(context.state)
        moment = self._sources.start(context.tokens, anchor, state=reduced)
        if self._any:
            right = 0
            while right < len(ahead) and any(voice >> CELL_BITS == ahead[right] for voice in moment.voices):
                self._sources.push(ahead[right], moment)
                right += 1
        else:
            found = self._graph.arbiter.propose(self._sources.all, moment, len(ahead), floor=0.0)
            right = count_accepted(found.tokens, ahead)
        return Draft(ahead[: best_length([1.0] * right, self._cost, pending)])
