"""Stage 3, layers: whose states draft best, measured on answers that the graph did not know.

Which layer is best depends on teacher and text, and mostly by less than chance does: another layer than the final one
has to be better by more than that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import sqrt
from typing import Any

import numpy as np

from daari_mlx.compile.build import build_graph
from daari_mlx.compile.cluster import auto_nodes, cluster_states
from daari_mlx.compile.shards import check_numbers, kept, rows_of
from daari_mlx.cost.curves import CURVES
from daari_mlx.cost.length import best_length
from daari_mlx.graph.corpus import Corpus
from daari_mlx.graph.exemplars import Coarse
from daari_mlx.graph.nodes import Nodes, fit_projection
from daari_mlx.graph.outlook import Heard, listen
from daari_mlx.graph.source import NO_NODE
from daari_mlx.ground.progress import bar
from daari_mlx.ground.types import FloatArray, IntArray
from daari_mlx.teacher.load import Teacher
from daari_mlx.teacher.tap import FINAL
from daari_mlx.text.data import Sequence

AUTO = "auto"
DEPTHS = (0.35, 0.5, 0.65, 0.8)  # of the layers that are tried, beside the final states
LISTENED, STATES = 128, 6000  # sequences and states that are tried, at the most
LEAST = 40  # sequences without which nothing can be told apart
ERRORS = 2.5  # standard errors by which another layer has to be better than the final states: several are tried
COST = CURVES["linear"].cost


@dataclass(frozen=True)
class Tried:
    """How one layer's states draft; every second sequence is held out from the others in turn.

    Attributes:
        layer: which.
        tokens_per_forward: over all answers.
        gain: by what share its answers take less time than with final states, under T(m) = 1 + 0.045 (m - 1).
        error: the standard error of ``gain``.
    """

    layer: int | str
    tokens_per_forward: float
    gain: float
    error: float


@dataclass(frozen=True)
class LayerChoice:
    """The layer whose states are taken, and why.

    Attributes:
        layer: ``"final"`` or an index.
        reason: in words.
        answers: how many answers it was measured on.
        tried: every layer that was tried.
    """

    layer: int | str
    reason: str
    answers: int
    tried: tuple[Tried, ...]

    def as_json(self) -> dict[str, Any]:
        """The same as JSON values."""
        return asdict(self)


def choose_layer(teacher: Teacher, sequences: list[Sequence], dimensions: int, seed: int) -> LayerChoice:
    """Try some layers' states on a few sequences.

    Args:
        sequences: in an order drawn by chance; the first ones are tried.
        dimensions: of reduced states.
        seed: of the clustering.

    Raises:
        DaariError: the final states are not all finite numbers; another layer of which that is so is left out.
    """
    some = _few(sequences)
    if len(some) < LEAST:
        return LayerChoice(FINAL, f"{len(some)} sequences are too few to tell layers apart", len(some), ())
    states: dict[int | str, list[FloatArray]] = {layer: [] for layer in candidates(teacher)}
    for sequence in bar(some, desc="layers", unit="seq"):
        for layer, found in teacher.states_of(sequence.tokens[:-1], list(states), kept(sequence).start).items():
            if layer == FINAL:
                check_numbers(found, sequence)
            if np.isfinite(found).all():
                states[layer].append(found)
            else:  # a layer can go beyond what 16 bits hold where the final states do not
                del states[layer]
    times, tried = {}, []
    for layer in list(states):
        times[layer], forwards = _times(teacher, some, np.concatenate(states.pop(layer)), dimensions, seed)
        gain, error = _gain(times[FINAL], times[layer])
        tokens = sum(len(s.tokens) - s.answer_start for s in some)
        tried.append(Tried(layer, tokens / forwards, gain, error))
    best = max(tried, key=lambda t: t.gain)
    if best.layer == FINAL or best.gain <= ERRORS * best.error:
        reason = f"no layer is better than the final states by more than {ERRORS:g} standard errors"
        if best.layer != FINAL:
            reason += f" (layer {best.layer}: {best.gain:+.1%} ± {best.error:.1%})"
        return LayerChoice(FINAL, reason, len(some), tuple(tried))
    reason = f"its answers take {best.gain:.1%} ± {best.error:.1%} less time than with final states"
    return LayerChoice(best.layer, reason, len(some), tuple(tried))


def candidates(teacher: Teacher) -> list[int | str]:
    """The layers that are tried, the final states first."""
    count = len(teacher.model.layers)
    return [FINAL, *sorted({min(round(depth * count), count - 1) for depth in DEPTHS})]


def _few(sequences: list[Sequence]) -> list[Sequence]:
    """The first sequences with an answer, within bounds."""
    chosen: list[Sequence] = []
    left = STATES
    for sequence in sequences:
        left -= len(kept(sequence))
        if left < 0 or len(chosen) == LISTENED:
            break
        if sequence.answer_start < len(sequence.tokens):
            chosen.append(sequence)
    return chosen


def _times(
    teacher: Teacher, sequences: list[Sequence], states: FloatArray, dimensions: int, seed: int
) -> tuple[np.ndarray, int]:
    """What each answer takes in units of T(1), ``(S,)``, and the forwards of all of them."""
    projection = fit_projection(states, dimensions)
    reduced = projection(states)
    nodes = Nodes(projection, cluster_states(reduced, auto_nodes(len(reduced)), seed))
    labels = nodes.label(reduced)
    rows = {k: v for k, v in rows_of(sequences).items() if k != "prompts"}
    corpus = Corpus(labels, **rows, states=Coarse.of(reduced))
    vocab_size = max(max(s.tokens) for s in sequences) + 1
    ends = frozenset(teacher.tokenizer.eos_token_ids)
    times, forwards = np.zeros(len(sequences)), 0
    for half in (0, 1):
        known = corpus.take(np.arange(1 - half, len(sequences), 2))
        graph = build_graph(nodes, known, layer=FINAL, vocab_size=vocab_size, seed=seed)
        for place, (sequence, anchors, known_states) in enumerate(_anchored(sequences, labels, reduced)):
            if place % 2 == half:
                heard = listen(graph, sequence.tokens, sequence.answer_start, anchors, known_states, ends)
                times[place], rounds = _time(heard)
                forwards += rounds
    return times, forwards


def _anchored(
    sequences: list[Sequence], labels: IntArray, reduced: FloatArray
) -> Iterator[tuple[Sequence, list[int], list[FloatArray | None]]]:
    """Each sequence with the nodes and states that its answer's tokens are drafted from."""
    row = 0
    for sequence in sequences:
        rows = kept(sequence)
        ahead = max(0, rows.start - (sequence.answer_start - 2))  # tokens whose state no forward has shown
        nodes = labels[row : row + len(rows)].tolist()
        count = len(sequence.tokens) - sequence.answer_start
        states = [*[None] * ahead, *reduced[row : row + len(rows)]]
        yield sequence, ([NO_NODE] * ahead + nodes)[:count], states[:count]
        row += len(rows)


def _time(heard: Heard) -> tuple[float, int]:
    """What an answer's forwards take in units of T(1), and how many they are."""
    total, rounds, said = 0.0, 0, 0
    while said < len(heard.promises):
        promise = heard.promises[said]
        length = best_length(promise.probabilities, COST)
        total += COST(1 + length)
        rounds += 1
        said += min(length, promise.right) + 1
    return total, rounds


def _gain(final: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """By what share all answers together take less time, and the standard error of that."""
    gain = 1 - other.sum() / final.sum()
    spread = other - (1 - gain) * final  # what each answer departs from the common share by
    return float(gain), float(sqrt(len(final)) * spread.std(ddof=1) / final.sum())
