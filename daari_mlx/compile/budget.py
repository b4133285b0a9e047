"""What of a corpus fits into the bytes that a graph may have.

What every draft needs comes first (nodes, edges, the steps taken most); single states, with the text that each went on
with, get what is left.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from daari_mlx.graph.codepoints import BREAK
from daari_mlx.graph.corpus import Corpus
from daari_mlx.graph.exemplars import ALIKE, REACH, Coarse, Exemplars, rank_within
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.types import IntArray

MAX_BYTES = 9_000_000
OVERHEAD = 100_000  # bytes besides the arrays that grow: the arbiter, headers, the card, the stats
STEP_BYTES, PROMPT_BYTES, WORD_BYTES = 12, 8, 4
PROMPTS_SHARE = 0.1  # of the bytes of a graph, at the most
STEPS_SHARE = 0.4  # of what nodes leave, at the most
PLACE_BYTES = 4


def left_over(max_bytes: int, arrays: Iterable[np.ndarray], sequences: int) -> int:
    """The bytes that steps, single states and their text may share.

    Args:
        max_bytes: of the whole graph.
        arrays: what it holds in any case.
        sequences: prompts, whose hashes it holds.

    Raises:
        DaariError: nothing is left.
    """
    fixed = sum(array.nbytes for array in arrays) + PROMPT_BYTES * min(sequences, most_prompts(max_bytes)) + OVERHEAD
    if fixed >= max_bytes:
        raise DaariError(
            f"--max-bytes is {max_bytes:,}, but the nodes and prompts alone take {fixed:,}: give more bytes, or fewer "
            "--nodes."
        )
    return max_bytes - fixed


def bytes_each(states: Coarse) -> int:
    """What an exemplar of such states takes, its text not counted."""
    return states.values.shape[1] + PLACE_BYTES


def exemplar_rows(corpus: Corpus, budget: int) -> tuple[NDArray[np.int64], int]:
    """Which rows become exemplars: of the first sequences, as many as ``budget`` bytes hold with their text.

    Returns:
        The rows, rising, and of how many sequences the text is needed for them.
    """
    known = len(corpus.states)
    kept = corpus.follows()[:known]  # behind a sequence's last row nothing comes
    kept[kept] = rank_within(corpus.tokens[:known][kept]) < ALIKE
    ends = np.cumsum(corpus.rows)
    ends = ends[ends <= known]
    own = np.cumsum(np.concatenate([[0], kept]))[ends] * bytes_each(corpus.states)
    words = WORD_BYTES * (ends + np.arange(1, len(ends) + 1))
    sequences = int(np.searchsorted(own + words, budget, side="right"))
    rows = np.flatnonzero(kept[: ends[sequences - 1] if sequences else 0])
    return rows, int(np.searchsorted(ends, rows[-1], side="right")) + 1 if len(rows) else 0


def keep_exemplars(text: IntArray, exemplars: Exemplars, budget: int) -> tuple[IntArray, Exemplars]:
    """Exemplars with the words that they need, as ``budget`` bytes hold them.

    Args:
        text: that they stand in.
        exemplars: of which evenly many are left out where they take more.
        budget: bytes of both.
    """
    count, width = len(exemplars), bytes_each(exemplars.states)
    while count:
        chosen = exemplars.evenly(count)
        used, place = np.zeros(len(text), bool), chosen.place.astype(np.int64)
        for _ in range(REACH + 1):
            used[place] = True
            place = place[text[place] != BREAK] + 1
            place = place[place < len(text)]
        words, moved = _cut(text, used & (text != BREAK))
        taken = width * count + WORD_BYTES * len(words)
        if taken <= budget:
            return words, Exemplars(chosen.states, moved[chosen.place].astype(np.int32), chosen.bounds)
        count = int(count * min(0.95, budget / taken))
    return np.zeros(0, np.int32), exemplars.evenly(0)


def _cut(text: IntArray, used: NDArray[np.bool_]) -> tuple[IntArray, NDArray[np.int64]]:
    """The used words, with a break behind each run of them, and where each word of the text is now."""
    width = used.astype(np.int64) + (used & ~np.append(used[1:], False))
    place = np.cumsum(width) - width
    words = np.full(int(width.sum()), BREAK, np.int32)
    words[place[used]] = text[used]
    return words, place


def few_prompts(prompts: NDArray[np.uint64], max_bytes: int) -> NDArray[np.uint64]:
    """Sorted hashes of prompts; of very many the smallest: prompts in common with other data still show by their share.

    Args:
        prompts: in any order.
        max_bytes: of the whole graph.
    """
    return np.unique(prompts)[: most_prompts(max_bytes)]


def most_prompts(max_bytes: int) -> int:
    """How many prompts' hashes a graph holds at the most."""
    return int(max_bytes * PROMPTS_SHARE) // PROMPT_BYTES
