"""Stage 5, budget: what of a corpus fits into the bytes that a graph may have.

What every draft needs comes first (nodes, top edges, the steps taken most); the answers' own words, with the paths
that lie in them, get what is left: whole sequences, in the corpus's order, which chance has drawn.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from daari_mlx.corpus import Corpus
from daari_mlx.errors import DaariError
from daari_mlx.paths import REACH

MAX_BYTES = 9_000_000
OVERHEAD = 100_000  # bytes besides the arrays that grow: the arbiter, headers, the card, the stats
STEP_BYTES, PROMPT_BYTES, WORD_BYTES, PATH_BYTES = 12, 8, 4, 12 + REACH
STEPS_SHARE = 0.4  # of what nodes leave, at the most


def left_over(max_bytes: int, arrays: Iterable[np.ndarray], sequences: int) -> int:
    """The bytes that steps, text and paths may share.

    Args:
        max_bytes: of the whole graph.
        arrays: what it holds in any case.
        sequences: prompts, whose hashes it holds.

    Raises:
        DaariError: nothing is left.
    """
    fixed = sum(array.nbytes for array in arrays) + PROMPT_BYTES * sequences + OVERHEAD
    if fixed >= max_bytes:
        raise DaariError(
            f"--max-bytes is {max_bytes:,}, but the nodes and prompts alone take {fixed:,}: give more bytes, or fewer "
            "--nodes."
        )
    return max_bytes - fixed


def fitting(corpus: Corpus, vocab_size: int, budget: int) -> Corpus:
    """As many leading sequences as ``budget`` bytes hold as text and paths."""
    key = corpus.labels.astype(np.int64) * vocab_size + corpus.tokens
    new = np.zeros(len(key), np.int64)
    new[np.unique(key, return_index=True)[1]] = PATH_BYTES
    ends = np.cumsum(corpus.rows)
    needed = np.concatenate([[0], np.cumsum(new)])[ends] + WORD_BYTES * (ends + np.arange(1, len(ends) + 1))
    return corpus.take(np.arange(int(np.searchsorted(needed, budget, side="right"))))
