"""What a job over a file did, in a few lines."""

from __future__ import annotations

from typing import Any

from daari_mlx.ground.counted import counted
from daari_mlx.show.report import table


def job_text(done: dict[str, Any], out: str) -> str:
    """The record of :func:`daari_mlx.job.run.run_job` as a table."""
    errors, failed, retry = done["errors"], "", ""
    if errors:
        failed = f"{counted(errors, 'row')} {'has' if errors == 1 else 'have'} an error in place of an answer"
    if errors != done["bad_rows"]:
        retry = f"; --retry-errors answers {'it' if errors == 1 else 'them'} again"
    speed = ""
    if done["asked"]:
        rows, rate = done["answered"] + done["failed"], done["rows_per_second"]
        speed = f"{counted(rows, 'row')} in {done['seconds']:,.1f} s: {rate:.1f} rows/s, "
        speed += f"{done['tokens_per_second']:,.0f} tokens/s, {done['tokens_per_forward']:.2f} tokens per forward"
    return table(
        [
            ("written", f"{counted(done['rows'], 'row')} to {out}"),
            ("answered now", speed or "none: all were answered before"),
            ("errors", failed and failed + retry),
            ("one at a time", done["alone"] or ""),
            ("as in the data", f"{done['same']:,} of {done['compared']:,} answers" if done["compared"] else ""),
        ]
    )
