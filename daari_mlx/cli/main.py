"""The command line: words → calls. Each command is a call or two that a notebook could make."""

from __future__ import annotations

import signal

import typer

from daari_mlx import __version__
from daari_mlx.cli import annotate, answer, bench, compile, hub, inspect, learn, map, merge, plot, server, tier
from daari_mlx.cli import version as versions
from daari_mlx.cli.shell import Command, interrupt, interrupts_unsaid, open_streams, terminate

app = typer.Typer(
    name="daari-mlx",
    help="Faster answers from a model of mlx-lm, with the same words: a graph of its hidden states drafts its tokens.",
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
    compile.compile,
    compile.extract,
    answer.generate,
    answer.chat,
    map.map,
    annotate.annotate,
    bench.bench,
    merge.merge,
    learn.learn,
    inspect.inspect,
    plot.plot,
    bench.probe,
    tier.tier,
    server.server,
    hub.push,
    hub.pull,
    versions.version,
):
    app.command(cls=Command)(_command)


def main() -> None:
    """Run the command line; ends the process with the exit status."""
    open_streams()  # before help is printed
    interrupts_unsaid()
    signal.signal(signal.SIGINT, interrupt)
    try:
        app(prog_name="daari-mlx")
    finally:  # all is told: what is left is Python's own end, which a further Ctrl-C may cut short
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if signal.getsignal(signal.SIGTERM) is terminate:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
