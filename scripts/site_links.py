"""For mkdocs: links out of docs/ go to the repository, where the page itself is a file among others there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OUT = re.compile(r"\]\(\.\./([^)#\s]+)(#[^)\s]*)?\)")


def repository() -> str:
    """Where the project's files are shown on the web, without a slash at the end."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        return str(tomllib.load(file)["project"]["urls"]["Repository"]).rstrip("/")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page with links such as ``../tests/CONTRACT.md`` made absolute; called by mkdocs for each page."""

    def absolute(found: re.Match[str]) -> str:
        picture = found[1].endswith((".png", ".svg"))  # itself, not the page that shows it
        kind = "raw" if picture else "blob"
        return f"]({repository()}/{kind}/main/{found[1]}{found[2] or ''})"

    return OUT.sub(absolute, markdown)
