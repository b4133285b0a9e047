"""docs/cli.md is what the command line says; every option says what it is, the same one in the same words."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import make_cli_docs
import pytest
import typer

from daari_mlx.cli.main import app

SCRIPTS = Path(make_cli_docs.__file__).parent
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
OTHER_MEANING = {  # options that are another thing in some commands: how many texts there may be
    "--data": 2,  # rows of a set, or text of one's own to ask a graph along
    "--model": 2,  # the teacher, or whose words a map shows
    "--device": 3,  # of a replay, of the verdict on a graph, or of a picture
    "--workdir": 2,  # where to extract to, or a finished extraction
    "--max-tokens": 4,  # of an answer that is given, or served; that is learnt from; that a tier is measured on
    "--seed": 3,  # of compiling, of sampling, of a benchmark
    "--json": 2,  # one result, or a line a round
    "--drafter": 2,  # a replay knows more of them
    "--prompt": 2,  # what is answered, or what stands for --data
    "--out": 4,  # a record, a folder, a picture, or rows with answers
    "--concurrency": 2,  # what is measured, or how many rows share a forward
    "--prefill-step-size": 2,  # of one answer, or between the rounds of many
    "--graph-path": 2,  # of a graph that is made, or fetched
}


def options() -> list[tuple[str, Any]]:
    return [(name, param) for name, command in COMMANDS.items() for param in command.params]


def test_the_page_is_what_the_command_line_says() -> None:
    made_with = re.search(r"<!-- typer (\S+) -->", make_cli_docs.PAGE.read_text(encoding="utf-8"))
    assert made_with is not None
    if made_with[1] != make_cli_docs.typer_version():
        pytest.skip(f"the page was made with typer {made_with[1]}; typer {version('typer')} lays help out otherwise")
    stale = make_cli_docs.difference(make_cli_docs.PAGE.read_text(encoding="utf-8"))
    assert not stale, f"docs/cli.md is stale: run {make_cli_docs.COMMAND}\n{stale}"


def test_the_page_is_the_same_on_every_terminal() -> None:
    pages = [
        subprocess.run(
            [sys.executable, "-c", "import make_cli_docs, sys; sys.stdout.write(make_cli_docs.page())"],
            env={**os.environ, "PYTHONPATH": str(SCRIPTS), "PYTHONIOENCODING": "utf-8", **terminal},
            capture_output=True,
            check=True,
        ).stdout
        for terminal in ({"COLUMNS": "40", "TERM": "dumb"}, {"COLUMNS": "200", "FORCE_COLOR": "1"})
    ]
    assert pages[0] == pages[1] and b"\x1b" not in pages[0]
    text = pages[0].decode()
    assert all(f"## daari-mlx {name}\n" in text for name in COMMANDS)
    fenced = [block for kind, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.M) if not kind]
    assert len(fenced) == len(COMMANDS) + 1
    assert max(len(line) for block in fenced for line in block.splitlines()) <= make_cli_docs.WIDTH


def test_a_page_that_is_stale_is_told_with_the_command_that_mends_it(tmp_path: Path) -> None:
    page = tmp_path / "cli.md"
    check = f"import make_cli_docs as m, pathlib, sys; m.PAGE = pathlib.Path({str(page)!r}); sys.exit(m.main())"

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", check, *args]
        return subprocess.run(command, env={**os.environ, "PYTHONPATH": str(SCRIPTS)}, capture_output=True, text=True)

    assert run("--check").returncode == 1
    assert run().returncode == 0 and run("--check").returncode == 0
    page.write_text(page.read_text().replace("Print the version", "Print nothing"))
    told = run("--check")
    assert told.returncode == 1 and "-  --version   Print nothing" in told.stderr
    assert f"run {make_cli_docs.COMMAND}" in told.stderr


def test_every_command_and_every_option_says_what_it_is() -> None:
    for name, command in COMMANDS.items():
        assert command.help.split("\n")[0].endswith("."), name
    for name, param in options():
        text = getattr(param, "help", None) or ""
        assert text[:1].isupper() and text.rstrip(")]").rstrip().endswith((".", ")")), (name, param.name, text)


def test_the_same_option_reads_the_same_everywhere() -> None:
    texts: dict[str, set[str]] = defaultdict(set)
    for _, param in options():
        for flag in param.opts:
            if flag.startswith("--"):
                texts[flag].add(f"{param.metavar}: {param.help}")
    for flag, told in texts.items():
        count = OTHER_MEANING.get(flag, 1)
        assert len(told) <= count, f"{flag}: one text for one meaning; another meaning goes into OTHER_MEANING: {told}"


def test_what_takes_a_value_names_its_kind() -> None:
    """``<int range>`` and the like are typer's words, not a user's."""
    assert re.findall(r"^  -.*<(?:int|float|str|text)[^>]*>.*$", make_cli_docs.page(), re.MULTILINE | re.I) == []
