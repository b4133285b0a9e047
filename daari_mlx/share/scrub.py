"""What of a graph's JSON may leave this machine: numbers, and text under names that are known to hold no path."""

from __future__ import annotations

import re
from typing import Any

WORDS = frozenset(  # fingerprints, versions and settings; whatever else is text may be a path or somebody's name
    {
        "adapter",
        "answers",
        "arrays_sha256",
        "corpus",
        "layer",
        "model_type",
        "nodes_asked",
        "promises",
        "quantisation",
        "sources",
        "structure",
        "tokenizer",
        "versions",
        "weights",
    }
)
_NAME = re.compile(r"[\w. -]{1,40}", re.ASCII)
_PATH = re.compile(r"[/\\~@]")


def scrub(entries: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """A copy of JSON entries without what could tell of this machine or its user.

    Returns:
        The copy, and the names of the entries that are not in it, e.g. ``"teacher.source"``.
    """
    left_out: list[str] = []
    return _scrub(entries, left_out, ""), left_out


def _scrub(entries: dict[str, Any], left_out: list[str], within: str) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, value in entries.items():
        if not _NAME.fullmatch(name):
            left_out.append(f"{within}…")
        elif isinstance(value, dict):
            kept[name] = _scrub(value, left_out, f"{within}{name}.")
        elif _may_leave(value, known=name in WORDS or within == "versions."):
            kept[name] = value
        else:
            left_out.append(f"{within}{name}")
    return kept


def _may_leave(value: Any, known: bool) -> bool:
    if isinstance(value, list):
        return all(_may_leave(item, known) for item in value)
    if isinstance(value, str):
        return known and not _PATH.search(value)
    return value is None or isinstance(value, (bool, int, float))
