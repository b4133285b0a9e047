"""A graph of the teacher's hidden states drafts its tokens: mlx-lm decodes faster and says the same.

1. data: prompts and answers become token sequences.
2. states: the frozen teacher reads them once; every position leaves a hidden state.
3. nodes: a projection and centroids give each state its node.
4. graph: which tokens and nodes followed each node, counted and calibrated.
5. draft: from the anchor, the node of the teacher's last state, walk the likeliest path.
6. verify: one teacher forward over the last token and the draft.
7. accept: keep the longest agreeing prefix, and the teacher's own token after it.
8. re-anchor: the state of the last accepted token names the next anchor; go on at 5.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from .ground import blas

if TYPE_CHECKING:
    from .batch.generate import batch_generate
    from .batch.response import BatchResponse
    from .compile.compiler import compile_graph
    from .decode.engine import SpecEngine
    from .decode.generate import generate, stream_generate
    from .decode.responses import GenerationResponse
    from .decode.speculative import SpeculativeModel
    from .graph.artifact import save_graph
    from .graph.graph import Graph
    from .job.rows import map_rows
    from .learn.learner import Learner
    from .learn.start import learner_for
    from .share.find import load_graph

blas.prefer()  # before anything can import MLX

__version__ = "0.1.0"

__all__ = [
    "BatchResponse",
    "GenerationResponse",
    "Graph",
    "Learner",
    "SpecEngine",
    "SpeculativeModel",
    "batch_generate",
    "compile_graph",
    "generate",
    "learner_for",
    "load_graph",
    "map_rows",
    "save_graph",
    "stream_generate",
]

_HOME = {  # public name -> its module, imported when the name is first used
    "BatchResponse": "batch.response",
    "GenerationResponse": "decode.responses",
    "Graph": "graph.graph",
    "Learner": "learn.learner",
    "SpecEngine": "decode.engine",
    "SpeculativeModel": "decode.speculative",
    "batch_generate": "batch.generate",
    "compile_graph": "compile.compiler",
    "generate": "decode.generate",
    "learner_for": "learn.start",
    "load_graph": "share.find",
    "map_rows": "job.rows",
    "save_graph": "graph.artifact",
    "stream_generate": "decode.generate",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
