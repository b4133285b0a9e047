"""The table of machines: what was predicted stands beside what was found, Macs first, and the page is current."""

from __future__ import annotations

from typing import Any

import make_machines_table as machines


def record(device: str, found: float, predicted: float | None) -> dict[str, Any]:
    spread = {"median": found, "lower": found - 0.5, "upper": found + 0.5}
    return {
        "date": "2026-12-01",
        "device": device,
        "model": {"name": "some/model"},
        "predicted": {} if predicted is None else {"this machine": {"speedup": predicted, "tokens_per_forward": 5.0}},
        "single": {
            "n": 24,
            "decode_ratio": spread,
            "tokens_per_forward": 4.26,
            "identity": {"identical": 23, "ties": 1, "failed": 0},
        },
        "batched": {"sizes": [{"rows": 4, "decode_ratio": 2.0}, {"rows": 16, "decode_ratio": 1.3}]},
    }


def test_what_was_predicted_stands_beside_what_was_found() -> None:
    lines = machines.table([record("Some Xeon", 4.0, None), record("Apple M3 Max", 3.0, 3.3)]).splitlines()[2:]
    found = "4.3 | 3.0x (2.5–3.5) | 3.3x (+10%) | 2.0x at 4, 1.3x at 16 | 23 of 24, 1 ties |"
    assert (
        lines[0] == f"| Apple M3 Max | `some/model` | {found}"
        and lines[1].startswith("| Some Xeon |")
        and "| – |" in lines[1]
    )


def test_the_page_has_the_records_that_are_there() -> None:
    text = machines.PAGE.read_text(encoding="utf-8")
    assert machines.page(text, machines.read()) == text, f"stale: run {machines.COMMAND}"
    assert machines.NOBODY in machines.page(text, [])
