"""The commands that send a graph to the Hub and fetch one: push and pull."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from daari_mlx.cli.options import words
from daari_mlx.cli.options.command import takes
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.legible import fold
from daari_mlx.ground.option import Option
from daari_mlx.show import report

Source = Annotated[
    str,
    Option("The Hub repository; USER/REPO@REVISION takes a branch, tag or commit.", "USER/REPO", by_place=True),
]
PulledPath = Annotated[
    str | None, Option("The folder to write the graph to.", "FOLDER", shown="one of the repository's name, here")
]
BaseModel = Annotated[
    str | None,
    Option("The teacher's name on the Hub.", "USER/REPO", shown="where it was loaded from, if that is on the Hub"),
]
License = Annotated[str | None, Option("The licence for the card, in the Hub's words, e.g. apache-2.0.", "NAME")]
Results = Annotated[
    list[str] | None,
    Option("Records of daari-mlx bench --out: those of this graph go into the card. Repeat it for several.", "FILE"),
]
Yes = Annotated[bool, Option("Do not ask: what the graph holds may leave this machine.", flags=("--yes", "-y"))]


@takes()
def push(
    graph: words.GraphArgument,
    repo: Annotated[str, Option("The Hub repository; a push creates it.", "USER/REPO", by_place=True)],
    public: Annotated[bool, Option("Let everybody read it; without this, only its owners can.")] = False,
    base_model: BaseModel = None,
    license: License = None,
    results: Results = None,
    message: Annotated[str, Option("What the commit is called.", "TEXT")] = "A daari-mlx graph",
    yes: Yes = False,
    as_json: words.Json = False,
) -> None:
    """Send a graph to the Hugging Face Hub. Private unless told otherwise; no path or name of this machine goes along.

    A graph holds the answers it was compiled from, so this asks before anything is sent.
    """
    from daari_mlx.share.publish import prepare
    from daari_mlx.share.publish import push as send

    made = prepare(graph, repo, public=public, base_model=base_model, license=license, results=results or ())
    report.note(publication_text(made, graph))
    if not yes:
        if not at_terminal():
            raise DaariError("Nothing was sent: nobody is there to ask. Give --yes if this text may leave the machine.")
        if not typer.confirm("Send it?", err=True):
            report.note("Nothing was sent.")
            raise typer.Exit(1)
    sent = send(made, message)
    if as_json:
        values = {"url": sent.url, "commit": sent.commit, "private": sent.private, "bytes": made.size}
        print(report.as_json({"repo": made.repo.name, **values, "base_model": made.base_model}))
        return
    seen = f"{sent.url} ({'private' if sent.private else 'public'})"
    name = f"--graph {made.repo.name}"
    print(report.table([("pushed to", seen), ("use it", name), ("this commit", f"{name}@{sent.commit}")]))


def at_terminal() -> bool:
    """Whether there is somebody to ask."""
    return sys.stdin.isatty()


def publication_text(made: Any, graph: str) -> str:
    """What a push would send, and what of it is the user's own text.

    Args:
        made: a :class:`daari_mlx.share.publish.Publication`.
        graph: the folder, as the user named it.
    """
    seen = "public: everybody can read it" if made.public else "private"
    text = (
        f"{made.answers:,} answers, {made.tokens:,} tokens: whoever has the teacher's tokenizer can read them, and "
        "what they quote of your prompts"
    )
    about = [
        ("push", f"{graph}, {report.size_text(made.size)}"),
        ("to", f"{made.repo} ({seen}{', new' if made.create else ''})"),
        ("your text", text if made.tokens else "token counts of your answers, and no answer as a whole"),
        ("teacher", f"named as {made.base_model}" if made.base_model else "not named; --base-model names it"),
        ("stays here", ", ".join(made.left_out)),
    ]
    return report.table(row for name, value in about for row in _lines(name, value))


def _lines(name: str, value: str) -> Iterator[tuple[str, str]]:
    """Rows of a table that fit 80 columns."""
    for number, line in enumerate(fold(value, 66)):
        yield ("" if number else name), line.rstrip()


@takes()
def pull(repo: Source, graph_path: PulledPath = None, force: words.Force = False, as_json: words.Json = False) -> None:
    """Fetch a graph from the Hugging Face Hub into a folder. Checked as any graph, whole or not at all.

    --graph takes USER/REPO as well, without a folder.
    """
    from daari_mlx.share.publish import pull as fetch
    from daari_mlx.teacher.fingerprint import describe

    pulled = fetch(repo, graph_path, replace=force)
    if as_json:
        print(report.as_json(pulled))
        return
    fetched = f"{pulled['graph']}, {report.size_text(pulled['bytes'])}"
    origin = f"{pulled['repo']}, commit {pulled['commit']}"
    print(report.table([("graph", fetched), ("from", origin), ("teacher", describe(pulled["teacher"]))]))
