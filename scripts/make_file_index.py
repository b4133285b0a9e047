"""Write the last chapter of ARCHITECTURE.md: every file of the package with the first line of its docstring.

python scripts/make_file_index.py           # writes the chapter
python scripts/make_file_index.py --check   # exit status 1 where it tells other things
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "ARCHITECTURE.md"
PACKAGE = ROOT / "daari_mlx"
COMMAND = "python scripts/make_file_index.py"
HEAD = f"""## Every file

What each is for, wing by wing, the lowest first. To change a rule or a number, look here; to add something, look above.
`{COMMAND}` writes this chapter from the first lines of the docstrings.
"""


def wings() -> list[str]:
    """Names of the wings, the lowest first, as the contract of layers has them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (layers,) = (c["layers"] for c in project["tool"]["importlinter"]["contracts"] if c["type"] == "layers")
    return list(reversed(layers))


def first_line(path: Path) -> str:
    """Of a file's docstring, without its full stop; a line that goes on is followed to the end of its sentence."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(docstring.split("\n\n")[0].split())
    said = re.sub(r":mod:`daari_mlx\.([a-z_]+)\.([a-z_]+)`", r"`\1/\2.py`", paragraph.split(". ")[0].rstrip("."))
    return said.replace("``", "`")


def chapter() -> str:
    """The whole chapter, as Markdown."""
    lines = [HEAD]
    for wing in wings():
        folder = PACKAGE / wing
        lines += [f"**`{wing}/`**: {first_line(folder / '__init__.py')}", ""]
        files = [path for path in sorted(folder.rglob("*.py")) if path.name != "__init__.py"]
        lines += [f"- `{path.relative_to(folder)}`: {first_line(path)}" for path in files]
        lines.append("")
    return "\n".join(lines)


def page() -> str:
    """ARCHITECTURE.md with this chapter at its end."""
    before, _, _ = PAGE.read_text(encoding="utf-8").partition(HEAD.splitlines()[0] + "\n")
    return before.rstrip("\n") + "\n\n" + chapter()


def main() -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 where the chapter is stale")
    check, made = parser.parse_args().check, page()
    if check:
        stale = PAGE.read_text(encoding="utf-8") != made
        if stale:
            print(f"ARCHITECTURE.md is stale: run {COMMAND}", file=sys.stderr)
        return int(stale)
    PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
