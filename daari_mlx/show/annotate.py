"""Rounds → records: what was drafted in each, what the teacher said to it, and what all of them came to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING, Any

from daari_mlx.graph.graph import Graph
from daari_mlx.graph.source import NO_NODE, Moment
from daari_mlx.graph.sources import Edge
from daari_mlx.ground.accept import TEACHER
from daari_mlx.ground.legible import Words
from daari_mlx.show.report import generate_json

if TYPE_CHECKING:
    from daari_mlx.decode.emitted import Round
    from daari_mlx.decode.responses import GenerationResponse
    from daari_mlx.draft.drafter import Draft

# what became of a draft token; the teacher is not asked about one that a processor forbids
ACCEPTED, REJECTED, UNREAD, UNUSED, FORBIDDEN = "accepted", "rejected", "unread", "unused", "forbidden"


def annotate(
    responses: Iterable[GenerationResponse], words: Words, last: int, graph: Graph | None = None
) -> Iterator[dict[str, Any]]:
    """One record a round, as soon as its last token is there, and one of the whole answer.

    Args:
        responses: of one answer; they end with one that has a ``finish_reason``.
        words: of the teacher's tokenizer.
        last: the prompt's last token.
        graph: the graph that drafts, None where none does: its records have no nodes.

    Yields:
        :func:`round_record` for each round, then :func:`summary_record`.
    """
    rounds: list[dict[str, Any]] = []
    said: list[tuple[int, str]] = []
    fresh: list[int] = []
    text = ""
    for response in responses:
        assert response.round is not None  # ours have one
        fresh.append(response.token)
        said.append((response.token, response.source or TEACHER))
        text += response.text
        if len(fresh) == len(response.round.tokens) or response.finish_reason is not None:
            rounds.append(round_record(response.round, fresh, last, words, graph))
            rounds[-1]["tokens"] = len(said)
            yield rounds[-1]
            last, fresh = fresh[-1], []
        if response.finish_reason is not None:
            yield summary_record(rounds, generate_json(text, said, response))


def round_record(
    made: Round, emitted: list[int], last: int, words: Words, graph: Graph | None = None
) -> dict[str, Any]:
    """What happened in one round, as JSON values.

    Args:
        made: the round.
        emitted: its tokens that came out, at least one.
        last: the token before it.
        words: of the teacher's tokenizer.
        graph: the graph that drafted, or None.

    Returns:
        ``round``, the teacher forwards so far; ``after``, the token before the draft; ``draft``, its tokens with the
        drafter's ``probability`` for each, given that all before it are right, and the ``path_probability`` of all up
        to it (both where the drafter tells), its ``source`` and ``verdict`` (and what the teacher ``wanted`` in place
        of a rejected one); ``bonus``, the teacher's own token, None where the answer ended within the draft;
        ``emitted``, a count, and their ``text``. With a graph also ``anchor``, the node of the teacher's true state,
        None where the drafter was not asked; and by token ``node``, where the walk stands before it, None where it is
        lost.
    """
    bonus = emitted[made.accepted] if made.accepted < len(emitted) else None
    tokens = [_token(token, words) for token in made.draft.tokens]
    sure = made.draft.probabilities
    for token, probability, path in zip(tokens, sure, accumulate(sure, mul), strict=False):
        token |= {"probability": probability, "path_probability": path}
    for place, token in enumerate(tokens):
        token |= {"source": made.draft.source_of(place), "verdict": _verdict(made, len(emitted), place)}
        if token["verdict"] == REJECTED and bonus is not None:
            token["wanted"] = _token(bonus, words)
    record: dict[str, Any] = {"kind": "round", "round": made.number, "after": _token(last, words)}
    own = None if bonus is None else _token(bonus, words)
    if graph is not None:
        anchored = made.draft.anchor != NO_NODE
        record["anchor"] = made.draft.anchor if anchored else None
        nodes = walk_nodes(graph, made.draft, last) if anchored else [NO_NODE] * (len(tokens) + 1)
        stands = [node if node != NO_NODE else None for node in nodes]
        for token, node in zip(tokens, stands, strict=False):
            token["node"] = node
        if own is not None:
            own["node"] = stands[made.accepted]
    return {**record, "draft": tokens, "bonus": own, "emitted": len(emitted), "text": words(emitted)}


def _token(token: int, words: Words) -> dict[str, Any]:
    return {"token": token, "text": words([token])}


def _verdict(made: Round, emitted: int, place: int) -> str:
    if place >= made.drafted:
        return FORBIDDEN
    if place >= emitted:
        return UNUSED if emitted <= made.accepted else UNREAD
    return ACCEPTED if place < made.accepted else REJECTED


def walk_nodes(graph: Graph, draft: Draft, last: int) -> list[int]:
    """Where the walk stands before each draft token and behind the last of them; ``NO_NODE`` where it is lost.

    Args:
        draft: with an anchor.
        last: the token that was chosen there.
    """
    edge, moment = Edge(graph), Moment(draft.anchor, last, "")
    edge.start(moment)
    nodes = [moment.node]
    for token in draft.tokens:
        edge.push(token, moment)
        nodes.append(moment.node)
    return nodes


def summary_record(rounds: list[dict[str, Any]], answer: dict[str, Any]) -> dict[str, Any]:
    """All rounds of one answer together.

    Args:
        rounds: of :func:`round_record`.
        answer: as :func:`daari_mlx.show.report.generate_json` gives it.

    Returns:
        ``answer``, and ``by_source``: how many tokens of each source the teacher verified and how many were emitted.
    """
    counts: dict[str, dict[str, int]] = {}
    for token in (token for made in rounds for token in made["draft"] if token["verdict"] != FORBIDDEN):
        count = counts.setdefault(token["source"], {"drafted": 0, "accepted": 0})
        count["drafted"] += 1
        count["accepted"] += token["verdict"] == ACCEPTED
    return {"kind": "summary", **answer, "by_source": counts}
