"""The command that makes a cheap tier of a teacher, to draft for it: tier."""

from __future__ import annotations

from typing import Annotated, Any

from daari_mlx.cli.options import words
from daari_mlx.cli.options.command import takes
from daari_mlx.cli.options.names import FEATURES, RowsName, TeacherName
from daari_mlx.ground.option import Option
from daari_mlx.show import report
from daari_mlx.tier.options import TierOptions


@takes(
    "model data out bits group_size drop_layers adapter_path trust_remote_code max_tokens split skip_bad_rows limit "
    f"chat_template_config {FEATURES} force as_json",
    limit=16,
)
def tier(
    teacher_name: TeacherName,
    rows_name: RowsName,
    how: TierOptions,
    out: Annotated[str, Option("The folder to write the tier to.", "FOLDER")],
    force: words.Force = False,
    as_json: words.Json = False,
) -> None:
    """Make a cheaper copy of a model that drafts for it. Quantised, without the layers that its answers need least."""
    from daari_mlx.text.data import read_prompts
    from daari_mlx.tier.make import check_target, make_tier

    rows_name.check()
    check_target(out, replace=force)
    teacher = teacher_name.load()
    record = make_tier(teacher, rows_name.read(read_prompts, teacher), out, how, report.command_line())
    print(report.as_json({"tier": out, **record}) if as_json else tier_text(record, out))


def tier_text(record: dict[str, Any], path: str) -> str:
    """Whether the tier pays here, and a table of agreement against cost, a line for each tier that was looked at.

    Args:
        record: as :func:`daari_mlx.tier.make.make_tier` returns it.
        path: where the tier lies.
    """
    per_pass = next(name for name in record["tiers"][0] if name.startswith("tokens_per_pass"))
    size = per_pass.rsplit("_", 1)[-1]
    named = f"tokens a pass (block {size})"
    lines = [
        *_words(named),
        "",
        f"layers  left out  weights  agreement  {named}  best block  projected speed",
    ]
    for place, row in enumerate(record["tiers"]):
        newest = row["dropped"][len(record["tiers"][place - 1]["dropped"]) :] if place else []
        mark = "  <- written" if place == record["chosen"] else ""
        lines.append(
            f"{row['layers']:>6}  {', '.join(map(str, newest)):>8}  {row['weights']:>7.3f}  {row['agreement']:>9.3f}  "
            f"{row[per_pass]:>{22 + len(size)}.2f}  {row['block']:>10}  {row['speed']:>15.2f}x{mark}"
        )
    measured = f"{record['answers']['sequences']} answers, {record['answers']['tokens']} tokens"
    about = report.table([("tier", path), ("on this machine", _here(record)), ("measured on", measured)])
    return "\n".join([about, "", *lines, f"projected {record['formula']}"])


def _words(per_pass: str) -> list[str]:
    """What the columns of the table are."""
    return [
        "agreement: how often its next token is the teacher's own; block: how many tokens it drafts at a time;",
        f"{per_pass}: how many tokens one forward of the teacher then gives; best block: the fastest;",
        "projected speed: on a machine where time goes by the size of the weights, against plain decoding",
    ]


def _here(record: dict[str, Any]) -> str:
    """Whether the tier pays on this machine, by what a drafted token was measured to cost here."""
    from daari_mlx.measure.forecast import PAYS

    cost, speed = record["measured_draft_cost"], record["speed_here"]
    told = f"a drafted token costs {cost:.2f} of a teacher's forward"
    if speed >= PAYS:
        return f"this tier pays here, {speed:.2f}x with drafts of {record['block_here']} tokens: {told}"
    slow = cost > 1.5 * record["tiers"][record["chosen"]]["weights"]
    mend = " Packed weights are slow here: --bits none makes a tier without them." if slow else ""
    elsewhere = record["tiers"][record["chosen"]]["speed"]
    return (
        f"this tier will not pay here ({speed:.2f}x): {told}. On a machine where time goes by the size of the weights, "
        f"{elsewhere:.2f}x would be expected.{mend}"
    )
