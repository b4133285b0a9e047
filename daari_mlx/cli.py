"""The command line: words → calls. Each command is a call or two that a notebook could make."""

from __future__ import annotations

import typer

from daari_mlx import (
    __version__,
    cli_annotate,
    cli_bench,
    cli_decode,
    cli_graph,
    cli_hub,
    cli_inspect,
    cli_merge,
    cli_plot,
    cli_tier,
)
from daari_mlx.shell import Command

app = typer.Typer(
    name="daari-mlx",
    help="Faster decoding for mlx-lm without training: a graph of the teacher's hidden states drafts its tokens.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: instant, and the same in a pipe
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"daari-mlx {__version__}")
        raise typer.Exit


@app.callback()
def _about(
    version: bool = typer.Option(
        False, "--version", is_eager=True, callback=_print_version, help="Print the version and exit."
    ),
) -> None:
    pass


for _command in (
    cli_graph.compile,
    cli_graph.extract,
    cli_decode.generate,
    cli_decode.chat,
    cli_annotate.annotate,
    cli_bench.bench,
    cli_merge.merge,
    cli_inspect.inspect,
    cli_plot.plot,
    cli_bench.probe,
    cli_tier.tier,
    cli_hub.push,
    cli_hub.pull,
):
    app.command(cls=Command)(_command)


def main() -> None:
    """The console script; ends the process with the exit status."""
    app(prog_name="daari-mlx")
