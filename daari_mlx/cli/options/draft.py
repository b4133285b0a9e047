"""The words of the command line that say who drafts."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

DraftModel = Annotated[
    str | None,
    typer.Option(
        "--draft-model",
        metavar="PATH_OR_REPO",
        help="A cheaper model with the teacher's tokenizer that drafts: one of its family, or a tier.",
    ),
]
DrafterKind = Annotated[
    Literal["graph", "model", "pair", "lookup", "none"] | None,
    typer.Option(
        "--drafter",
        help="Who drafts: the graph, the draft model, both as a pair, look-ups in the text itself, or nobody.",
        show_default="what is given",
    ),
]
