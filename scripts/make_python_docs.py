"""Write docs/python.md: the public names with their signatures and docstrings.

python scripts/make_python_docs.py           # writes docs/python.md
python scripts/make_python_docs.py --check   # exit status 1 where that file tells other things
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path

import daari_mlx

PAGE = Path(__file__).resolve().parent.parent / "docs" / "python.md"
COMMAND = "python scripts/make_python_docs.py"
HEAD = f"""# Python

The public names of `daari_mlx`. Import it before `mlx_lm`: on Linux it brings a BLAS that is many times faster than
the wheel's own. This page is made of the docstrings: `{COMMAND}` writes it anew.
"""
ROLE = re.compile(r":(?:class|func|meth|mod|data|attr):`~?([^`]+)`")


def page() -> str:
    """The whole page, as Markdown."""
    return "\n".join([HEAD, *(_entry(name) for name in daari_mlx.__all__)])


def _entry(name: str) -> str:
    value = getattr(daari_mlx, name)
    parts = [f"## {name}\n", _signature(name, value), _prose(value)]
    if inspect.isclass(value):
        for method, function in _methods(value):
            parts += [f"### {name}.{method}\n", _signature(method, function), _prose(function)]
    return "\n".join(parts)


def _methods(value: type) -> list[tuple[str, Callable[..., object]]]:
    return [
        (name, function)
        for name, function in vars(value).items()
        if inspect.isfunction(function) and not name.startswith("_") and function.__doc__
    ]


def _signature(name: str, value: object) -> str:
    """The call, one parameter a line where it is long; a class that is only made for users has none."""
    try:
        signature = inspect.signature(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""
    parameters = [p for p in signature.parameters.values() if p.name != "self"]
    shown = [_parameter(p) for p in parameters]
    first = next((k for k, p in enumerate(parameters) if p.kind is inspect.Parameter.KEYWORD_ONLY), None)
    if first is not None:
        shown.insert(first, "*")
    line = f"{name}({', '.join(shown)})"
    if len(line) > 100:
        line = f"{name}(\n" + "".join(f"    {one},\n" for one in shown) + ")"
    return f"```python\n{line}\n```\n"


def _parameter(parameter: inspect.Parameter) -> str:
    text = str(parameter.replace(default=inspect.Parameter.empty)).replace("'", "")
    return text if parameter.default is inspect.Parameter.empty else f"{text} = {parameter.default!r}"


def _prose(value: object) -> str:
    """The docstring as Markdown: sections in bold, their entries as a list."""
    lines: list[str] = []
    for line in (inspect.getdoc(value) or "").splitlines():
        line = ROLE.sub(lambda found: f"`{found[1].rsplit('.', 1)[-1]}`", line).replace("``", "`")
        if re.fullmatch(r"(Args|Attributes|Returns|Yields|Raises|Example|Examples):", line):
            lines += ["", f"**{line[:-1]}**", ""]
        elif entry := re.fullmatch(r"    (\*{0,2}\w[\w, *]*): (.*)", line):
            lines.append(f"- `{entry[1]}`: {entry[2]}")
        else:
            lines.append("  " + line.strip() if line.startswith("    ") else line)
    return "\n".join(line.rstrip() for line in lines).strip() + "\n"


def main() -> int:
    """Write the page, or check it."""
    parser = argparse.ArgumentParser(description="Write docs/python.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 where the page is stale")
    if not parser.parse_args().check:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page():
        return 0
    print(f"{PAGE.name} is stale: run {COMMAND}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
