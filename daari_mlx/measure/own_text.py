"""What a graph promises on text of one's own: the teacher answers prompts, and the graph is asked along the way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from daari_mlx.graph.graph import Graph
from daari_mlx.graph.outlook import HeldOut, Outlook, propose_along
from daari_mlx.graph.source import NO_NODE
from daari_mlx.ground.errors import DaariError
from daari_mlx.measure.streams import Stream, Streams, record
from daari_mlx.text.identity import is_known, prompt_key

if TYPE_CHECKING:
    from daari_mlx.teacher.load import Teacher
    from daari_mlx.text.data import Prompt


def ask(teacher: Teacher, graph: Graph, prompts: Sequence[Prompt], max_tokens: int) -> tuple[Outlook, int]:
    """Let the teacher answer greedily and the graph promise.

    Args:
        graph: of this very teacher.
        prompts: those that the graph was compiled from are left out: what it has seen measures nothing.
        max_tokens: the longest answer; -1 for no limit.

    Returns:
        What was promised, and how many prompts were left out.

    Raises:
        DaariError: no prompt is left.
    """
    compiled = set(graph.prompts.tolist())
    held_out = [p for p in prompts if not is_known(p.tokens, prompt_key(p.tokens, p.identity), compiled)]
    if not held_out:
        raise DaariError(
            f"The graph was compiled from all of these {len(prompts)} prompts. What it has seen measures nothing: "
            "give others."
        )
    return promised_on(graph, record(teacher, held_out, [graph.layer], max_tokens)), len(prompts) - len(held_out)


def promised_on(graph: Graph, streams: Streams) -> Outlook:
    """What a graph promises along recorded streams of its teacher, with the states of its layer among them."""
    return Outlook(tuple(_heard(graph, stream, streams.ends) for stream in streams.items))


def _heard(graph: Graph, stream: Stream, ends: Sequence[int]) -> HeldOut:
    found = [graph.nodes.anchor(state) for state in stream.states[graph.layer][:-1]]
    anchors, states = [node for node, _ in found], [state for _, state in found]
    if stream.start == 1:
        anchors[0] = NO_NODE  # no forward has shown the state of the only token of a prompt
    return propose_along(graph, stream.tokens, stream.start, anchors, states, ends)
