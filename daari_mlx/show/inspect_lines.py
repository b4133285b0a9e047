"""What ``inspect`` tells → lines for a terminal, no wider than the screen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from daari_mlx.ground.legible import fit, fold, isolated, visible, width
from daari_mlx.measure.prospect import HERE
from daari_mlx.show.learnt import learnt_line, waiting_text
from daari_mlx.show.report import count_rows

# Of the 256 colours, middle ones that stand out from a dark and from a light ground alike.
GOOD, BAD, QUIET, HEAD = "color(28)", "color(160)", "color(244)", "bold"
PAYS = {True: "pays", False: "will not pay", None: "not known"}
LABEL = 17  # columns of a line's name
BAR = 20  # columns of a share of 100 %
GAP = "  "

Line = tuple[str, str]  # text and style


def screen(view: dict[str, Any], columns: int) -> Iterator[Line]:
    """All of it.

    Args:
        view: :func:`daari_mlx.show.graph_view.graph_view` with ``held_out``
            (:func:`daari_mlx.measure.prospect.prospect`, or None), ``held_out_from``, ``held_out_missing``,
            ``probe_command``, ``ask_command`` added, and ``newer_answers``, those that are learnt but not counted.
        columns: of the screen, 40 at least.
    """
    about = [
        ("graph", view["graph"]),
        ("teacher", view["teacher_text"]),
        ("states of layer", str(view["layer"])),
        *count_rows(view),
        ("compiled from", f"{view['prompts']:,} prompts"),
        ("learnt from", learnt_line(view.get("learnt"))),
        ("newer answers", waiting_text(view["graph"], newer) if (newer := view.get("newer_answers")) else ""),
    ]
    for name, value in about:
        if value:
            yield from _paragraph(name, str(value), columns)
    held_out = view["held_out"]
    yield from _heading("will it pay here?")
    if view["probe_command"]:
        known = held_out is not None and any(machine["device"] == HERE for machine in held_out["machines"])
        lack = "The times below are provisional" if known else "How long forwards take here is not measured yet"
        yield from _wrapped(f"{lack}; to measure them:", columns)
        yield GAP + visible(view["probe_command"], " "), ""
    if held_out is None:
        ask = view.get("ask_command") or ""
        yield from _wrapped(f"not known: {view['held_out_missing'].removesuffix(ask)}".rstrip(), columns, BAD)
        if ask:
            yield GAP + visible(ask, " "), ""
    else:
        if held_out["unknown"]:
            yield from _wrapped(f"not known: {held_out['unknown']}. To find out:", columns, BAD)
            yield GAP + visible(view["ask_command"], " "), ""
            yield from _wrapped("If its own answers were like those, you could expect:", columns)
        yield from _machines(held_out, columns, bool(view["probe_command"]))
        yield from _wrapped(_basis(held_out, view["held_out_from"]), columns, QUIET)
        yield from _heading("how accurate its probabilities are")
        yield from _reliability(held_out, columns)
    if view["busiest"]:
        yield from _heading("the busiest nodes: how often each was left, its likeliest tokens, how it goes on")
        for node in view["busiest"]:
            yield from _node(node, columns)


def _heading(text: str) -> Iterator[Line]:
    yield "", ""
    yield text, HEAD


def _wrapped(text: str, columns: int, style: str = "", *, indent: str = "") -> Iterator[Line]:
    """Words in lines of at most so many columns."""
    for line in fold(text, columns - len(indent)):
        yield f"{indent}{line}".rstrip(), style


def _paragraph(name: str, text: str, columns: int) -> Iterator[Line]:
    """A name, and a text beside it."""
    lines = list(_wrapped(visible(text, " "), max(columns - LABEL, 20)))
    for row, (line, style) in enumerate(lines):
        yield f"{'' if row else name:<{LABEL}}{line}", style


def _machines(held_out: dict[str, Any], columns: int, provisional: bool) -> Iterator[Line]:
    """A sentence for this machine or the only one, and a table of the others.

    Args:
        provisional: whether this machine's times are, and it was told already.
    """
    machines = held_out["machines"]
    told = [m for m in machines if m["device"] == HERE or len(machines) == 1]
    for machine in told:
        yield from _wrapped(_verdict(machine), columns, _style(machine))
        yield from _wrapped(_more(machine), columns, QUIET)
        if machine["device"] != HERE or not provisional:
            yield from _wrapped(f"times of forwards: {machine['source']}", columns, QUIET)
    others = [m for m in machines if m not in told]
    if others:
        if told:
            yield "", ""
        yield from _wrapped(_published(others), columns, "" if told else _style(others[0]))
        name = max(len(m["device"]) for m in others)
        yield f"{'':<{name + 15}}speed-up (9 in 10) tokens/forward  slower answers", QUIET
        for machine in others:
            yield from _row(machine, name, columns)
        if not told and others[0]["pays"] is False and not others[0]["foretellable"]:
            yield from _wrapped(_unforetellable(others[0]), columns, BAD)


def _style(machine: dict[str, Any]) -> str:
    return {True: GOOD, False: BAD, None: QUIET}[machine["pays"]]


def _verdict(machine: dict[str, Any]) -> str:
    """The sentence; where it is no verdict, the figures alone."""
    if machine["pays"] is not None:
        return str(machine["verdict"])
    return f"{machine['tokens_per_forward']:.1f} tokens per forward, {machine['speedup']:.1f}x on {machine['device']}"


def _published(machines: list[dict[str, Any]]) -> str:
    """One sentence on the machines that others measured."""
    if machines[0]["pays"] is None:
        return "on machines that others timed:"
    paying = [m["speedup"] for m in machines if m["pays"]]
    if not paying:
        return "will not pay on any machine that others timed:"
    range_ = f"{min(paying):.1f}x" if len(paying) == 1 else f"{min(paying):.1f}x–{max(paying):.1f}x"
    return f"pays on {len(paying)} of {len(machines)} machines that others timed, {range_} plain decoding:"


def _row(machine: dict[str, Any], name: int, columns: int) -> Iterator[Line]:
    speed = f"{machine['speedup']:5.2f}x ({machine['low']:.2f}–{machine['high']:.2f})"
    slower = f"{machine['losing']:,} of {machine['answers']:,}"
    yield (
        f"{machine['device']:<{name}}{GAP}{PAYS[machine['pays']]:<13}{speed:<18}"
        f"{machine['tokens_per_forward']:>15.2f}{GAP}{slower:>14}",
        _style(machine),
    )
    if machine["pays"] is False:
        yield from _wrapped(machine["why_not" if machine["foretellable"] else "costs"], columns, QUIET, indent=GAP)


def _unforetellable(machine: dict[str, Any]) -> str:
    """The reason that is the answers' own."""
    return (
        f"These answers are hard to predict: a first draft token is right in {machine['first_right']:.0%} of places; "
        f"even if longer forwards cost nothing, there would be {machine['free_rows']:.1f} tokens per forward."
    )


def _more(machine: dict[str, Any]) -> str:
    answers, rows = machine["answers"], machine["rows"]
    drafted = (
        f"a forward checks {rows:.1f} tokens on average, where there is a draft" if rows else "nothing would be drafted"
    )
    return (
        f"likely {machine['low']:.2f}x–{machine['high']:.2f}x (9 in 10); slower than plain on {machine['losing']} of "
        f"{answers} answers; {drafted}"
    )


def _basis(held_out: dict[str, Any], source: str) -> str:
    return (
        f"Tried on {held_out['answers']:,} answers that the graph had not learnt from, {held_out['tokens']:,} tokens: "
        f"{source}. Text that is unlike them gains less. Only decoding is counted: neither reading the prompt nor the "
        "time of drafting."
    )


def _reliability(held_out: dict[str, Any], columns: int) -> Iterator[Line]:
    yield "promised      draft tokens  promised  came true", QUIET
    for row in held_out["reliability"]:
        count = row["tokens"]
        label = f"{row['low']:.0%}–{row['high']:.0%}".replace("%–", "–")
        if not count:
            yield f"{label:<13}{0:>13,}", QUIET
            continue
        true = row["right"] / count
        bar = "█" * round(true * min(BAR, max(columns - 50, 0)))
        yield f"{label:<13}{count:>13,}{row['promised']:>10.1%}{true:>11.1%}  {bar}".rstrip(), ""
    worst = held_out["worst"]
    most = "" if worst is None else f", at worst {100 * worst['off']:.1f} ({worst['low']:.0%} to {worst['high']:.0%})"
    yield from _wrapped(
        f"On average a promised probability is {100 * held_out['off_by']:.1f} points off{most}; only draft tokens "
        "behind right ones are counted.",
        columns,
        QUIET,
    )


def _node(node: dict[str, Any], columns: int) -> Iterator[Line]:
    """Two lines a node."""
    edges = (f"{_shown(e['text'], e['token'])} {e['probability']:.2f}" for e in node["edges"])
    yield _fitted(f"{node['node']:>6} ×{node['support']:<6} ", edges, columns), ""
    path = node["path_text"]
    said = " ".join(f"#{token}" for token in node["path"]) if path is None else visible(path, " ")
    yield f"{'':>15}{isolated(fit(f'→ {said}', max(columns - 15, 10)))}", QUIET


def _fitted(start: str, items: Iterable[str], columns: int) -> str:
    """As many of the items behind ``start`` as there is room for, the first one anyhow."""
    line = start
    for place, item in enumerate(items):
        if place == 0:
            line += isolated(fit(item, max(columns - width(start), 10)))
        elif width(line + GAP + item) <= columns:
            line += GAP + isolated(item)
    return line if line != start else f"{start}no edge"


def _shown(text: str | None, token: int) -> str:
    return f"#{token}" if text is None else visible(text)
