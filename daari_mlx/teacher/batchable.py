"""Whether rows of unlike lengths can share a forward of this model."""

from __future__ import annotations

import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache

from daari_mlx.teacher.ragged import refuses_rows


def why_alone(model: nn.Module) -> str | None:
    """Why rows of this model cannot share a batch, or None where they can."""
    return refuses_rows(make_prompt_cache(model))
