"""Which drafter the options name: the graph, a cheaper model, both as a pair, prompt lookup, or none.

Each is one more :class:`daari_mlx.draft.drafter.Drafter`; the loop, the statistics and the contract are the same for
all.
"""

from __future__ import annotations

from typing import Literal

from daari_mlx.cost import probe
from daari_mlx.decode.choose import DraftLength
from daari_mlx.draft.drafter import Drafter
from daari_mlx.draft.lookup import LookupDrafter
from daari_mlx.draft.model import ModelDrafter, load_drafter
from daari_mlx.draft.pair import PairDrafter
from daari_mlx.graph.artifact import attach
from daari_mlx.graph.graph import Graph
from daari_mlx.ground.errors import DaariError
from daari_mlx.teacher.load import Teacher

Kind = Literal["graph", "model", "pair", "lookup", "none"]
GRAPHS: tuple[Kind, ...] = ("graph", "pair")  # the kinds that use a graph


def choose_kind(kind: Kind | None, graph: str | None, draft_model: str | None) -> Kind:
    """The drafter that the options name; what is only given and not used is refused, never dropped silently.

    Args:
        kind: of ``--drafter``; None takes what is given: both, where both are.
        graph: of ``--graph``, or None.
        draft_model: of ``--draft-model``, or None.

    Raises:
        DaariError: something is missing, or given for nothing.
    """
    given: dict[Kind, str | None] = {"graph": graph, "model": draft_model}
    options: dict[Kind, str] = {"graph": "--graph", "model": "--draft-model"}
    named: list[Kind] = [name for name, value in given.items() if value is not None]
    if kind is None:
        return "pair" if len(named) > 1 else named[0] if named else "none"
    if kind == "pair":
        if missing := [option for name, option in options.items() if given[name] is None]:
            raise DaariError(f"--drafter pair needs {' and '.join(missing)}.")
        return kind
    if kind in given and given[kind] is None:
        raise DaariError(f"--drafter {kind} needs {options[kind]}.")
    if unused := [options[name] for name in named if name != kind and kind != "none"]:
        raise DaariError(f"{' and '.join(unused)} is given, but --drafter {kind} does not use it: leave it out.")
    return kind


def make_drafter(
    kind: Kind,
    draft_model: str | None,
    teacher: Teacher,
    num_draft_tokens: DraftLength = "auto",
    *,
    graph: Graph | None = None,
    trust_remote_code: bool = False,
) -> Drafter | None:
    """The drafter of this kind, for :func:`daari_mlx.stream_generate`'s ``drafter``; None for ``graph`` and ``none``.

    Args:
        kind: see :func:`choose_kind`.
        draft_model: a folder or Hub repository, for ``"model"`` and ``"pair"``.
        teacher: who verifies.
        num_draft_tokens: see :func:`daari_mlx.stream_generate`.
        graph: for ``"pair"``.

    Raises:
        DaariError: see :func:`daari_mlx.draft.model.load_drafter`; a graph of another teacher.
    """
    if kind in ("model", "pair") and draft_model is not None:
        attached = attach(graph, teacher.model, teacher.tokenizer) if kind == "pair" and graph is not None else None
        model = load_drafter(
            draft_model,
            teacher.model,
            teacher.tokenizer,
            num_draft_tokens=num_draft_tokens or 1,  # 0 is no draft at all, which the loop sees to
            trust_remote_code=trust_remote_code,
        )
        return model if attached is None else make_pair(attached, model, teacher, num_draft_tokens)
    if kind == "lookup":
        if num_draft_tokens == "auto":
            return LookupDrafter(cost=probe.cost_of(teacher.model))
        return LookupDrafter(num_draft_tokens=num_draft_tokens or 1)
    return None


def make_pair(
    graph: Graph, model: ModelDrafter, teacher: Teacher, num_draft_tokens: DraftLength = "auto"
) -> PairDrafter:
    """A graph, attached to the teacher, and a drafting model as one drafter, with this machine's T(m) of both."""
    ends = teacher.tokenizer.eos_token_ids
    if num_draft_tokens != "auto":
        return PairDrafter(graph, model, num_draft_tokens=num_draft_tokens or 1, ends=ends)
    return PairDrafter(graph, model, cost=probe.cost_of(teacher.model), reading=probe.cost_of(model.model), ends=ends)
