"""Single options that several commands share, and what those do that act on a tokenizer."""

from __future__ import annotations

from typing import Annotated, Any

from daari_mlx.cli.options.values import read_template_config
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.option import Option, number

Force = Annotated[bool, Option("Replace what an earlier run made there.")]
Json = Annotated[bool, Option("Print the result as JSON.", flags=("--json",))]
GraphArgument = Annotated[str, Option("A graph: a folder or USER/REPO[@REVISION].", "GRAPH", by_place=True)]
GraphPath = Annotated[str, Option("The folder to write the graph to.", "FOLDER")]
MaxBytes = Annotated[
    int | None, number("The most bytes that the graph may have, whatever the data; 9 MB by default.", 1)
]
Number = Annotated[int, number("How many prompts, from the beginning of the data.", 1, flags=("-n",))]
SystemPrompt = Annotated[str | None, Option("System prompt to be used for the chat template.", "TEXT")]
ChatTemplateConfig = Annotated[
    dict[str, Any] | None,
    Option("Further variables for the chat template, as a JSON object.", "JSON", read=read_template_config),
]
ExtraEos = Annotated[list[str] | None, Option("A further token that ends the answer; repeat it for several.", "TOKEN")]


def add_eos_tokens(tokenizer: Any, tokens: list[str]) -> None:
    """Let each of ``tokens`` (a token's text, or its id) end an answer too.

    Raises:
        DaariError: the tokenizer has no such token.
    """
    known = set(tokenizer.get_vocab().values()) if tokens else set()
    for token in tokens:
        found = int(token) if token.isdecimal() else tokenizer.convert_tokens_to_ids(token)
        unknown = found is None or (found == tokenizer.unk_token_id and token not in (str(found), tokenizer.unk_token))
        if unknown or found not in known:
            raise DaariError(
                f"--extra-eos-token {token!r} is not a token of this tokenizer: give its text as one token, or its id."
            )
        tokenizer.add_eos_token(str(found))
