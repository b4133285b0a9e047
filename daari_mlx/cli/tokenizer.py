"""Which tokenizer turns a graph's token ids into words: of a teacher given by name, or of the graph's own teacher."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from daari_mlx.ground.errors import DaariError
from daari_mlx.show import report

if TYPE_CHECKING:
    from daari_mlx.graph.graph import Graph


def tokenizer_for(graph: Graph, model: str | None) -> Any:
    """The tokenizer; None where there is none, with a note that says why.

    Args:
        model: a model folder or Hub repository; None takes the folder that the graph's teacher was loaded from.

    Raises:
        DaariError: ``model`` was given and has no tokenizer, or another one.
    """
    source = model or graph.teacher.get("source")
    tokenizer = None
    if not isinstance(source, str):
        why = "the graph does not say where its teacher was loaded from; --model names it"
    elif model is None and not Path(source).is_dir():
        why = f"the teacher's folder {source!r} is not here; --model names another place of it"
    else:
        tokenizer, why = _load_tokenizer(source, graph.teacher.get("vocab_size"))
    if why and model is not None:
        raise DaariError(f"{why}. Give the teacher that the graph was compiled from, or no --model for token ids.")
    if why:
        report.note(f"note: token ids only: {why}")
    return tokenizer


def _load_tokenizer(source: str, vocab_size: Any) -> tuple[Any, str]:
    """The tokenizer, or None and why there is none."""
    from mlx_lm.utils import load_tokenizer

    from daari_mlx.teacher.load import check_model

    try:
        check_model(source)
        tokenizer = load_tokenizer(Path(source) if Path(source).is_dir() else source)
    except Exception as error:  # a Hub, a file system and code of the tokenizer's own stand behind it
        return None, f"No tokenizer could be loaded from {source!r} ({type(error).__name__}: {error})"
    found = len(tokenizer.get_vocab())
    if found != vocab_size:
        return None, f"The tokenizer of {source!r} has {found} tokens, that of the graph's teacher {vocab_size}"
    return tokenizer, ""
