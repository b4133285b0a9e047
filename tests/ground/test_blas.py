"""Which BLAS MLX multiplies with on Linux: the loader itself is asked, each time in a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from daari_mlx.ground import blas

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux needs another BLAS")

REPORT = """
import json
{first}
import daari_mlx
import mlx.core as mx
import numpy as np

rng = np.random.default_rng(0)
a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((33, 200), (200, 70)))
product = np.array(mx.matmul(mx.array(a), mx.array(b), stream=mx.cpu))
with open("/proc/self/maps") as maps:
    mapped = sorted({{line.split()[-1] for line in maps if "openblas" in line}})
print(json.dumps(dict(
    status=daari_mlx.ground.blas.status()._asdict(),
    error=float(np.abs(product - a.astype(np.float64) @ b).max()),
    mapped=mapped,
)))
"""


def _report(tmp_path: Path, wish: str | None = None, first: str = "", **more: str) -> dict[str, Any]:
    """What a new process says of its BLAS; ``bound`` is where the loader bound MLX's ``cblas_sgemm``."""
    environment = {key: value for key, value in os.environ.items() if key != "DAARI_MLX_BLAS"}
    environment |= {"LD_DEBUG": "bindings", "LD_DEBUG_OUTPUT": str(tmp_path / "ld"), **more}
    if wish is not None:
        environment["DAARI_MLX_BLAS"] = wish
    done = subprocess.run(
        [sys.executable, "-c", REPORT.format(first=first)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (log,) = tmp_path.glob("ld.*")
    bound = re.findall(r"libmlx\.so \[0\] to (\S+) \[0\]: normal symbol `cblas_sgemm'", log.read_text())
    report: dict[str, Any] = json.loads(done.stdout)
    return report | {"bound": Path(bound[-1]).name if bound else None}


@pytest.fixture(scope="module")
def openblas(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The report of a process that found an OpenBLAS on its own."""
    report = _report(tmp_path_factory.mktemp("openblas"))
    if not report["status"]["loaded"]:
        pytest.skip(f"no OpenBLAS here: {report['status']['reason']}")
    return report


def test_mlx_multiplies_with_the_openblas_that_is_reported(openblas: dict[str, Any]) -> None:
    status = openblas["status"]
    assert re.match(r"OpenBLAS \d+\.\d+\.\d+ \(\w+\)$", status["name"])
    assert status["reason"] == ""
    assert openblas["bound"] == Path(status["path"]).name
    assert any(Path(path).samefile(status["path"]) for path in openblas["mapped"])
    assert openblas["error"] < 1e-3


def test_off_leaves_mlx_with_its_own(openblas: dict[str, Any], tmp_path: Path) -> None:
    report = _report(tmp_path, "off")
    assert report["status"] == {
        "name": "MLX's own",
        "path": None,
        "loaded": False,
        "reason": "DAARI_MLX_BLAS=off",
    }
    assert report["bound"] != openblas["bound"]
    assert Path(openblas["status"]["path"]).name not in map(os.path.basename, report["mapped"])
    assert report["error"] < 1e-3


def test_a_library_can_be_named(openblas: dict[str, Any], tmp_path: Path) -> None:
    path = openblas["status"]["path"]
    report = _report(tmp_path, path)
    assert report["status"] == openblas["status"]
    assert report["bound"] == Path(path).name


def test_mlx_imported_first_is_too_late(tmp_path: Path) -> None:
    report = _report(tmp_path, first="import mlx.core")
    assert not report["status"]["loaded"]
    assert "mlx.core was imported first" in report["status"]["reason"]
    assert report["error"] < 1e-3


@pytest.mark.parametrize(
    ("library", "complaint"),
    [
        ("/nowhere/libopenblas.so", "No such file"),
        ("libm.so.6", "has no cblas_sgemm"),
        (__file__, "invalid ELF header"),
    ],
)
def test_a_library_that_is_none_is_said_and_does_no_harm(tmp_path: Path, library: str, complaint: str) -> None:
    report = _report(tmp_path, library)
    assert not report["status"]["loaded"]
    assert complaint in report["status"]["reason"]
    assert report["error"] < 1e-3


def test_a_temporary_folder_that_cannot_be_written_does_no_harm(tmp_path: Path) -> None:
    report = _report(tmp_path, TMPDIR="/nowhere")
    assert report["status"]["loaded"] or "/nowhere" in report["status"]["reason"]
    assert report["error"] < 1e-3


def test_no_folder_is_left_behind(openblas: dict[str, Any], tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    assert _report(tmp_path, openblas["status"]["path"], TMPDIR=str(scratch))["status"]["loaded"]
    assert list(scratch.iterdir()) == []


def test_the_number_of_threads_is_the_users(openblas: dict[str, Any]) -> None:
    code = (
        "import ctypes, os, daari_mlx\n"
        "threads = ctypes.CDLL(None).openblas_get_num_threads()\n"
        "print(threads, os.environ.get('OMP_NUM_THREADS'), os.environ.get('OPENBLAS_NUM_THREADS'))"
    )
    free = {key: value for key, value in os.environ.items() if "NUM_THREADS" not in key}
    for given, said in (
        ({"OMP_NUM_THREADS": "1"}, "1 1 None"),
        ({"OPENBLAS_NUM_THREADS": "1"}, "1 None 1"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", code], env=free | given, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == said


@pytest.mark.parametrize("given", [{}, {"OMP_NUM_THREADS": "4"}, {"OPENBLAS_NUM_THREADS": "4"}])
def test_processes_side_by_side_share_the_cores_unless_the_user_chose(
    openblas: dict[str, Any], given: dict[str, str]
) -> None:
    code = (
        "import ctypes, daari_mlx\n"
        "from daari_mlx import blas\n"
        "everything = ctypes.CDLL(None)\n"
        "everything.openblas_set_num_threads(4)\n"
        "for processes in (1, 2, 9):\n"
        "    blas.share(processes)\n"
        "    print(everything.openblas_get_num_threads(), end=' ')"
    )
    free = {key: value for key, value in os.environ.items() if "NUM_THREADS" not in key}
    done = subprocess.run([sys.executable, "-c", code], env=free | given, capture_output=True, text=True, check=True)
    assert done.stdout.split() == (["4", "4", "4"] if given else ["4", "2", "1"])


class _Function:
    """Stands for a function of a C library that returns bytes."""

    def __init__(self, value: str) -> None:
        self.restype: Any = None
        self.value = value

    def __call__(self) -> bytes:
        return self.value.encode()


def _library(config: str) -> Any:
    functions = {"cblas_sgemm": _Function(""), "openblas_get_config": _Function(config)}
    return type("Library", (), functions | {"openblas_get_corename": _Function("Haswell")})()


def test_a_build_for_one_processor_is_used_only_when_it_is_named() -> None:
    library = _library("OpenBLAS 0.3.31 NO_AFFINITY SKYLAKEX MAX_THREADS=4")
    assert blas._checked_name(library, "lib.so", named=True) == "OpenBLAS 0.3.31 (Haswell)"
    with pytest.raises(OSError, match="built for one kind of processor"):
        blas._checked_name(library, "lib.so", named=False)


@pytest.mark.parametrize("named", [True, False])
def test_64_bit_integers_are_refused(named: bool) -> None:
    library = _library("OpenBLAS 0.3.31 USE64BITINT DYNAMIC_ARCH NO_AFFINITY Haswell MAX_THREADS=4")
    with pytest.raises(OSError, match="64-bit integers"):
        blas._checked_name(library, "lib.so", named=named)


def test_an_mlx_that_is_not_the_cpu_wheel_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mlx").mkdir()
    monkeypatch.delitem(sys.modules, "mlx", raising=False)
    monkeypatch.delitem(sys.modules, "mlx.core", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(OSError, match="not the mlx-cpu wheel"):
        blas._prefer("")
