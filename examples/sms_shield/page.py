"""The figures of README.md: Markdown made from the records beside it, put between marks that name them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from daari_mlx.ground.errors import DaariError

MARK = "<!-- {name}: written by make.py -->"
SCORED = {
    "json": "the JSON that was asked for",
    "label": "right label",
    "category": "right category",
    "risk": "right risk, to the point",
    "reason": "right reason, to the letter",
    "answer": "all four right",
}


def figures(folder: Path) -> dict[str, str]:
    """Every block of the page by name, from ``scores.json``, ``graph/compile_stats.json`` and ``bench.jsonl``."""
    scores = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    stats = json.loads((folder / "graph" / "compile_stats.json").read_text(encoding="utf-8"))
    record = read_bench(folder / "bench.jsonl")
    return {
        "scores": scores_table(scores),
        "graph": graph_text(stats, sum(file.stat().st_size for file in (folder / "graph").iterdir())),
        "benchmark": bench_table(record),
        "machine": machine_text(record),
    }


def read_bench(path: Path) -> dict[str, Any]:
    """The benchmark's one record."""
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    if len(records) != 1:
        raise DaariError(f"{path} has {len(records)} records, need one: run `make.py bench`.")
    record: dict[str, Any] = records[0]
    return record


def fill(page: str, blocks: dict[str, str]) -> str:
    """The page with each block's lines between its mark and the next empty comment.

    Raises:
        DaariError: where the page has no such place, or more than one.
    """
    for name, text in blocks.items():
        mark = MARK.format(name=name)
        pattern = re.compile(re.escape(mark) + r"\n.*?<!-- end -->", re.DOTALL)
        if len(pattern.findall(page)) != 1:
            raise DaariError(f"README.md needs the lines {mark!r} and '<!-- end -->' once, around the block {name!r}.")
        page = pattern.sub(lambda _, mark=mark, text=text: f"{mark}\n{text}\n<!-- end -->", page)
    return page


def code(text: str) -> str:
    """A command's output as a block of code."""
    return "```\n" + "\n".join(line.rstrip() for line in text.strip("\n").splitlines()) + "\n```"


def scores_table(scores: dict[str, Any]) -> str:
    """Before and after, on the test messages."""
    n, before, after = scores["rows"], scores["before"], scores["after"]
    rows = [(f"{n} test messages", "before", "after")]
    rows += [(words, f"{before[name]} of {n}", f"{after[name]} of {n}") for name, words in SCORED.items()]
    rows += [("loss, nats per answer token", f"{before['loss']:.2f}", f"{after['loss']:.3f}")]
    return _table(rows)


def graph_text(stats: dict[str, Any], size: int) -> str:
    """What was compiled, in one line; ``size`` is the folder's in bytes."""
    took = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in stats["seconds"].items() if seconds >= 1)
    return (
        f"{stats['sequences']} answers, {stats['states']:,} states, {stats['nodes']:,} nodes, {stats['edges']:,} edges "
        f"in {size / 1000:,.0f} kB. Time: {took}."
    )


def bench_table(record: dict[str, Any]) -> str:
    """The graph against plain mlx-lm, on the same messages in turns."""
    rows = [(f"{record['n']} test messages", "the graph against plain mlx-lm")]
    return _table(rows + [(words, show(record)) for words, show in BENCHED.items()])


BENCHED = {
    "the same tokens": lambda r: f"{r['identity']['identical']} of {r['n']} prompts",
    "decoding, times as fast (median)": lambda r: f"**{r['decode_ratio']['median']:.2f}**",
    "its quartiles and extremes": lambda r: "{lower:.2f}–{upper:.2f}, {least:.2f}–{most:.2f}".format_map(
        r["decode_ratio"]
    ),
    "prefill included (median)": lambda r: f"{r['wall_ratio']['median']:.2f}",
    "prompts slower than plain": lambda r: f"{r['losing']['count']} of {r['n']}",
    "tokens per forward": lambda r: f"{r['tokens_per_forward']:.2f}",
    "acceptance rate": lambda r: f"{r['acceptance_rate']:.0%} of {r['drafted']} draft tokens",
    "tokens/s, plain and drafted (medians)": lambda r: (
        f"{r['tokens_per_second']['plain']['median']:.1f} and {r['tokens_per_second']['ours']['median']:.1f}"
    ),
}


def machine_text(record: dict[str, Any]) -> str:
    """Where it was measured, and how busy the machine was."""
    versions = ", ".join(f"{name} {record['versions'][name]}" for name in ("daari-mlx", "mlx", "mlx-lm"))
    return (
        f"{record['device']}, {record['blas']}, {record['dtype']}; {versions}; "
        f"load average {record['load_average']:.1f} at the start."
    )


def _table(rows: list[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])
