"""Execute the notebooks and keep their outputs, so that they can be read without being run.

python scripts/run_notebooks.py           # executes notebooks/*.ipynb in place
python scripts/run_notebooks.py --check   # exit status 1 where that would change more than pixels
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent
COMMAND = "python scripts/run_notebooks.py"
SECONDS = 300  # a cell may take
OWN = ("DAARI_MLX_GRAPH", "DAARI_MLX_RECORDS", "DAARI_MLX_PICTURES")  # what points a notebook at other files


def executed(path: Path) -> nbformat.NotebookNode:
    """The notebook as it is after a run of all cells, without what differs from run to run."""
    book = nbformat.read(path, as_version=4)
    client = NotebookClient(
        book,
        timeout=SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": str(ROOT)}},
        record_timing=False,
        coalesce_streams=True,
    )
    client.execute()
    for cell in book.cells:
        if cell.cell_type == "code":
            cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
    book.metadata.pop("language_info", None)  # names this Python
    return book


def without_pixels(book: nbformat.NotebookNode) -> list[Any]:
    """Sources and outputs, pictures left out."""
    return [(cell.source, [_told(output) for output in cell.get("outputs", [])]) for cell in book.cells]


def _told(output: dict[str, Any]) -> Any:
    data = {kind: text for kind, text in output.get("data", {}).items() if not kind.startswith("image/")}
    return output.output_type, output.get("text"), data, "image/png" in output.get("data", {})


def main() -> int:
    """Execute all, or check them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 where a notebook is stale")
    check = parser.parse_args().check
    for name in OWN:
        os.environ.pop(name, None)
    stale = []
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        book = executed(path)
        if check:
            stale += [path.name] * (without_pixels(book) != without_pixels(nbformat.read(path, as_version=4)))
        else:
            nbformat.write(book, path)
    if stale:
        print(f"{', '.join(stale)}: not as executed; run {COMMAND}", file=sys.stderr)
    return bool(stale)


if __name__ == "__main__":
    sys.exit(main())
