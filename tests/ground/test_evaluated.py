"""Values that could not be computed are an error, never what happens to be in memory."""

from __future__ import annotations

import ast
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from daari_mlx.ground.evaluated import evaluated

PACKAGE = Path(__file__).resolve().parents[2] / "daari_mlx"


def test_a_computation_that_fails_raises() -> None:
    with pytest.raises(RuntimeError, match="factorization failed"):
        evaluated(mx.linalg.inv(mx.zeros((3, 3)), stream=mx.cpu))
    np.testing.assert_array_equal(evaluated(mx.arange(4) * 2), [0, 2, 4, 6])


def converted(source: str) -> list[int]:
    """The lines where NumPy converts an expression of MLX that is computed only within, where errors are swallowed."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and node.args]
    return [
        call.lineno
        for call in calls
        if ast.unparse(call.func) in ("np.array", "np.asarray")
        and {node.id for node in ast.walk(call.args[0]) if isinstance(node, ast.Name)} & {"mx", "greedy"}
    ]


def test_no_array_is_converted_where_it_is_made() -> None:
    assert converted("x = 1\ny = np.array(a.astype(mx.float32))") == [2]
    found = {path.name: lines for path in PACKAGE.rglob("*.py") if (lines := converted(path.read_text()))}
    assert not found, "take daari_mlx.ground.evaluated"
