"""The words of the command line for recorded streams."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from daari_mlx.cli.options.common import number
from daari_mlx.cli.options.layer import parse_layer

Replay = Annotated[
    str | None,
    typer.Option(
        "--replay",
        metavar="STREAMS",
        help="Replay drafters on streams recorded by --save-streams, without the teacher, for published T(m).",
    ),
]
SaveStreams = Annotated[
    str | None,
    typer.Option("--save-streams", metavar="FILE", help="Record the teacher's answers and states; measure nothing."),
]
StreamLayers = Annotated[
    list[Any] | None,
    typer.Option(
        "--stream-layer",
        parser=parse_layer,
        metavar="final|INDEX",
        help="A layer whose states are recorded; repeat it for several.",
        show_default="final",
    ),
]
Device = Annotated[
    str, typer.Option("--device", metavar="CURVE|all", help="Whose published T(m) a replay is projected for.")
]
BenchDrafter = Annotated[
    Literal["graph", "model", "pair", "lookup", "none", "edge", "suffix", "recycling", "oracle", "all"] | None,
    typer.Option(
        "--drafter",
        help="Who drafts: the graph, the draft model, both as a pair, look-ups in the text itself, or nobody; with "
        "--replay the graph (default: all), edge, lookup, suffix, recycling or oracle.",
        show_default="what is given",
    ),
]
BenchSeed = Annotated[
    int, number("--seed", min=0, max=2**32 - 1, help="Seed of MLX's random numbers, set anew before each answer.")
]
