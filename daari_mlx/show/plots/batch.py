"""Picture: how much faster than mlx-lm's own batch answers come, by how many share a forward."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from daari_mlx.ground.errors import DaariError
from daari_mlx.show.plots.records import names_of
from daari_mlx.show.plots.style import Palette, foot, picture, tick_counts

Record = dict[str, Any]
TOLD = 2  # records whose figures stand beside their points: those of more would cover one another


def plot_batch(
    records: Record | Sequence[Record],
    path: str | Path,
    *,
    names: Sequence[str] | None = None,
    dark: bool = False,
) -> Path:
    """Draw decoding against ``mlx_lm.batch_generate`` over the number of rows at once, and tokens a second of both.

    Args:
        records: lines that ``bench --concurrency --out`` wrote, one or several.
        path: the picture to write, of the kind that its suffix names (.png, .svg, .pdf); its folder is made.
        names: what the records are called; None: after their data.
        dark: light on dark.

    Raises:
        DaariError: there is no such record, or matplotlib is missing.
    """
    chosen = [records] if isinstance(records, dict) else list(records)
    if not chosen or not all(isinstance(r.get("sizes"), list) and r["sizes"] for r in chosen):
        raise DaariError("There is no record of rows at once here: give a file that bench --concurrency --out wrote.")
    called = names_of(chosen, names)
    with picture(path, (10.0, 4.2), dark=dark) as (figure, palette):
        left, right = figure.subplots(1, 2)
        for number, (record, name) in enumerate(zip(chosen, called, strict=True)):
            _draw(left, right, record, name, palette.colour(number))
            if len(chosen) <= TOLD:
                _tell(left, record, palette, above=number == 0)
        rows = sorted({figures["rows"] for record in chosen for figures in record["sizes"]})
        for axes in (left, right):
            tick_counts(axes, rows)
            axes.set_ylim(0, axes.get_ylim()[1] * 1.08)
            axes.set_xlabel("rows at once")
        left.axhline(1, color=palette.quiet, linestyle="--", linewidth=1.2)
        left.set(title="Decoding, over mlx_lm.batch_generate", ylabel="times as fast")
        right.set(title="Tokens a second while decoding", ylabel="tokens/s")
        left.legend(frameon=False)
        answers = sum(record["n"] for record in chosen)
        foot(figure, f"n = {answers:,} prompts; dashed at the right: mlx_lm.batch_generate", palette)
    return Path(path)


def _draw(left: Any, right: Any, record: Record, name: str, colour: str) -> None:
    rows = [figures["rows"] for figures in record["sizes"]]
    ratios = [figures["decode_ratio"] for figures in record["sizes"]]
    left.plot(rows, ratios, "-o", color=colour, label=name)
    for arm, line in (("drafted", "-o"), ("mlx_lm", "--")):
        right.plot(rows, [figures["tokens_per_second"][arm] for figures in record["sizes"]], line, color=colour)


def _tell(left: Any, record: Record, palette: Palette, *, above: bool) -> None:
    """The figures beside a record's points."""
    rows = [figures["rows"] for figures in record["sizes"]]
    ratios = [figures["decode_ratio"] for figures in record["sizes"]]
    for count, ratio in zip(rows, ratios, strict=True):
        losing = {"color": palette.bad if ratio < 1 else palette.ink}
        left.annotate(
            f"{ratio:.2f}", (count, ratio), (0, 7 if above else -15), textcoords="offset points", ha="center", **losing
        )
