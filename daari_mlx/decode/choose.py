"""Who drafts for an answer, where its states are read, and why nobody does where nobody does.

Each kind is one more :class:`daari_mlx.draft.drafter.Drafter`; the loop and the statistics are the same for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.nn as nn
from mlx_lm.tokenizer_utils import TokenizerWrapper

from daari_mlx.cost import machine
from daari_mlx.decode.options import DraftLength
from daari_mlx.draft.drafter import Context, Draft, Drafter, GraphDrafter
from daari_mlx.draft.forced import ForcedDrafter, Forcing
from daari_mlx.draft.lookup import LookupDrafter
from daari_mlx.draft.model import ModelDrafter
from daari_mlx.draft.pair import PairDrafter
from daari_mlx.graph.artifact import attach
from daari_mlx.graph.graph import Graph
from daari_mlx.ground.accept import Statistics
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.given import check_draft_length
from daari_mlx.learn.drafter import LearningDrafter
from daari_mlx.learn.learner import Learner
from daari_mlx.teacher.kept import unchanged
from daari_mlx.teacher.load import Teacher
from daari_mlx.teacher.quirks import refuses_blocks
from daari_mlx.teacher.rewind import refuses_drafts
from daari_mlx.teacher.tap import FINAL, Tap, tap_model

NO_GRAPH = "no graph was given"


def choose_drafter(
    model: nn.Module,
    tokenizer: Any,
    cache: list[Any],
    statistics: Statistics,
    graph: Graph | None,
    drafter: Drafter | None,
    num_draft_tokens: DraftLength,
    grammar: Forcing | None = None,
    before: int = 0,
) -> tuple[Drafter | None, Tap | None]:
    """Who drafts and where its states are read; ``statistics.drafting_off`` says why nobody does.

    A ``grammar`` drafts what it leaves no choice in, alone or along with the others; it does not know the ``before``
    tokens of the text.
    """
    check_draft_length(num_draft_tokens)
    if graph is None and drafter is None and grammar is None:
        statistics.drafting_off = NO_GRAPH
    elif num_draft_tokens == 0:
        statistics.drafting_off = "num_draft_tokens is 0"
    else:
        statistics.drafting_off = refuses_blocks(model) or refuses_drafts(cache) or getattr(drafter, "off", None)
    known = attach(graph, model, tokenizer) if graph is not None else None
    if statistics.drafting_off is not None:
        return None, None
    if known is not None:
        drafter = graph_drafter(known, model, tokenizer, num_draft_tokens)
    if grammar is not None:
        length = None if num_draft_tokens == "auto" else num_draft_tokens
        cost = machine.ready_cost(model) if length is None else None  # nobody asked for drafts: nothing is waited for
        drafter = ForcedDrafter(grammar, drafter, before=before, num_draft_tokens=length, cost=cost)
    layer = getattr(drafter, "layer", FINAL)
    return drafter, None if layer is None else tap_model(model, layer)[0]


@dataclass(frozen=True)
class NoDrafter:
    """Stands for a drafter that cannot be used.

    Attributes:
        off: why; ``drafting_off`` of the answers.
    """

    off: str

    def draft(self, context: Context, limit: int, pending: int) -> Draft:
        """Nothing."""
        return Draft()


def graph_drafter(
    graph: Graph, model: nn.Module, tokenizer: Any, num_draft_tokens: DraftLength = "auto"
) -> GraphDrafter:
    """The drafter of a graph that was attached to this teacher, for ``drafter`` of several answers: it remembers them.

    One answer at a time; what :func:`stream_generate` makes of ``graph`` lives for one answer only.

    Raises:
        DaariError: the graph reads states of another width.
    """
    check_draft_length(num_draft_tokens)
    with unchanged(model):
        _, width = tap_model(model, graph.layer)
        cost = machine.cost_of(model) if num_draft_tokens == "auto" else None
    if width != graph.hidden_size:
        raise DaariError(
            f"The graph reads states of width {graph.hidden_size}, this teacher's are {width} wide: compile it anew."
        )
    ends = (tokenizer if isinstance(tokenizer, TokenizerWrapper) else TokenizerWrapper(tokenizer)).eos_token_ids
    if num_draft_tokens == "auto":
        return GraphDrafter(graph, cost=cost, ends=ends)
    return GraphDrafter(graph, num_draft_tokens=num_draft_tokens, ends=ends)


def learning_drafter(
    learner: Learner, model: nn.Module, tokenizer: Any, num_draft_tokens: DraftLength = "auto"
) -> LearningDrafter:
    """The drafter of a learner of this teacher; it may draft for many answers, one at a time."""
    check_draft_length(num_draft_tokens)
    ends = (tokenizer if isinstance(tokenizer, TokenizerWrapper) else TokenizerWrapper(tokenizer)).eos_token_ids
    if num_draft_tokens == "auto":
        return LearningDrafter(learner, cost=machine.cost_of(model), ends=ends)
    return LearningDrafter(learner, num_draft_tokens=num_draft_tokens, ends=ends)


def lookup_drafter(teacher: Teacher, num_draft_tokens: DraftLength = "auto") -> LookupDrafter:
    """The drafter that looks up in the text itself; ``"auto"`` needs this machine's T(m)."""
    if num_draft_tokens == "auto":
        return LookupDrafter(cost=machine.cost_of(teacher.model))
    return LookupDrafter(num_draft_tokens=num_draft_tokens or 1)


def pair_drafter(
    graph: Graph, model: ModelDrafter, teacher: Teacher, num_draft_tokens: DraftLength = "auto"
) -> PairDrafter:
    """A graph, attached to the teacher, and a drafting model as one drafter, with this machine's T(m) of both."""
    ends = teacher.tokenizer.eos_token_ids
    if num_draft_tokens != "auto":
        return PairDrafter(graph, model, num_draft_tokens=num_draft_tokens or 1, ends=ends)
    cost, reading = machine.cost_of(teacher.model), machine.cost_of(model.model)
    return PairDrafter(graph, model, cost=cost, reading=reading, ends=ends)
