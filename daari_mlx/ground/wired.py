"""The memory that macOS keeps resident for the GPU: raised while answers are under way, restored after the last one."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import mlx.core as mx
import mlx.nn as nn

_LOCK = threading.Lock()
_under_way = 0
_raised = ExitStack()  # what restores the limit


@contextmanager
def wired(model: nn.Module, stream: Any) -> Iterator[None]:
    """Hold mlx-lm's wired limit. Of answers that overlap, the first raises it and the last restores it.

    mlx-lm's own restores what it found, which is another answer's limit where two end in the order they began.

    Args:
        model: the teacher.
        stream: that its work runs on; waited for at the end.
    """
    global _under_way
    with _LOCK:
        if _under_way == 0:
            _raised.enter_context(importlib.import_module("mlx_lm.generate").wired_limit(model, []))
        _under_way += 1
    try:
        yield
    finally:
        if mx.metal.is_available():
            mx.synchronize(stream)  # the limit must not change during an evaluation
        with _LOCK:
            _under_way -= 1
            if _under_way == 0:
                _raised.close()
