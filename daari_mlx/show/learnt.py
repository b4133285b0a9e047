"""What was learnt, in words."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from daari_mlx.ground.learning import FEWEST
from daari_mlx.show.report import note

if TYPE_CHECKING:
    from daari_mlx.learn.learner import Learner


@contextmanager
def learning(learner: Learner | None, path: str | None = None) -> Iterator[None]:
    """Learn as long as the block lasts; at its end what was heard is kept, and what could not be is told.

    Args:
        learner: who learns; None where nobody does.
        path: where it is kept: what is known there is told before and after.
    """
    if learner is not None and path is not None:
        note(begins_text(learner, path))
    try:
        yield
    finally:
        if learner is not None:
            learner.close()
            if learner.trouble is not None:
                note(f"note: not all that was learnt is kept: {learner.trouble}")
            if path is not None:
                note(ends_text(path))


def begins_text(learner: Learner, path: str) -> str:
    """What a learner knows when it begins."""
    count, begun = len(learner.memory), learner.base.size > 1 or len(learner.base.edge_token) > 0
    known = ["a compiled graph"] if begun else []
    known += [f"{count:,} answer{'' if count == 1 else 's'} learnt before"] if count else []
    return f"learning in {path}: it begins with {' and '.join(known) or 'nothing'}"


def ends_text(path: str) -> str:
    """What is learnt at a path once learning there has ended."""
    from daari_mlx.learn.kept import answers_are, kept_at

    kept = kept_at(path)
    if kept is None:
        return f"nothing is learnt in {path}"
    text = f"{answers_are(kept.answers)} learnt in {path}"
    if kept.newer and kept.answers >= FEWEST:
        return f"{text}; daari-mlx learn {shlex.quote(path)} counts the newest {kept.newer:,} too"
    return text if kept.answers >= FEWEST else f"{text}; {FEWEST} make a graph"


def waiting_text(path: str, newer: int) -> str:
    """That newer answers than those of its graph are learnt at a path, and what counts them."""
    are = "answer is" if newer == 1 else "answers are"
    return f"{newer:,} newer {are} learnt there: daari-mlx learn {shlex.quote(path)} counts them too"


def note_what_waits(path: str) -> None:
    """A note where a graph that others are made of lacks answers that are learnt at its path."""
    from daari_mlx.learn.kept import kept_at

    kept = kept_at(path)
    if kept is not None and kept.newer:
        note(f"note: {path}: {waiting_text(path, kept.newer)}")


def learnt_line(learnt: Any) -> str:
    """What ``compile_stats.json`` tells of learning, as a line; empty where that is nothing, or no figures."""
    names = ("answers", "since", "until", "forgotten")
    if not isinstance(learnt, dict) or not all(type(learnt.get(name)) in (int, float) for name in names):
        return ""
    since, until = (time.strftime("%Y-%m-%d %H:%M", time.localtime(learnt[name])) for name in ("since", "until"))
    forgotten = f"; {learnt['forgotten']:,} older ones forgotten" if learnt["forgotten"] else ""
    return f"{learnt['answers']:,} answers, {since} to {until}{forgotten}"
