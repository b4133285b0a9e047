"""Values of MLX arrays that are still to be computed."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray


def evaluated(array: mx.array) -> NDArray[Any]:
    """The values of an array, of its own shape and type; what their computation raises is raised.

    ``np.array`` alone, of an array that is not computed yet, swallows that and may give what happens to be in memory.
    """
    mx.eval(array)
    return np.array(array)
