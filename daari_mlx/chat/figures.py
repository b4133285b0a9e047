"""The figures of a chat in words: of one answer, of its sources, of the conversation so far."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from daari_mlx.chat.screen import SEPARATOR, columns
from daari_mlx.decode.choose import NO_GRAPH
from daari_mlx.graph.source import NAMES
from daari_mlx.ground.accept import TEACHER
from daari_mlx.ground.legible import width
from daari_mlx.show.report import drafting_text, table
from daari_mlx.show.shades import is_dumb, shade

if TYPE_CHECKING:
    from daari_mlx.chat.session import Session
    from daari_mlx.decode.responses import GenerationResponse

LOOKUP, MODEL = "prompt", "model"  # the sources of those drafters
CONTEXT_TOLD = 0.75  # how full the context is when the line after an answer begins to say so


def figures(last: GenerationResponse, context: str | None, how_it_ended: str | None) -> str:
    """The quiet line after an answer, shortened where the terminal is too narrow for it.

    Args:
        last: the answer's last response.
        context: how full the context is, in words; None to leave that out.
        how_it_ended: in words where it did not come to its end, else None.
    """
    drafting = drafting_text(last).replace(", ", SEPARATOR).replace("; then off:", f"{SEPARATOR}then drafting off:")
    if last.drafting_off == NO_GRAPH and not last.statistics.drafted:
        drafting = ""  # nobody was asked to: the first line of the chat says so
    elif drafting.startswith("off:"):
        drafting = f"drafting {drafting}"
    parts = [
        f"{last.prompt_tokens} prompt tokens prefilled",
        f"{last.generation_tokens} token{'s' * (last.generation_tokens != 1)}",
        f"{last.generation_tps:.1f} tokens/s",
        drafting,
        context,
        how_it_ended,
    ]
    line = SEPARATOR.join(part for part in parts if part)
    if not sys.stderr.isatty() or width(line) <= columns():
        return line
    parts[0] = f"{last.prompt_tokens} prefilled"
    parts[3] = drafting.replace(" tokens per forward", " per forward")
    return SEPARATOR.join(part for part in parts if part)


def fullness(session: Session) -> str | None:
    """How full the teacher's context is, once that matters; else None."""
    held = session.context_length
    if held is None or (used := session.tokens()) < CONTEXT_TOLD * held:
        return None
    return f"context {used:,} of {held:,} tokens"


def legend(sources: dict[str, int]) -> str:
    """How many tokens of an answer each source gave, each in its colour."""
    terminal = sys.stderr.isatty()
    drafted = sorted(((count, name) for name, count in sources.items() if name != TEACHER), reverse=True)
    parts = [f"{shade(name, name) if terminal else name} {count}" for count, name in drafted]
    return "tokens by source: " + SEPARATOR.join([*parts, f"{TEACHER} {sources.get(TEACHER, 0)}"])


def legend_of_all(drafter: str) -> str:
    """The sources that a kind of drafter has, each in its colour.

    Args:
        drafter: ``"graph"``, ``"model"``, ``"pair"`` or ``"lookup"``.
    """
    if is_dumb():
        return "This terminal has no colours: each answer counts its tokens by source."
    if os.environ.get("NO_COLOR"):
        return "Drafted tokens are underlined (NO_COLOR is set); each answer counts them by source."
    names = {"graph": NAMES, "pair": (*NAMES, MODEL), "model": (MODEL,)}.get(drafter, (LOOKUP,))
    shown = SEPARATOR.join(shade(name, name) if sys.stderr.isatty() else name for name in names)
    return f"Drafted tokens are coloured by source: {shown}"


def stats_text(session: Session) -> str:
    """The figures of the conversation so far, as a table."""
    tally = session.conversation.tally
    counts = tally.statistics
    held = session.context_length
    return table(
        [
            ("answers", f"{tally.answers:,}"),
            ("prompt tokens", f"{tally.prompt_tokens:,} prefilled"),
            ("tokens", f"{counts.tokens:,}"),
            ("forwards", f"{counts.forwards:,}"),
            ("tokens per forward", f"{counts.tokens_per_forward:.2f}"),
            (
                "acceptance",
                f"{counts.acceptance_rate:.0%} of {counts.drafted:,} draft tokens" if counts.drafted else "",
            ),
            ("sources", ", ".join(f"{name} {count:,}" for name, count in counts.sources.items())),
            ("tokens/s", f"{tally.tokens_per_second:.1f}" if tally.seconds else ""),
            ("context", "" if held is None or not tally.answers else f"{session.tokens():,} of {held:,} tokens"),
            ("drafting", f"off: {counts.drafting_off}" if counts.drafting_off else ""),
        ]
    )


def title(model: str, adapter: str | None, drafter: str, source: str | None, context_length: int | None) -> str:
    """The first line of a chat: who answers, who drafts, and how much the teacher holds.

    Args:
        model, adapter: where the teacher came from; no adapter is None.
        drafter: see :func:`legend_of_all`; ``"none"`` for nobody.
        source: where the graph or the draft model came from, or None.
        context_length: None where it is not known.
    """
    teacher = _name(model) if adapter is None else f"{_name(model)} with {_name(adapter)}"
    drafts = {"none": "no drafter", "lookup": "drafted by look-ups"}.get(drafter) or f"drafted by {_name(str(source))}"
    held = None if context_length is None else f"context of {context_length:,} tokens"
    return SEPARATOR.join(part for part in (teacher, drafts, held) if part)


def _name(source: str) -> str:
    """A folder's own name; a repository keeps its user's."""
    return Path(source).resolve().name if Path(source).is_dir() else source
