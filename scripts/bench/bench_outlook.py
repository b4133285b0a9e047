"""How well inspect foretells: what held-out answers promise while compiling, against a replay on other prompts.

    python scripts/bench/bench_outlook.py STREAMS [--sets sms_spam,snips] [--out results/outlook.jsonl]

STREAMS is a folder as for ``bench_drafters.py``. For each set the training streams are compiled, the record of held-out
answers is written and read back as a graph's ``compile_stats.json`` holds it, and gone through under every published
T(m); then the graph itself is replayed on the test streams. Appends a line of JSON for each (set, teacher, curve), and
prints a table in Markdown.
"""

from __future__ import annotations

import json
from time import process_time
from typing import Any

from bench_drafters import Set, sets, sets_parser
from recording import SHORT, append, origin

from daari_mlx.compile.build import build
from daari_mlx.cost.curves import CURVES
from daari_mlx.graph.outlook import Outlook
from daari_mlx.measure.forecast import forecast


def foretold(one: Set) -> list[dict[str, Any]]:
    """A line for each curve: foretold and found."""
    nodes, corpus, vocabulary = one.made._labelled
    start = process_time()
    built = build(nodes, corpus, layer="final", vocab_size=vocabulary)
    seconds = process_time() - start
    assert built.outlook is not None  # every set has enough sequences
    record = json.dumps(built.outlook.as_record())
    outlook, lines = Outlook.of_record(json.loads(record)), []
    for curve in CURVES.values():
        ours, run = forecast(outlook, curve), one.run(built.graph, curve)
        found = run.speedup(curve.cost)
        lines.append(
            {
                "measurement": "outlook",
                "set": one.name,
                "teacher": one.teacher,
                "train": len(one.train),
                "train_is": "every other test stream" if one.halved else "train",
                "curve": curve.name,
                "held_out": ours.answers,
                "test": len(run.answers),
                "tokens_per_forward": {"foretold": ours.tokens_per_forward, "found": run.tokens_per_forward},
                "speedup": {"foretold": ours.speedup, "low": ours.low, "high": ours.high, "found": found},
                "error": ours.speedup / found - 1,
                "record_bytes": len(record),
                "cpu_seconds": seconds,
            }
        )
    return lines


def row(lines: list[dict[str, Any]]) -> str:
    """One set's line of the table."""
    cells = [f"{lines[0]['set']} ({lines[0]['held_out']} → {lines[0]['test']})"]
    for line in lines:
        speed = line["speedup"]
        cells.append(f"{speed['foretold']:.2f} / {speed['found']:.2f}x ({line['error']:+.0%})")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Measure, append lines, print a table."""
    parser = sets_parser(__doc__, "results/outlook.jsonl")
    args = parser.parse_args()
    about = origin(*SHORT)
    print(f"| set (held-out → test answers) | {' | '.join(CURVES)} |\n|---{'|---' * len(CURVES)}|")
    for one in sets(args.streams, args.sets):
        lines = foretold(one)
        for line in lines:
            append({**line, **about}, args.out)
        print(row(lines), flush=True)


if __name__ == "__main__":
    main()
