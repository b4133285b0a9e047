"""Who drafts for an answer, where its states are read, and why nobody does where nobody does."""

from __future__ import annotations

from typing import Any, Literal

import mlx.nn as nn
from mlx_lm.tokenizer_utils import TokenizerWrapper

from daari_mlx.cost import probe
from daari_mlx.draft.drafter import Drafter, GraphDrafter
from daari_mlx.graph.artifact import attach
from daari_mlx.graph.graph import Graph
from daari_mlx.ground.accept import Statistics
from daari_mlx.ground.errors import DaariError
from daari_mlx.share.find import graph_of
from daari_mlx.teacher.quirks import refuses_blocks
from daari_mlx.teacher.rewind import refuses_drafts
from daari_mlx.teacher.tap import FINAL, Tap, tap_model

DraftLength = int | Literal["auto"]


def choose_drafter(
    model: nn.Module,
    tokenizer: Any,
    cache: list[Any],
    statistics: Statistics,
    graph: Graph | str | None,
    drafter: Drafter | None,
    num_draft_tokens: DraftLength,
) -> tuple[Drafter | None, Tap | None]:
    """Who drafts and where its states are read; ``statistics.drafting_off`` says why nobody does."""
    if graph is not None and drafter is not None:
        raise DaariError("Both graph and drafter were given: give one of them.")
    if num_draft_tokens != "auto" and (not isinstance(num_draft_tokens, int) or num_draft_tokens < 0):
        raise DaariError(f"num_draft_tokens is {num_draft_tokens!r}: give a number from 0 on, or 'auto'.")
    if graph is None and drafter is None:
        statistics.drafting_off = "no graph was given"
    elif num_draft_tokens == 0:
        statistics.drafting_off = "num_draft_tokens is 0"
    else:
        statistics.drafting_off = refuses_blocks(model) or refuses_drafts(cache) or getattr(drafter, "off", None)
    known = attach(graph_of(graph), model, tokenizer) if graph is not None else None
    if statistics.drafting_off is not None:
        return None, None
    if known is not None:
        drafter = graph_drafter(known, model, tokenizer, num_draft_tokens)
    layer = getattr(drafter, "layer", FINAL)
    return drafter, None if layer is None else tap_model(model, layer)[0]


def graph_drafter(
    graph: Graph, model: nn.Module, tokenizer: Any, num_draft_tokens: DraftLength = "auto"
) -> GraphDrafter:
    """The drafter of a graph that was attached to this teacher, for ``drafter`` of several answers: it remembers them.

    One answer at a time; what :func:`stream_generate` makes of ``graph`` lives for one answer only.

    Raises:
        DaariError: the graph reads states of another width.
    """
    _, width = tap_model(model, graph.layer)
    if width != graph.hidden_size:
        raise DaariError(
            f"The graph reads states of width {graph.hidden_size}, this teacher's are {width} wide: compile it anew."
        )
    ends = (tokenizer if isinstance(tokenizer, TokenizerWrapper) else TokenizerWrapper(tokenizer)).eos_token_ids
    if num_draft_tokens == "auto":
        return GraphDrafter(graph, cost=probe.cost_of(model), ends=ends)
    return GraphDrafter(graph, num_draft_tokens=num_draft_tokens, ends=ends)
