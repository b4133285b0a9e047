"""A benchmark of many answers at once as a table."""

from __future__ import annotations

from typing import Any

from daari_mlx.show.report import table


def batch_bench_text(record: dict[str, Any]) -> str:
    """One line for each number of rows at once; answers that differ come first.

    Args:
        record: as :func:`daari_mlx.measure.batch_bench.run_batch_bench` returns it.
    """
    failed = [
        f"FAILED  {figures['failed']} answers of {record['n']} at {figures['rows']} rows at once differ from mlx-lm's"
        for figures in record["sizes"]
        if figures["failed"]
    ]
    heads = (
        "rows at once",
        "decoding: over mlx_lm.batch_generate, over ours without drafts; with prompts; tokens/s; tokens per forward; "
        "accepted; ids",
    )
    lines = [(str(figures["rows"]), _line(figures, record["n"])) for figures in record["sizes"]]
    about = [
        ("device", f"{record['device']}, BLAS {record['blas']}, load {record['load_average']:.1f} when it began"),
        ("versions", ", ".join(f"{name} {version}" for name, version in record["versions"].items())),
        ("commit", str(record["commit"])),
    ]
    return "\n".join([*failed, table([heads, *lines, *about])])


def _line(figures: dict[str, Any], count: int) -> str:
    said = f"{figures['identical']} of {count} identical"
    if figures["ties"]:
        said += f", {figures['ties']} differ at a tie"
    why = f"; one at a time: {figures['alone']}" if figures["alone"] else ""
    return (
        f"{figures['decode_ratio']:.2f}x, {figures['over_undrafted']:.2f}x; {figures['wall_ratio']:.2f}x; "
        f"{figures['tokens_per_second']['drafted']:.0f}; {figures['tokens_per_forward']:.2f}; "
        f"{figures['acceptance_rate']:.0%}; {said}{why}"
    )
