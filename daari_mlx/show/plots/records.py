"""Benchmark records as pictures take them: whatever was given, checked, and what each is called."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

from daari_mlx.ground.errors import DaariError
from daari_mlx.measure.records import BenchRecord
from daari_mlx.show.plots.style import distinct

Record = dict[str, Any]
Plotted = BenchRecord | Record  # a record, or what its as_dict gave
SPLITS = ("train", "valid", "test")


def bench_records(records: Plotted | Sequence[Plotted], needed: Sequence[str]) -> list[Record]:
    """One or several records as a list of JSON values.

    Args:
        needed: the entries that a picture reads.

    Raises:
        DaariError: there is none, or one lacks an entry.
    """
    several = [records] if isinstance(records, (BenchRecord, dict)) else list(records)
    if not several:
        raise DaariError("There is no record to draw: give at least one that daari-mlx bench --out wrote.")
    chosen = [record.as_dict() if isinstance(record, BenchRecord) else record for record in several]
    check_entries(chosen, needed, "daari-mlx bench --out")
    return chosen


def check_entries(records: Sequence[Record], needed: Sequence[str], writer: str) -> None:
    """See that each record has the entries that a picture reads.

    Args:
        writer: what writes such records.

    Raises:
        DaariError: one lacks an entry.
    """
    for record in records:
        missing = [name for name in needed if name not in record]
        if missing:
            raise DaariError(
                f"A record has no {', '.join(missing)} (it has {', '.join(list(record)[:6]) or 'nothing'}): give one "
                f"that {writer} wrote."
            )


def names_of(records: Sequence[Record], names: Sequence[str] | None) -> list[str]:
    """What each record is called: as given, else after its data, and its draft length where that tells them apart."""
    if names is not None:
        return list(names)
    tasks, lengths = [_task(record) for record in records], [str(r.get("num_draft_tokens")) for r in records]
    if len(set(tasks)) < len(tasks) and len(set(lengths)) > 1:
        tasks = [f"{task}, num_draft_tokens {length}" for task, length in zip(tasks, lengths, strict=True)]
    return distinct(tasks)


def _task(record: Record) -> str:
    """After the file of its prompts, or that file's folder where the file is only called test."""
    rows = record.get("rows")
    file = PurePosixPath(rows[0].get("source", "").rsplit(":", 1)[0] if rows else record.get("data") or _told(record))
    return file.parent.name if file.stem in SPLITS and file.parent.name else file.stem or "benchmark"


def _told(record: Record) -> str:
    """The file that the record's command was given as ``--data``; empty where it was given none."""
    words = str(record.get("command") or "").split()
    return words[words.index("--data") + 1] if "--data" in words[:-1] else ""
