"""The command that makes a cheap tier of a teacher, to draft for it: tier."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from daari_mlx.cli import prompts
from daari_mlx.cli.options import common as options
from daari_mlx.show import report

ALLOWED_BITS = (2, 3, 4, 5, 6, 8)  # of mlx-lm's affine quantisation


def parse_bits(value: Any) -> int | None:
    """One of ``ALLOWED_BITS``, or ``"none"``."""
    if value in (None, "none"):
        return None
    if str(value) not in map(str, ALLOWED_BITS):
        raise typer.BadParameter(f"{value!r}: give one of {', '.join(map(str, ALLOWED_BITS))}, or none")
    return int(value)


def parse_drop(value: Any) -> int | Literal["auto"]:
    """``"auto"``, or how many layers, from 0 on."""
    return options.parse_draft_length(value)


Bits = Annotated[
    Any,
    typer.Option(
        "--bits", parser=parse_bits, metavar="N|none", help="Bits of the tier's weights; none leaves them as they are."
    ),
]
GroupSize = Annotated[int, options.number("--group-size", min=1, help="Weights that share a scale.")]
DropLayers = Annotated[
    Any,
    typer.Option(
        "--drop-layers",
        parser=parse_drop,
        metavar="N|auto",
        help="How many layers to leave out; auto takes the tier that is expected to be fastest.",
    ),
]
AnswerTokens = Annotated[int, options.number("--max-tokens", "-m", min=1, help="The longest answer of the teacher.")]
OutFolder = Annotated[str, typer.Option("--out", metavar="FOLDER", help="The folder to write the tier to.")]


def tier(
    model: options.Model,
    data: options.Data,
    out: OutFolder,
    bits: Bits = 4,
    group_size: GroupSize = 64,
    drop_layers: DropLayers = "auto",
    adapter_path: options.AdapterPath = None,
    trust_remote_code: options.TrustRemoteCode = False,
    max_tokens: AnswerTokens = 64,
    split: options.Split = "train",
    skip_bad_rows: options.SkipBadRows = False,
    limit: options.Limit = 16,
    chat_template_config: options.ChatTemplateConfig = None,
    as_json: options.Json = False,
) -> None:
    """Make a cheap model that drafts for a teacher. Quantised, without the layers that its answers need least."""
    from daari_mlx.teacher.load import load_teacher
    from daari_mlx.text.data import read_prompts
    from daari_mlx.tier.make import TierOptions, check_target, make_tier

    options.check_exists(data)
    check_target(out)
    teacher = load_teacher(model, adapter_path=adapter_path, trust_remote_code=trust_remote_code)
    rows = prompts.read_rows(
        read_prompts,
        data,
        teacher,
        split=split,
        skip_bad_rows=skip_bad_rows,
        limit=limit,
        chat_template_config=chat_template_config,
    )
    how = TierOptions(bits=bits, group_size=group_size, drop_layers=drop_layers, max_tokens=max_tokens)
    record = make_tier(teacher, rows, out, how, report.command_line())
    print(report.as_json({"tier": out, **record}) if as_json else tier_text(record, out))
    if record["measured_draft_cost"] > record["tiers"][record["chosen"]]["weights"] * 1.5:
        report.note(
            f"note: on this machine a token of this tier costs {record['measured_draft_cost']:.2f} of a teacher's "
            "forward, more than its weights tell: packed weights are slow here. --bits none makes a tier without them."
        )


def tier_text(record: dict[str, Any], path: str) -> str:
    """A table of agreement against cost, one line for each tier that was looked at.

    Args:
        record: as :func:`daari_mlx.tier.make.make_tier` returns it.
        path: where the tier lies.
    """
    per_pass = next(name for name in record["tiers"][0] if name.startswith("tokens_per_pass"))
    size = per_pass.rsplit("_", 1)[-1]
    lines = [f"layers  left out  weights  agreement  tokens a pass (block {size})  best block  expected speed"]
    for place, row in enumerate(record["tiers"]):
        newest = row["dropped"][len(record["tiers"][place - 1]["dropped"]) :] if place else []
        mark = "  <- this one" if place == record["chosen"] else ""
        lines.append(
            f"{row['layers']:>6}  {', '.join(map(str, newest)):>8}  {row['weights']:>7.3f}  {row['agreement']:>9.3f}  "
            f"{row[per_pass]:>{22 + len(size)}.2f}  {row['block']:>10}  {row['speed']:>13.2f}x{mark}"
        )
    return "\n".join(
        [
            *lines,
            record["formula"],
            report.table(
                [
                    ("tier", path),
                    ("measured on", f"{record['answers']['sequences']} answers, {record['answers']['tokens']} tokens"),
                    ("cost here", f"{record['measured_draft_cost']:.2f} of a teacher's forward a drafted token"),
                ]
            ),
        ]
    )
