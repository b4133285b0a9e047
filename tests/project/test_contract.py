"""The table of what decoding owes its users names tests for all of it, and only tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
LINES = [*range(1, 51)]
ROW = re.compile(r"^\| (\d+) \| (.+?) \| (.*) \|$")
NAME = re.compile(r"`(tests/\w+/test_\w+\.py)::(test_\w+)`")


def rows() -> dict[int, tuple[str, list[tuple[str, str]]]]:
    """Number of each line: what is owed, and (file, test) of each test named."""
    found = {}
    for line in (TESTS / "CONTRACT.md").read_text(encoding="utf-8").splitlines():
        if match := ROW.match(line):
            assert int(match[1]) not in found, f"line {match[1]} stands there twice"
            assert NAME.sub("", match[3]).strip() == "", f"line {match[1]} names something that is no test"
            found[int(match[1])] = (match[2], NAME.findall(match[3]))
    return found


def test_every_line_has_its_row() -> None:
    assert sorted(rows()) == LINES
    assert all(len(owed) > 20 for owed, _ in rows().values())


@pytest.mark.parametrize("line", LINES)
def test_the_tests_of_a_line_exist(line: int) -> None:
    named = rows()[line][1]
    assert named, f"line {line} has no test"
    for file, test in named:
        tree = ast.parse((TESTS.parent / file).read_text(encoding="utf-8"))
        assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, f"{file}::{test}"
