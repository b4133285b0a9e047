"""Pages tell what is there: links lead somewhere, shown commands have their options, generated pages are current."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import make_cli_docs
import make_file_index
import make_python_docs
import pytest
import typer

from daari_mlx.cli.main import app

ROOT = Path(make_python_docs.__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*/README.md")])
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def _text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    heads = re.findall(r"^#+ (.*)$", FENCE.sub("", _text(page)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    dead = []
    for link in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", _text(page))):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name) if name else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in _anchors(target)):
            dead.append(link)
    assert not dead


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name != "cli.md"], ids=lambda page: page.relative_to(ROOT).as_posix()
)
def test_commands_have_the_options_that_pages_show(page: Path) -> None:
    """Fenced and inline, lines that go on included: the command line has every command and option that is shown."""
    assert not _wrong(_text(page))


def _wrong(text: str) -> list[str]:
    """Commands of a page that the command line does not have, or not with these options."""
    shown = [line for kind, block in FENCE.findall(text) if kind in ("", "bash") for line in block.split("\n")]
    joined = re.sub(r" *\\\n *", " ", "\n".join(shown))
    inline = re.findall(r"`((?:mlx\.launch [^`]*)?daari-mlx [^`]*)`", re.sub(r"\s+", " ", FENCE.sub("", text)))
    wrong = []
    for line in [*joined.split("\n"), *inline]:
        words = re.search(r"daari-mlx ([a-z][\w-]*)(.*)", line.partition(" #")[0])
        if words is None or line.lstrip().startswith(("Usage:", "|")):
            continue
        command = COMMANDS.get(words[1])
        known = set() if command is None else {flag for param in command.params for flag in param.opts}
        try:
            given = [word.partition("=")[0] for word in shlex.split(words[2]) if re.match(r"--?[a-z]", word)]
        except ValueError:  # a sentence with an apostrophe
            continue
        if command is None or set(given) - known - {"-h", "--help", "--version"}:
            wrong.append(line.strip())
    return wrong


def test_every_command_has_an_example_that_it_takes() -> None:
    assert {*make_cli_docs.EXAMPLES} >= {*COMMANDS}
    there = [f"```bash\n{line}\n```\n" for name, line in make_cli_docs.EXAMPLES.items() if name in COMMANDS]
    assert not _wrong("\n".join(there))


def test_the_page_of_python_is_made_of_the_docstrings() -> None:
    assert _text(make_python_docs.PAGE) == make_python_docs.page(), f"stale: run {make_python_docs.COMMAND}"


def test_the_readme_is_read_in_minutes() -> None:
    prose = FENCE.sub("", _text(ROOT / "README.md"))
    assert len(prose.split()) < 1200


def test_the_site_has_every_page() -> None:
    listed = set(re.findall(r"- (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    assert listed == {page.name for page in ROOT.glob("docs/*.md")}


def test_workflows_call_what_is_there() -> None:
    for workflow in (ROOT / ".github" / "workflows").glob("*.yml"):
        for script in re.findall(r"(?<![\w/.])((?:\.ci|scripts)/[\w.-]+)", workflow.read_text(encoding="utf-8")):
            assert (ROOT / script).is_file(), f"{workflow.name}: {script}"


def test_the_index_of_files_says_what_their_docstrings_say() -> None:
    assert _text(make_file_index.PAGE) == make_file_index.page(), f"stale: run {make_file_index.COMMAND}"


def test_every_hint_to_install_an_extra_is_that_of_the_readme() -> None:
    """The package is installed from a clone: `pip install '.[plot]'`."""
    files = [path for part in ("daari_mlx", "scripts") for path in sorted((ROOT / part).rglob("*.py"))]
    files += [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    found = {str(path.relative_to(ROOT)) for path in files if re.search(r"pip install\s+'?daari-", path.read_text())}
    assert found == set()
