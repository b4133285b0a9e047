"""version: what a report of a fault should have, and nothing personal."""

from __future__ import annotations

import json
import platform
from importlib.metadata import version
from pathlib import Path

from typer.testing import CliRunner

from daari_mlx.cli import main as cli


def test_versions_device_and_blas_are_told_to_people_and_to_programs() -> None:
    found = CliRunner().invoke(cli.app, ["version", "--json"])
    about = json.loads(found.stdout)
    assert about["versions"]["mlx-lm"] == version("mlx-lm") and about["python"] == platform.python_version()
    assert set(about) == {"versions", "python", "platform", "device", "blas"}
    text = CliRunner().invoke(cli.app, ["version"]).stdout
    told = {line.split(None, 1)[0]: line.split(None, 1)[1] for line in text.splitlines()}
    assert told == {**about["versions"], **{name: about[name] for name in ("python", "platform", "device", "blas")}}


def test_nothing_personal_is_told() -> None:
    text = CliRunner().invoke(cli.app, ["version", "--json"]).stdout
    assert str(Path.home()) not in text and platform.node() not in text
