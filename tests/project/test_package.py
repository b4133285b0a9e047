"""What `import daari_mlx` does and, above all, does not do."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import entry_points, version

import pytest

import daari_mlx

HEAVY = ("mlx", "mlx_lm", "numpy", "sklearn", "scipy", "transformers", "huggingface_hub", "typer")


def _run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_brings_nothing_heavy() -> None:
    loaded = json.loads(_run("import json, sys, daari_mlx; print(json.dumps(sorted(sys.modules)))"))
    assert [name for name in HEAVY if name in loaded] == []


def test_import_prefers_a_blas_before_a_public_name_brings_mlx() -> None:
    code = (
        "import sys, daari_mlx\n"
        "before = daari_mlx.ground.blas.prefer.cache_info().currsize\n"
        "daari_mlx.generate\n"
        "print(before, 'mlx.core' in sys.modules)"
    )
    assert _run(code).split() == ["1", "True"]


@pytest.mark.parametrize("name", daari_mlx.__all__)
def test_every_public_name_resolves(name: str) -> None:
    assert name in dir(daari_mlx)
    value = getattr(daari_mlx, name)
    assert value.__name__ == name
    assert value.__module__.startswith("daari_mlx.")
    assert value.__doc__


def test_public_names_are_listed_once() -> None:
    assert daari_mlx.__all__ == sorted(daari_mlx._HOME)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'speculate'"):
        daari_mlx.speculate  # noqa: B018


def test_version_and_command_are_those_of_the_distribution() -> None:
    assert version("daari-mlx") == daari_mlx.__version__
    (command,) = entry_points(group="console_scripts", name="daari-mlx")
    assert command.value == "daari_mlx.cli.start:main"
    assert callable(command.load())
