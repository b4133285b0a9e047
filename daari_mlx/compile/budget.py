"""Stage 5, budget: what of a corpus fits into the bytes that a graph may have.

What every draft needs comes first (nodes, edges, the steps taken most); the paths that were taken most, and the words
that lie on them, get what is left, but for a part that single states may take.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from daari_mlx.graph.codepoints import BREAK
from daari_mlx.graph.corpus import Corpus
from daari_mlx.graph.exemplars import ALIKE, Coarse, Exemplars, rank_within
from daari_mlx.graph.paths import END, REACH, Paths
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.types import IntArray

MAX_BYTES = 9_000_000
OVERHEAD = 100_000  # bytes besides the arrays that grow: the arbiter, headers, the card, the stats
STEP_BYTES, PROMPT_BYTES, WORD_BYTES, PATH_BYTES = 12, 8, 4, 12 + REACH
PROMPTS_SHARE = 0.1  # of the bytes of a graph, at the most
LISTENED_ROWS = 16  # of a (node, token), that tell how it goes on, where not all text is kept
STEPS_SHARE = 0.4  # of what nodes leave, at the most
EXEMPLARS_SHARE = 0.25  # of what steps leave, where text and paths need all of it
PLACE_BYTES = 4


def left_over(max_bytes: int, arrays: Iterable[np.ndarray], sequences: int) -> int:
    """The bytes that steps, text and paths may share.

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


def needed(corpus: Corpus, vocab_size: int, budget: int) -> int:
    """The bytes of all text and paths; of the text alone, where that is beyond ``budget`` already."""
    words = WORD_BYTES * (len(corpus.tokens) + len(corpus))
    return words if words > budget else words + PATH_BYTES * len(np.unique(_key(corpus, vocab_size)))


def bytes_each(states: Coarse) -> int:
    """What an exemplar of such states takes, its text not counted."""
    return states.values.shape[1] + PLACE_BYTES


def exemplar_bytes(corpus: Corpus) -> int:
    """The most that its exemplars can take, their text not counted."""
    return len(corpus.states) * bytes_each(corpus.states)


def exemplar_rows(corpus: Corpus, budget: int, word_bytes: int = 0) -> tuple[NDArray[np.int64], int]:
    """Which rows become exemplars: of the first sequences, as many as ``budget`` holds.

    Args:
        word_bytes: that each of their words takes besides.

    Returns:
        The rows, rising, and how many sequences they are of.
    """
    known = len(corpus.states)
    kept = corpus.follows()[:known]  # behind a sequence's last row nothing comes
    kept[kept] = rank_within(corpus.tokens[:known][kept]) < ALIKE
    ends = np.cumsum(corpus.rows)
    ends = ends[ends <= known]
    width = bytes_each(corpus.states)
    cost = np.cumsum(np.concatenate([[0], kept]))[ends] * width + word_bytes * (ends + np.arange(1, len(ends) + 1))
    sequences = int(np.searchsorted(cost, budget, side="right"))
    return np.flatnonzero(kept[: ends[sequences - 1] if sequences else 0]), sequences


def commonest_rows(corpus: Corpus, vocab_size: int, budget: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The first ``LISTENED_ROWS`` rows of every (node, token) that was seen most, as many as ``budget`` may hold.

    Returns:
        The rows, rising, and how often each of these (node, token) was seen, in their order.
    """
    _, which, seen = np.unique(_key(corpus, vocab_size), return_inverse=True, return_counts=True)
    most = min(len(seen), budget // (PATH_BYTES + WORD_BYTES))
    chosen = np.zeros(len(seen), bool)
    chosen[np.argsort(-seen, kind="stable")[:most]] = True
    rows = np.flatnonzero(chosen[which])
    return rows[rank_within(which[rows]) < LISTENED_ROWS], seen[chosen].astype(np.float64)


def _key(corpus: Corpus, vocab_size: int) -> NDArray[np.int64]:
    return corpus.labels.astype(np.int64) * vocab_size + corpus.tokens


def said_bytes(text: IntArray, paths: Paths) -> int:
    """What a text and its paths take."""
    return WORD_BYTES * len(text) + PATH_BYTES * len(paths.key)


def keep_paths(text: IntArray, paths: Paths, weight: NDArray[np.float64], budget: int) -> tuple[IntArray, Paths]:
    """The paths that were taken most, and the words that lie on them, as ``budget`` bytes hold; all where all fit.

    Args:
        text: as of a graph.
        paths: that lie in it.
        weight: how often each was taken.
        budget: bytes of both.
    """
    count = len(paths.key)
    if said_bytes(text, paths) <= budget:
        return text, paths
    taken = paths.kinds != END
    reach = np.where(taken.all(axis=1), REACH, taken.argmin(axis=1))
    rank = np.empty(count, np.int64)
    rank[np.argsort(-weight, kind="stable")] = np.arange(count)
    first = np.full(len(text), count)  # the first path, by rank, that a word is needed for
    for step in range(REACH + 1):
        on = reach >= step
        np.minimum.at(first, paths.place[on] + step, rank[on])
    needed = WORD_BYTES * np.bincount(first, minlength=count)[:count] + PATH_BYTES + WORD_BYTES  # a break behind it
    most = int(np.searchsorted(np.cumsum(needed), budget, side="right"))
    kept = rank < most
    words, place = _cut(text, first < most)
    return words, Paths(paths.key[kept], place[paths.place[kept]].astype(np.int32), paths.kinds[kept])


def keep_exemplars(text: IntArray, exemplars: Exemplars, budget: int) -> tuple[IntArray, Exemplars]:
    """Exemplars whose text is not kept otherwise, with the words that they need, as ``budget`` bytes hold them.

    Args:
        text: that they stand in; not theirs alone.
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
