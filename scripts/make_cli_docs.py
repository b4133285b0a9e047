"""Write docs/cli.md: the help of every command, as the command line itself prints it.

python scripts/make_cli_docs.py           # writes docs/cli.md
python scripts/make_cli_docs.py --check   # exit status 1 where that file tells other things
"""

from __future__ import annotations

import argparse
import difflib
import sys
from importlib.metadata import version
from pathlib import Path

import typer
from typer.testing import CliRunner

from daari_mlx.cli.main import app

PAGE = Path(__file__).resolve().parent.parent / "docs" / "cli.md"
COMMAND = "python scripts/make_cli_docs.py"
WIDTH = 100  # columns, whatever terminal this runs in

HEAD = f"""# The command line

What `daari-mlx --help` and `daari-mlx COMMAND --help` print. This page is generated: `{COMMAND}`
writes it anew.

"""


EXAMPLES = {  # the page begins each command with one
    "compile": "daari-mlx compile --model MODEL --data train.jsonl --graph-path my.graph",
    "extract": "daari-mlx extract --model MODEL --data big.jsonl --workdir work",
    "generate": 'daari-mlx generate --model MODEL --graph my.graph --prompt "Where is my parcel?"',
    "chat": "daari-mlx chat --model MODEL --graph my.graph",
    "annotate": "daari-mlx annotate --model MODEL --graph my.graph --data test.jsonl --idx 5",
    "bench": "daari-mlx bench --model MODEL --graph my.graph --data test.jsonl -n 30 --out bench.jsonl",
    "learn": "daari-mlx learn my.graph",
    "merge": "daari-mlx merge my.graph other.graph --graph-path both.graph",
    "inspect": "daari-mlx inspect my.graph --device all",
    "plot": "daari-mlx plot speed bench.jsonl --out speed.png",
    "probe": "daari-mlx probe --model MODEL",
    "tier": "daari-mlx tier --model MODEL --data train.jsonl --bits 4 --drop-layers auto --out my.tier",
    "server": "daari-mlx server --model MODEL --graph my.graph --port 8080",
    "map": "daari-mlx map --model MODEL --graph my.graph --data in.jsonl --out out.jsonl",
    "push": "daari-mlx push my.graph user/my-graph --results bench.jsonl",
    "pull": "daari-mlx pull user/my-graph --graph-path my.graph",
    "version": "daari-mlx version --json",
}


def typer_version() -> str:
    """The version that lays the help out, without its last number."""
    return ".".join(version("typer").split(".")[:2])


def page() -> str:
    """The whole page, as Markdown."""
    names = list(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    links = " · ".join(f"[{name}](#daari-mlx-{name})" for name in names)
    sections = [_section(), *(_section(name) for name in names)]
    return f"<!-- typer {typer_version()} -->\n{HEAD}{links}\n\n" + "\n".join(sections)


def _section(*command: str) -> str:
    title = " ".join(["daari-mlx", *command])
    shown = CliRunner().invoke(
        app, [*command, "--help"], prog_name="daari-mlx", terminal_width=WIDTH, catch_exceptions=False
    )
    text = "\n".join(line.rstrip() for line in shown.stdout.strip().splitlines())
    example = f"```bash\n{EXAMPLES[command[0]]}\n```\n\n" if command else ""
    return f"## {title}\n\n{example}```\n{text}\n```\n"


def difference(found: str) -> str:
    """How the page that is there differs from what the command line says now; empty where it does not."""
    lines = difflib.unified_diff(
        found.splitlines(), page().splitlines(), "docs/cli.md", "the command line", lineterm=""
    )
    return "\n".join(lines)


def main() -> int:
    """Write the page, or check it."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--check", action="store_true", help="Write nothing: exit status 1 where the page is stale.")
    if parser.parse_args().check:
        stale = difference(PAGE.read_text(encoding="utf-8") if PAGE.exists() else "")
        if stale:
            print(f"{stale}\n\ndocs/cli.md is not what the command line says: run {COMMAND}", file=sys.stderr)
        return int(bool(stale))
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
