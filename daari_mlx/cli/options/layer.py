"""The words that say whose states are taken."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from daari_mlx.cli.options.common import whole


def parse_layer(value: Any) -> int | str:
    """``"final"``, or the index of a layer, negative from the end."""
    return "final" if value == "final" else whole(value, None, "give final, or the index of a layer")


def parse_layer_or_auto(value: Any) -> int | str:
    """The same, or ``"auto"``."""
    return value if value in ("final", "auto") else whole(value, None, "give final, auto, or the index of a layer")


Layer = Annotated[
    Any,
    typer.Option(
        "--layer",
        parser=parse_layer_or_auto,
        metavar="final|auto|INDEX",
        help="Whose states: final (what the head reads), a layer's, or auto: what drafts best on held-out answers.",
    ),
]
