"""One row that fails: why, as it is told; the others go on, whatever the exception was."""

from __future__ import annotations

from daari_mlx.ground.errors import DaariError
from daari_mlx.text.messages import BadInput


def why(error: Exception) -> str:
    """Why a row is not answered, without a period at its end where it follows the row's place.

    Raises:
        MemoryError: that was the exception; it is no fault of the row.
    """
    if isinstance(error, MemoryError):
        raise error
    if isinstance(error, BadInput):
        return error.reason
    return str(error) if isinstance(error, DaariError) else f"{type(error).__name__}: {error}"
