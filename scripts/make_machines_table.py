"""Write the table of machines into docs/records.md: a line for each record of results/machines/.

python scripts/make_machines_table.py           # writes the table
python scripts/make_machines_table.py --check   # exit status 1 where the page tells other things

A record is what scripts/record wrote on somebody's machine. What ``inspect`` predicted there stands beside what was
found.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE, MACHINES = ROOT / "docs" / "records.md", ROOT / "results" / "machines"
COMMAND = "python scripts/make_machines_table.py"
BEGIN, END = f"<!-- machines: written by {COMMAND} -->\n", "<!-- end of machines -->\n"
HEAD = (
    "| machine | model | tokens per forward | one answer at a time | predicted | many at once | identical |\n"
    "|---|---|---|---|---|---|---|\n"
)
NOBODY = "No machine has sent a record yet: yours would be the first.\n"


def table(records: list[dict[str, Any]]) -> str:
    """The records as Markdown, Macs first."""
    if not records:
        return NOBODY
    ordered = sorted(records, key=lambda one: (not one["device"].startswith("Apple"), one["device"], one["date"]))
    return HEAD + "".join(map(_line, ordered))


def _line(record: dict[str, Any]) -> str:
    one, here = record["single"], record["predicted"].get("this machine")
    found, low, high = (one["decode_ratio"][name] for name in ("median", "lower", "upper"))
    predicted = "–" if here is None else f"{here['speedup']:.1f}x ({here['speedup'] / found - 1:+.0%})"
    batched = ", ".join(f"{size['decode_ratio']:.1f}x at {size['rows']}" for size in record["batched"]["sizes"])
    identity = one["identity"]
    same = f"{identity['identical']} of {one['n']}" + (f", {identity['ties']} ties" if identity["ties"] else "")
    cells = (
        *(record["device"], f"`{record['model']['name']}`", f"{one['tokens_per_forward']:.1f}"),
        *(f"{found:.1f}x ({low:.1f}–{high:.1f})", predicted, batched, same),
    )
    return f"| {' | '.join(cells)} |\n"


def page(text: str, records: list[dict[str, Any]]) -> str:
    """The page with the table in its place."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{table(records)}\n{END}{rest.split(END)[1]}"


def read() -> list[dict[str, Any]]:
    """All records."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(MACHINES.glob("*.json"))]


def main() -> int:
    """Write the table, or check it."""
    parser = argparse.ArgumentParser(description="Write the table of machines into docs/records.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 where the page is stale")
    check = parser.parse_args().check
    there = PAGE.read_text(encoding="utf-8")
    made = page(there, read())
    if check and made != there:
        print(f"{PAGE.name} is stale: run {COMMAND}", file=sys.stderr)
        return 1
    if not check:
        PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
