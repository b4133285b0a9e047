"""The words of what changes a graph that is there: compile --update, merge."""

from __future__ import annotations

from typing import Annotated

import typer

MaybeGraphPath = Annotated[
    str | None,
    typer.Option(
        "--graph-path", metavar="FOLDER", help="The folder to write the graph to; with --update, that graph by default."
    ),
]
Update = Annotated[
    str | None,
    typer.Option("--update", metavar="GRAPH", help="Add the text to this graph; its old text is not needed."),
]
First = Annotated[str, typer.Argument(metavar="GRAPH", help="The folder of a compiled graph.")]
Second = Annotated[str, typer.Argument(metavar="OTHER", help="Another graph of the same teacher and layer.")]
