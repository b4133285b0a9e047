"""Linux: a real BLAS before MLX (one reason, one file).

The ``mlx-cpu`` wheel carries the reference BLAS, which multiplies matrices at about 4 GFLOP/s on one core.
The loader resolves ``cblas_sgemm`` to the first library in the global scope that has it, so an OpenBLAS that
is opened there before MLX takes the reference's place. It uses all cores unless ``OPENBLAS_NUM_THREADS`` or
``OMP_NUM_THREADS`` says otherwise; both stay as the user set them.

``DAARI_MLX_BLAS=off`` keeps MLX's own BLAS; a path (or a library name) uses that library and no other.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import NamedTuple

VARIABLE = "DAARI_MLX_BLAS"
# The PyPI package goes first: newer than what Debian 12 has, and on a Zen 3 with 2 cores faster at 4-8 rows.
PACKAGE = "ngsolve_openblas"
THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")  # what a user sets to choose the threads
SYSTEM_NAMES = ("libopenblasp.so.0", "libopenblas.so.0")  # Fedora's threaded build has a name of its own
ADVICE = "install `daari-mlx[cpu]`, or the system's package (Debian: libopenblas0-pthread)"


class Blas(NamedTuple):
    """Which BLAS multiplies MLX's matrices on the CPU, and why."""

    name: str
    """In words, e.g. ``"OpenBLAS 0.3.33 (Zen)"``, or ``"MLX's own"`` where nothing was loaded."""
    path: str | None
    """The library that was loaded, as the loader was asked for it; None where nothing was."""
    loaded: bool
    """True where a library was put before MLX's own."""
    reason: str
    """Why nothing was loaded; empty where something was."""


class _Unusable(OSError):
    """Why a library cannot be put before MLX's own; the loader's own errors are OSErrors too."""


@functools.cache
def prefer() -> Blas:
    """Put an OpenBLAS before MLX's own BLAS, once per process, where that helps; never raises.

    Must run before ``mlx.core`` is first imported, so ``import daari_mlx`` calls it.
    """
    try:
        return _prefer(os.environ.get(VARIABLE, "").strip())
    except OSError as error:
        return Blas("MLX's own", None, False, str(error))


def status() -> Blas:
    """What ``prefer`` did in this process."""
    return prefer()


def share(processes: int) -> None:
    """Leave each of so many processes of this machine its part of the cores, unless the user chose the threads.

    Threads of several OpenBLAS on the same cores wait for each other by spinning, which takes many times as long.
    """
    if processes > 1 and prefer().loaded and not any(os.environ.get(name) for name in THREADS):
        everything = ctypes.CDLL(None)
        if hasattr(everything, "openblas_set_num_threads"):  # a library that the user named may be another
            everything.openblas_set_num_threads(max(1, everything.openblas_get_num_threads() // processes))


def _prefer(wish: str) -> Blas:
    if not sys.platform.startswith("linux"):
        raise _Unusable("only MLX on Linux needs another BLAS")
    if wish.lower() == "off":
        raise _Unusable(f"{VARIABLE}=off")
    if "mlx.core" in sys.modules:
        raise _Unusable("mlx.core was imported first: import daari_mlx before it")
    wheel_libs = _wheel_libs()
    if wheel_libs is None:
        raise _Unusable("this MLX is not the mlx-cpu wheel, which alone has the reference BLAS")
    if wish:
        return _load(os.path.expanduser(wish), wheel_libs, named=True)
    reasons = []
    for candidate in _candidates():
        try:
            return _load(candidate, wheel_libs, named=False)
        except OSError as error:
            reasons.append(str(error))
    raise _Unusable(f"no OpenBLAS was usable ({'; '.join(reasons)}): {ADVICE}")


def _wheel_libs() -> str | None:
    """Where the mlx-cpu wheel keeps its reference BLAS; None for any other MLX (CUDA, built from source)."""
    spec = find_spec("mlx")
    for folder in (spec and spec.submodule_search_locations) or ():
        libs = os.path.join(os.path.dirname(folder), "mlx_cpu.libs")
        if os.path.isdir(libs) and any(name.startswith("libblas") for name in os.listdir(libs)):
            return libs
    return None


def _candidates() -> Iterator[str]:
    spec = find_spec(PACKAGE)  # found, not imported: the package would load itself and print what fails
    for folder in (spec and spec.submodule_search_locations) or ():
        names = sorted(name for name in os.listdir(folder) if name.startswith("libopenblas"))
        yield from (os.path.join(folder, name) for name in names)
    yield from SYSTEM_NAMES


def _load(path: str, wheel_libs: str, *, named: bool) -> Blas:
    """Open ``path``, see whether MLX can use it, and only then put it into the global scope."""
    library = _open(path, wheel_libs)
    name = _checked_name(library, path, named=named)
    # No look-up on disk: the loader knows an open library by the name it was opened with.
    ctypes.CDLL(library._name, mode=os.RTLD_NOLOAD | ctypes.RTLD_GLOBAL)
    return Blas(name, path, True, "")


def _open(path: str, wheel_libs: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(path)
    except OSError as error:
        if "libgfortran.so.5" not in str(error) or not os.path.isfile(path):
            raise
    # It wants libgfortran.so.5, which few machines have; the mlx-cpu wheel brings one under another name. The
    # loader looks beside a library ($ORIGIN) too, so open it through links in a folder where both lie.
    folder = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"daari-mlx-{os.urandom(8).hex()}")
    os.mkdir(folder, 0o700)  # fails where it exists, as tempfile would; importing tempfile costs 10 ms
    try:
        for name in os.listdir(wheel_libs):
            os.symlink(os.path.join(wheel_libs, name), os.path.join(folder, name))
            if name.startswith("libgfortran"):
                os.symlink(os.path.join(wheel_libs, name), os.path.join(folder, "libgfortran.so.5"))
        link = os.path.join(folder, os.path.basename(path))
        os.symlink(os.path.abspath(path), link)
        return ctypes.CDLL(link)
    finally:
        for name in os.listdir(folder):
            os.unlink(os.path.join(folder, name))
        os.rmdir(folder)


def _checked_name(library: ctypes.CDLL, path: str, *, named: bool) -> str:
    """The library's name in words; raises where MLX's calls would crash in it or miss it."""
    if not hasattr(library, "cblas_sgemm"):
        raise _Unusable(f"{path} has no cblas_sgemm")
    if not hasattr(library, "openblas_get_config"):
        return os.path.basename(path)
    library.openblas_get_config.restype = ctypes.c_char_p
    config = library.openblas_get_config().decode().split()  # e.g. OpenBLAS 0.3.33 DYNAMIC_ARCH Zen
    if "USE64BITINT" in config:
        raise _Unusable(f"{path} takes 64-bit integers, MLX passes 32-bit ones")
    if "DYNAMIC_ARCH" not in config and not named:
        # Its kernels are for one processor, and on an older one they end the process (illegal instruction).
        raise _Unusable(f"{path} is built for one kind of processor; name it in {VARIABLE} if it is this one")
    library.openblas_get_corename.restype = ctypes.c_char_p
    return f"{config[0]} {config[1]} ({library.openblas_get_corename().decode()})"
