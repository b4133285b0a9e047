"""How a benchmark of one answer at a time is printed."""

from __future__ import annotations

from typing import Any

from daari_mlx.show.report import table


def bench_text(record: dict[str, Any]) -> str:
    """A benchmark in one table; failed rows come first and are never called a speed-up.

    Args:
        record: as :meth:`daari_mlx.measure.records.BenchRecord.as_dict` returns it.
    """
    identity, rates = record["identity"], record["tokens_per_second"]
    failed = [f"FAILED  {source}: other tokens than plain mlx-lm gives" for source in identity["failed_rows"]]
    said = f"{identity['identical']} of {record['n']} answers have the tokens of plain mlx-lm"
    if identity["ties"]:
        said += f", {identity['ties']} differ where its two best logits tie (gap below {identity['gap_bound']:g})"
    if failed:
        said += f", {len(failed)} FAILED"
    wall, decode = (_spread_text(record[name], "x") for name in ("wall_ratio", "decode_ratio"))
    losing = record["losing"]["count"]
    rows = [
        ("identity", said),
        ("wall clock, plain / ours", wall if record["ok"] else f"{wall}; no speed-up: answers differ"),
        ("decoding, plain / ours", decode),
        ("slower than plain", f"{losing} of {record['n']} prompts"),
        ("tokens/s, plain", _spread_text(rates["plain"], "")),
        ("tokens/s, ours", _spread_text(rates["ours"], "")),
        ("tokens per forward", f"{record['tokens_per_forward']:.2f}"),
        ("acceptance", f"{record['acceptance_rate']:.1%} of {record['drafted']:,} draft tokens"),
        ("time spent drafting", f"{record['draft_time_share']:.1%} of decoding"),
        ("sources", ", ".join(f"{name} {count:,}" for name, count in record["sources"].items())),
        ("drafting", f"off: {record['drafting_off']}" if record.get("drafting_off") else ""),
        ("overlap", _overlap_text(record.get("overlap"))),
        ("settings", _flat({name: record.get(name) for name in ("max_tokens", "num_draft_tokens", "dtype")})),
        ("device", _flat(record.get("device"))),
        ("BLAS", _flat(record.get("blas"))),
        ("load average", f"{record['load_average']:.1f} when it began" if "load_average" in record else ""),
        ("versions", _flat(record.get("versions"))),
        ("commit", _flat(record.get("commit"))),
    ]
    return "\n".join([*failed, table(rows)])


def _spread_text(spread: dict[str, float], unit: str) -> str:
    return (
        f"median {spread['median']:.2f}{unit}, quartiles {spread['lower']:.2f}–{spread['upper']:.2f}, "
        f"extremes {spread['least']:.2f}–{spread['most']:.2f}"
    )


def _overlap_text(overlap: Any) -> str:
    return f"{overlap} of these prompts were compiled into the graph: the figures flatter it" if overlap else ""


def _flat(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_flat(item)}" for name, item in value.items() if item)
    return "" if value is None else str(value)
