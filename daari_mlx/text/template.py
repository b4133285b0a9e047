"""Chat templates: what is told where one of them rejects the messages."""

from __future__ import annotations

from daari_mlx.ground.errors import DaariError


def template_failure(error: Exception) -> DaariError:
    """What to tell the user where a chat template raised ``error``."""
    return DaariError(
        f"The chat template rejects the messages: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    )
