"""An extraction as a real one leaves it, made up: templated answers whose states lie where a teacher's would.

A sequence takes one of many templates, one of its classes, and fills its slots: from a small vocabulary of the slot, or
by copying from its prompt. A state is told by template, place, class and last token, blurred by noise; the variance of
its dimensions falls as that of a real teacher's principal directions does.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from daari_mlx.compile.extract import PART
from daari_mlx.compile.workdir import Plan, Workdir
from daari_mlx.graph.nodes import fit_projection
from daari_mlx.ground.files import save_arrays, write_json

TEMPLATES, CLASSES, LONGEST, SHORTEST = 600, 12, 96, 12
VOCABULARY, HIDDEN, DIMENSIONS = 49152, 576, 64
PROMPT = 120  # tokens, on average
FIXED, CLASS, SLOT, COPY = 0.62, 0.08, 0.2, 0.1  # shares of an answer's places by who says their token
SLOT_WORDS = 400  # a slot's vocabulary; the k-th is said in proportion to 1/k


class Templates:
    """What the teacher can say, and where its states lie."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        shape = (TEMPLATES, LONGEST)
        self.length = random.integers(SHORTEST, LONGEST + 1, size=TEMPLATES)
        self.kind = random.choice(4, size=shape, p=[FIXED, CLASS, SLOT, COPY])
        self.fixed = _words(random, shape)
        self.of_class = _words(random, (*shape, CLASSES))
        self.of_slot = _words(random, (64, SLOT_WORDS))
        self.slot = random.integers(64, size=shape)
        self.where = random.normal(size=(TEMPLATES, DIMENSIONS)).astype(np.float32)
        self.place = random.normal(size=(TEMPLATES, LONGEST, DIMENSIONS)).astype(np.float32)
        self.class_shift = random.normal(size=(CLASSES, DIMENSIONS)).astype(np.float32)
        self.token_shift = random.normal(size=(VOCABULARY, DIMENSIONS)).astype(np.float32)
        self.spread = (8 * (1 + np.arange(DIMENSIONS)) ** -0.65).astype(np.float32)
        self.rank = np.cumsum(1 / (1 + np.arange(SLOT_WORDS)))
        self.rank /= self.rank[-1]
        self.popular = 1 / (1 + np.arange(TEMPLATES)) ** 0.7
        self.popular /= self.popular.sum()


def make_workdir(path: Path, states: int, seed: int = 0) -> int:
    """Fill ``path`` with about so many states, a finished extraction; returns how many."""
    known, random = Templates(seed), np.random.default_rng(seed + 1)
    workdir = Workdir(path)
    teacher = {"model_type": "none", "vocab_size": VOCABULARY, "source": "made up"}
    sequences = round(states / float(known.length @ known.popular))
    workdir.begin(Plan(teacher, "made up", sequences, "reference", 0, "final", DIMENSIONS, seed))
    fitted = fit_projection(random.normal(size=(1024, HIDDEN)).astype(np.float32), DIMENSIONS)
    save_arrays(workdir.projection_path, {"mean": fitted.mean, "basis": fitted.basis})
    made = shards = 0
    for first in range(0, sequences, PART):
        arrays = make_shard(known, random, min(PART, sequences - first))
        save_arrays(workdir.shard_path(shards), arrays)
        made, shards = made + len(arrays["tokens"]), shards + 1
    counts = {"sequences": sequences, "tokens": made, "states": made, "shards": shards}
    write_json(workdir.done_path, {**counts, "seconds": {}})
    return made


def make_shard(known: Templates, random: np.random.Generator, count: int) -> dict[str, np.ndarray]:
    """The arrays of one shard of ``count`` sequences."""
    template = random.choice(TEMPLATES, size=count, p=known.popular)
    rows, group = known.length[template], random.integers(CLASSES, size=count)
    before_rows = random.integers(PROMPT // 2, PROMPT * 3 // 2, size=count)
    before = _words(random, int(before_rows.sum()))
    sequence = np.repeat(np.arange(count), rows)
    place = np.arange(len(sequence)) - np.repeat(np.cumsum(rows) - rows, rows)
    which = template[sequence], place
    kind = known.kind[which]
    word = np.minimum(np.searchsorted(known.rank, random.random(len(sequence))), SLOT_WORDS - 1)
    quoted = (np.cumsum(before_rows) - before_rows)[sequence] + (7 * place + 3) % before_rows[sequence]
    tokens = np.choose(
        kind,
        [
            known.fixed[which],
            known.of_class[(*which, group[sequence])],
            known.of_slot[known.slot[which], word],
            before[quoted],
        ],
    ).astype(np.int32)
    last = np.where(place > 0, np.roll(tokens, 1), 0)
    state = (
        0.6 * known.where[template[sequence]]
        + 0.7 * known.place[which]
        + 0.25 * known.class_shift[group[sequence]]
        + 0.35 * known.token_shift[last]
        + 0.25 * random.normal(size=(len(sequence), DIMENSIONS)).astype(np.float32)
    )
    return {
        "reduced": (state * known.spread).astype(np.float16),
        "tokens": tokens,
        "rows": rows.astype(np.int32),
        "lead": np.ones(count, np.int32),
        "before": before,
        "before_rows": before_rows.astype(np.int32),
        "prompts": random.integers(2**63, size=count).astype(np.uint64),
    }


def _words(random: np.random.Generator, shape: int | tuple[int, ...]) -> np.ndarray:
    """Token ids, few of them common and many rare."""
    return (VOCABULARY * random.random(shape) ** 3).astype(np.int32)
