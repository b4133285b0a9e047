"""The command that says what is installed and where it runs: version."""

from __future__ import annotations

import json
from typing import Any

from daari_mlx.cli.options import words
from daari_mlx.cli.options.command import takes


@takes()
def version(as_json: words.Json = False) -> None:
    """Print versions, the device and the BLAS, for a report of a fault."""
    about = _about()
    if as_json:
        print(json.dumps(about, indent=2))
        return
    for name, value in {**about.pop("versions"), **about}.items():
        print(f"{name:14}{value}")


def _about() -> dict[str, Any]:
    """Nothing of this machine's user, its folders or its name is in it."""
    import platform

    from daari_mlx.cost.probe import chip
    from daari_mlx.graph.artifact import versions
    from daari_mlx.ground import blas

    return {
        "versions": versions(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": chip(),
        "blas": blas.status().name,
    }
