"""Will a graph pay, and where: held-out answers and T(m) curves, put together as ``inspect`` tells them."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import Any

from daari_mlx.compile.calibrate import MIN_SEQUENCES
from daari_mlx.cost.curves import CURVES, Curve, choose_curves
from daari_mlx.graph.graph import Graph
from daari_mlx.graph.outlook import Outlook
from daari_mlx.measure.forecast import Forecast, forecast

HERE = "this machine"


def kept_outlook(stats: dict[str, Any]) -> tuple[Outlook | None, str | None]:
    """The held-out answers that compilation kept, or None and how to come by some.

    Args:
        stats: a graph's ``compile_stats.json``.

    Raises:
        DaariError: they are damaged.
    """
    record = stats.get("held_out")
    if record is not None:
        return Outlook.of_record(record), None
    own = "or measure on your own text: --data test.jsonl --model MODEL"
    sequences = stats.get("sequences")
    if isinstance(sequences, int) and sequences < MIN_SEQUENCES:
        few = f"{sequences} sequences are too few to hold some out ({MIN_SEQUENCES} are enough)"
        return None, f"{few}: compile from more, {own}"
    return None, f"nothing was kept of held-out answers when this graph was made: compile it anew, {own}"


def measured_here(graph: Graph) -> tuple[Curve | None, str | None]:
    """T(m) of the graph's teacher on this machine, or None and the command that measures it; no weights are read."""
    from daari_mlx.cost import probe

    record = probe.load_for(graph.teacher)
    if record is not None:
        return Curve(
            HERE, record.cost, f"{record.key['chip']}, {record.key['blas']}: measured by daari-mlx probe"
        ), None
    teacher = graph.teacher
    words = ["daari-mlx", "probe", "--model", str(teacher.get("source") or "MODEL")]
    if teacher.get("adapter"):
        words += ["--adapter-path", str(teacher.get("adapter_path") or "ADAPTER")]
    return None, shlex.join(words)


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


def prospect(outlook: Outlook, curves: list[Curve]) -> dict[str, Any]:
    """How far a graph's promises can be trusted, and whether it pays on each machine; JSON values.

    Args:
        outlook: of at least one answer.
    """
    bins = outlook.reliability()
    judged = sum(b.tokens for b in bins)
    off = sum(abs(b.promised * b.tokens - b.right) for b in bins) / max(judged, 1)
    return {
        "answers": len(outlook.answers),
        "tokens": outlook.tokens,
        "draft_tokens": judged,
        "off_by": off,
        "reliability": [asdict(b) for b in bins],
        "machines": [_machine(forecast(outlook, curve)) for curve in curves],
    }


def _machine(found: Forecast) -> dict[str, Any]:
    values = {name: value for name, value in asdict(found).items() if name != "curve"}
    return {
        "device": found.curve.name,
        "source": found.curve.source,
        "pays": found.pays,
        "verdict": verdict(found),
        "why_not": found.why_not,
        "costs": found.costs,
        "foretellable": found.foretellable,
        **values,
    }


def verdict(found: Forecast) -> str:
    """One sentence: whether it pays, by how much, and why not."""
    place, tokens = f"on {found.curve.name}", f"{found.tokens_per_forward:.1f} tokens per forward"
    if found.pays:
        return f"pays: about {tokens}, {found.speedup:.1f}x plain decoding {place}"
    return f"will not pay {place}: expected {tokens}, {found.why_not}"
