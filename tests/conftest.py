"""What the tests share: the tiny teacher of the repository, and what is used only where it is at hand."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

import daari_mlx  # noqa: F401  before any test imports MLX, so that the tests run on the BLAS that users get

if TYPE_CHECKING:
    from graphs import Compiled

ROOT = Path(__file__).resolve().parent.parent

pytest_plugins = ["limits"]

# The same examples every time; new ones with --hypothesis-profile fresh. No timing is asserted anywhere.
settings.register_profile("ci", deadline=None, max_examples=40, derandomize=True, database=None)
settings.register_profile("fresh", deadline=None, max_examples=300, print_blob=True)
settings.load_profile("ci")


@pytest.fixture(autouse=True, scope="session")
def own_environment(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Measurements of this machine go to a folder of the test run, never to the user's."""
    os.environ["DAARI_MLX_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    # read when scikit-learn is first imported: on a busy machine several threads of k-means spin for one another
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def tiny_teacher_path() -> Path:
    """The folder of the seeded teacher that lies in the repository."""
    return ROOT / "tests" / "tiny_teacher"


@pytest.fixture(scope="session")
def tiny_teacher(tiny_teacher_path: Path) -> tuple[Any, Any]:
    """(model, tokenizer) of the tiny teacher, loaded once: leave its weights as they are."""
    return _load(tiny_teacher_path)


@pytest.fixture(scope="session")
def compiled(
    tiny_teacher: tuple[Any, Any], tiny_teacher_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Compiled:
    """The tiny teacher with a graph of its own answers, compiled once: leave the files as they are."""
    from graphs import compile_tiny

    return compile_tiny(*tiny_teacher, tiny_teacher_path, tmp_path_factory.mktemp("compiled"))


@pytest.fixture(scope="session")
def demo_teacher_path() -> Path:
    """The folder of SmolLM2-135M-Instruct in float32; mark such tests with ``teacher``."""
    folder = os.environ.get("DAARI_DEMO_TEACHER")
    if not folder:
        pytest.skip("DAARI_DEMO_TEACHER names no folder with the demo teacher (scripts/test fetches it)")
    if not (Path(folder) / "config.json").is_file():
        pytest.fail(f"DAARI_DEMO_TEACHER={folder} holds no model")
    return Path(folder)


@pytest.fixture(scope="session")
def demo_teacher(demo_teacher_path: Path) -> tuple[Any, Any]:
    """(model, tokenizer) of the demo teacher, loaded once: leave its weights as they are."""
    return _load(demo_teacher_path)


@pytest.fixture(scope="session")
def shared_path() -> Path:
    """A folder with public data sets under ``data/``: DAARI_SHARED, or ``shared`` beside the project."""
    folder = Path(os.environ.get("DAARI_SHARED") or ROOT.parent / "shared")
    if not (folder / "data").is_dir():
        pytest.skip(f"{folder} has no data sets (DAARI_SHARED names the folder)")
    return folder


def _load(folder: Path) -> tuple[Any, Any]:
    from mlx_lm import load

    model, tokenizer = load(str(folder))[:2]
    return model, tokenizer
