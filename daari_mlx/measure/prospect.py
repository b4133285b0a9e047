"""Will a graph pay, and where: held-out answers and T(m) curves, put together as ``inspect`` tells them."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import Any

from daari_mlx.compile.calibrate import MIN_SEQUENCES
from daari_mlx.compile.joined import count_of, settings_of
from daari_mlx.cost.curves import CURVES, Curve, choose_curves
from daari_mlx.graph.graph import Graph
from daari_mlx.graph.outlook import Outlook
from daari_mlx.learn.kept import is_of_a_log
from daari_mlx.measure.forecast import Forecast, forecast

HERE = "this machine"
ASK = "daari-mlx inspect GRAPH --model MODEL --data test.jsonl"
FEW = 30  # draft tokens of a bin, below which chance alone moves its share


def kept_outlook(stats: dict[str, Any], path: str = "GRAPH", ask: str = ASK) -> tuple[Outlook | None, str | None]:
    """The held-out answers that compilation kept, or None and how to come by some.

    Args:
        stats: a graph's ``compile_stats.json``.
        path: of the graph, for a command.
        ask: the command that asks the teacher, see :func:`asking`.

    Raises:
        DaariError: they are damaged.
    """
    record = stats.get("held_out")
    if record is not None:
        return Outlook.of_record(record), None
    own = f"or run {ask}"
    if (why := _why_none_of_others(stats, path)) is not None:
        return None, f"{why}, {own}"
    sequences = stats.get("sequences")
    if isinstance(sequences, int) and sequences < MIN_SEQUENCES:
        few = f"{sequences} sequences are too few to hold some out ({MIN_SEQUENCES} are enough)"
        return None, f"{few}: compile from more, {own}"
    return None, f"nothing was kept of held-out answers when this graph was made: compile it anew, {own}"


def _why_none_of_others(stats: dict[str, Any], path: str) -> str | None:
    """Why a graph that was not compiled of one text keeps no held-out answers, and what to do; None for others."""
    learnt, added = ({} if not isinstance(d := stats.get(name), dict) else d for name in ("learnt", "added"))
    enough = f"too few to hold some out ({MIN_SEQUENCES} are enough)"
    if is_of_a_log(stats):
        counted = count_of(learnt, "answers") - count_of(learnt, "faded")
        if learnt.get("began"):
            return "no answers are held out that are learnt on top of another graph: add text by compile --update"
        if counted < MIN_SEQUENCES:
            return f"{counted} learnt answers are {enough}: answer more, then daari-mlx learn {shlex.quote(path)}"
        return f"no answers are held out while it learns: daari-mlx learn {shlex.quote(path)} tells what it promises"
    few = count_of(added, "sequences")
    if few and few < MIN_SEQUENCES:
        return f"the graph kept no held-out answers, and the {few} that --update added are {enough}: add more"
    if settings_of(stats).get("corpus") == "merged":
        return "neither of the graphs that were merged kept held-out answers: compile them anew"
    return None


def why_unknown(stats: dict[str, Any]) -> str | None:
    """Why what is kept of held-out answers tells nothing yet of the teacher's: they are not its own. Else None.

    Args:
        stats: a graph's ``compile_stats.json``; one that does not say whose answers they are is believed.
    """
    settings = stats.get("settings")
    kind = settings.get("answers") if isinstance(settings, dict) else None
    if kind not in ("reference", "mixed", "merged"):
        return None
    some = "the answers" if kind == "reference" else "some of the answers"
    return (
        f"{some} that this graph was compiled from are those of its data. What is drafted is what the teacher itself "
        "says, and nobody asked it"
    )


def asking(graph: Graph, path: str) -> str:
    """The command that asks the teacher and finds out."""
    return shlex.join(["daari-mlx", "inspect", path, *teacher_words(graph), "--data", "test.jsonl"])


def measured_here(graph: Graph) -> tuple[Curve | None, str | None]:
    """T(m) of the graph's teacher on this machine, and the command that measures it where nobody did.

    What answers told of T(m) does until then; None where there were none. No weights are read.
    """
    from daari_mlx.cost import machine, probe

    record = probe.load_for(graph.teacher)
    if record is not None:
        return Curve(
            HERE, record.cost, f"{record.key['chip']}, {record.key['blas']}: measured by daari-mlx probe"
        ), None
    command = shlex.join(["daari-mlx", "probe", *teacher_words(graph)])
    rounds = machine.kept_rounds(graph.teacher) if "quantisation" in graph.teacher else None
    if rounds is None:
        return None, command
    return Curve(HERE, rounds.at(0), "provisional, from answers given here; daari-mlx probe measures it"), command


def teacher_words(graph: Graph) -> list[str]:
    """The options that name a graph's teacher."""
    teacher = graph.teacher
    words = ["--model", str(teacher.get("source") or "MODEL")]
    if teacher.get("adapter"):
        words += ["--adapter-path", str(teacher.get("adapter_path") or "ADAPTER")]
    return words


def choose(device: str | None, here: Curve | None) -> list[Curve]:
    """The machines that are told of.

    Args:
        device: a published curve's name, ``"all"``, or None for this machine and all of those.
        here: this machine's, if known.

    Raises:
        DaariError: there is no such curve.
    """
    if device is not None:
        return choose_curves(device)
    return [*([here] if here is not None else []), *CURVES.values()]


def prospect(outlook: Outlook, curves: list[Curve], unknown: str | None = None) -> dict[str, Any]:
    """How far a graph's promises can be trusted, and whether it pays on each machine; JSON values.

    Args:
        outlook: of at least one answer.
        unknown: why this is no verdict, as :func:`why_unknown` tells; then nobody says that it pays.
    """
    bins = outlook.reliability()
    judged = sum(b.tokens for b in bins)
    fair = [b for b in bins if b.tokens >= FEW]
    off = sum(abs(b.promised * b.tokens - b.right) for b in bins) / max(judged, 1)
    return {
        "answers": len(outlook.answers),
        "tokens": outlook.tokens,
        "draft_tokens": judged,
        "off_by": off,
        "worst": max(
            ({**asdict(b), "off": abs(b.promised - b.right / b.tokens)} for b in fair), key=_off, default=None
        ),
        "reliability": [asdict(b) for b in bins],
        "unknown": unknown,
        "machines": [_machine(forecast(outlook, curve), unknown) for curve in curves],
    }


def _off(found: dict[str, Any]) -> float:
    return float(found["off"])


def _machine(found: Forecast, unknown: str | None) -> dict[str, Any]:
    values = {name: value for name, value in asdict(found).items() if name != "curve"}
    return {
        "device": found.curve.name,
        "source": found.curve.source,
        "pays": found.pays if unknown is None else None,
        "verdict": verdict(found) if unknown is None else f"not known: {unknown}",
        "why_not": found.why_not,
        "costs": found.costs,
        "foretellable": found.foretellable,
        **values,
    }


def next_command(stats: dict[str, Any], graph: Graph, path: str) -> str:
    """The command to run after a compilation: one that finds out whether the graph pays, where that is not known."""
    if kept_outlook(stats)[0] is None or why_unknown(stats):
        return asking(graph, path)
    return shlex.join(["daari-mlx", "chat", *teacher_words(graph), "--graph", path])


def first_verdict(stats: dict[str, Any], graph: Graph, path: str) -> str:
    """The verdict at the end of a compilation: on this machine, else under published times; else why there is none."""
    outlook, missing = kept_outlook(stats, path, asking(graph, path))
    if outlook is None:
        return f"not known: {missing}"
    if unknown := why_unknown(stats):
        return f"not known: {unknown}. To find out: {asking(graph, path)}"
    here, _ = measured_here(graph)
    if here is not None:
        return verdict(forecast(outlook, here))
    found = [forecast(outlook, curve) for curve in CURVES.values()]
    paying = [one.speedup for one in found if one.pays]
    if not paying:
        return f"will not pay on any of {len(found)} machines that others measured: {found[0].why_not}"
    return (
        f"pays on {len(paying)} of {len(found)} machines that others measured, {min(paying):.1f}x to "
        f"{max(paying):.1f}x plain decoding; on this one: daari-mlx inspect {path}"
    )


def verdict(found: Forecast) -> str:
    """One sentence: whether it pays, by how much, and why not."""
    place, tokens = f"on {found.curve.name}", f"{found.tokens_per_forward:.1f} tokens per forward"
    if found.pays:
        return f"pays: about {tokens}, {found.speedup:.1f}x plain decoding {place}"
    return f"will not pay {place}: expected {tokens}, {found.why_not}"
