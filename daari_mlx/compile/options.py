"""How states are taken, as one record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from daari_mlx.ground.option import Option, check_fields, number, whole


@dataclass(frozen=True, slots=True)
class ExtractOptions:
    """How states are taken; ``dimensions`` are those of the reduced states, ``seed`` orders the sequences.

    ``chat_template_config`` is what the rows were rendered with: it is kept, for those that join them later.
    """

    answers: Annotated[
        Literal["reference", "teacher"],
        Option("Whose answers to learn from: those in the data (reference), or the teacher's own."),
    ] = "reference"
    max_tokens: Annotated[
        int, number("The longest answer of the teacher, for --answers teacher.", 1, flags=("--max-tokens", "-m"))
    ] = 256
    layer: Annotated[
        int | str,
        Option(
            "Which states: final (those that the next token is chosen from), or those of a layer.",
            "final|INDEX",
            read=whole(None, "give final, or the index of a layer", "final"),
        ),
    ] = "final"
    seed: Annotated[int, number("The same data, seed, versions and threads give the same bytes.", 0, 2**32 - 1)] = 0
    dimensions: Annotated[int, number("Of the reduced states.", 1)] = 64
    chat_template_config: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        """See that each is one that has a meaning."""
        check_fields(self)
