"""What is told of a graph that was made of others: whose answers it holds, what was promised, what counts twice."""

from __future__ import annotations

from typing import Any

import numpy as np

from daari_mlx.compile.budget import MAX_BYTES, most_prompts
from daari_mlx.graph.graph import Graph
from daari_mlx.graph.outlook import Outlook

TEACHER, LEARNT = "teacher", "learnt"  # whose answers: asked for, or learnt while answering; both the teacher's own


def holds_all(large: Graph, small: Graph, of_large: dict[str, Any], of_small: dict[str, Any]) -> bool:
    """Whether all that a graph counted is counted in another already.

    It is where the other has all its prompts, and both were told the teacher's own answers in the same way. Where only
    some prompts are in both, what they counted cannot be told from the rest: a graph keeps sums over all its answers.

    Args:
        large, small: of the same teacher.
        of_large, of_small: their ``compile_stats.json``.
    """
    kinds = [settings_of(one) for one in (of_large, of_small)]
    same = all(kinds[0].get(name) == kinds[1].get(name) for name in ("answers", "max_tokens", "chat_template_config"))
    if not same or kinds[1].get("answers") != "teacher":
        return False
    known = count_of(kinds[1], "max_bytes") or MAX_BYTES
    if not 0 < len(small.prompts) < most_prompts(known):  # of very many, only some are kept
        return False
    return bool(np.isin(small.prompts, large.prompts).all())


def settings_of(stats: dict[str, Any]) -> dict[str, Any]:
    """What a graph was compiled with; empty where that is not known."""
    found = stats.get("settings")
    return found if isinstance(found, dict) else {}


def count_of(values: dict[str, Any], name: str) -> int:
    """A count; 0 where it is not known."""
    found = values.get(name)
    return found if type(found) is int and found > 0 else 0


def answers_of(graph: Graph, stats: dict[str, Any]) -> int:
    """How many answers a graph was compiled from; its prompts, as far as it keeps them, where that is not known."""
    return count_of(stats, "sequences") or len(graph.prompts)


def whose_answers(stats: dict[str, Any], more: Any) -> str:
    """Whose answers a graph holds that had some and gets more; ``"mixed"`` where they are of both kinds, or unknown."""
    known = settings_of(stats).get("answers", more)
    if known == more and isinstance(more, str):
        return more
    return TEACHER if sorted(map(str, (known, more))) == [LEARNT, TEACHER] else "mixed"


def learnt_in(*stats: dict[str, Any]) -> dict[str, Any]:
    """What of a graph was learnt while answering, for its ``compile_stats.json``; empty where nothing was."""
    found = [one["learnt"] for one in stats if isinstance(one.get("learnt"), dict)]
    if not found:
        return {}
    counts = {name: sum(count_of(one, name) for one in found) for name in ("answers", "faded", "forgotten")}
    since, until = ([one[name] for one in found if type(one.get(name)) in (int, float)] for name in ("since", "until"))
    return {"learnt": {**counts, "since": min(since, default=0.0), "until": max(until, default=0.0)}}


def outlook_in(stats: dict[str, Any]) -> Outlook | None:
    """What was promised on the answers that were held out; None where that is not known."""
    record = stats.get("held_out")
    return None if record is None else Outlook.of_record(record)


def both_outlooks(stats: dict[str, Any], more: Outlook | None) -> Outlook | None:
    """What was promised on the held-out answers of both: those of before by the graph as it was then."""
    found = [one for one in (outlook_in(stats), more) if one is not None]
    return Outlook(tuple(answer for one in found for answer in one.answers)) if found else None


def settings_told(graph: Graph, limit: int, seed: int) -> dict[str, Any]:
    """Those of a graph that was joined, for ``compile_stats.json``."""
    return {
        "nodes": graph.size,
        "nodes_asked": "auto",
        "seed": seed,
        "max_bytes": limit,
        "layer": graph.layer,
        "dimensions": graph.nodes.centroids.shape[1],
    }
