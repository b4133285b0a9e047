"""Count on held-out sequences how often each source is right, and fit how their voices add up.

The sequences that are tried are held out of the tables that they are tried on. The share of a rare cell is shrunk
towards that of the cells it is part of.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from daari_mlx.graph.arbiter import MAX_ODDS, OTHER, SAME, Arbiter, scenes_of
from daari_mlx.graph.corpus import Corpus
from daari_mlx.graph.exemplars import REACH
from daari_mlx.graph.source import CELL, CELL_BITS, SHAPES, SILENT
from daari_mlx.graph.sources import Sources
from daari_mlx.ground.progress import Bar, bar
from daari_mlx.ground.types import FloatArray

FOLDS = 5  # parts of a small corpus, each tried on tables of the others
TRIED = 100  # sequences tried a fold, at the most
TRIED_ONCE = 300  # of the one fold of a large corpus
ANCHORS = 16  # places of a sequence that drafts are started from
PRIOR = 4.0  # observations by which a cell's share is shrunk towards that of what it is part of
DRAWN = 10.0  # how firmly a scene's weights are shrunk towards those of all scenes
NEWTON_STEPS = 30
_FLAT = 500.0  # log-odds beyond which an exponential leaves float64
MIN_SEQUENCES = 20  # fewer leave nothing to hold back


@dataclass(frozen=True)
class Cases:
    """Tokens that sources named, and the token that came; with C cases and S sources:

    Attributes:
        tokens: ``(C, S)`` int32, ``SILENT`` where a source said nothing.
        cells: ``(C, S)`` int32.
        came: ``(C,)`` int32.
    """

    tokens: NDArray[np.int32]
    cells: NDArray[np.int32]
    came: NDArray[np.int32]

    @classmethod
    def join(cls, parts: list[Cases]) -> Cases:
        """All cases of some parts."""
        names = ("tokens", "cells", "came")
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def calibrate(
    corpus: Corpus, build: Callable[[Corpus], Sources], seed: int, names: Sequence[str] | None = None
) -> Arbiter | None:
    """Fit an arbiter on parts of ``corpus``, each unknown to the tables it is tried on.

    Args:
        corpus: the labelled corpus.
        build: the sources that some corpus gives.
        seed: which sequences make up which part.
        names: the sources that are heard; None for all.

    Returns:
        None where the corpus is too small to hold anything back.
    """
    found = gather(corpus, build, seed)
    return None if found is None else fit(*found, names)


def gather(corpus: Corpus, build: Callable[[Corpus], Sources], seed: int) -> tuple[Cases, Sources] | None:
    """What the sources named on parts of ``corpus`` that their tables do not know, and the sources of one part.

    Arguments and None are those of :func:`calibrate`.
    """
    held_out, tried = parts(len(corpus), seed)
    if not held_out:
        return None
    found = []
    with bar(total=sum(min(len(held), tried) for held in held_out), desc="calibration", unit="seq") as progress:
        for held in held_out:
            sources = build(corpus.take(np.setdiff1d(np.arange(len(corpus)), held)))
            found.append(try_sources(sources, corpus.take(held[:tried]), progress))
    return Cases.join(found), sources


def parts(sequences: int, seed: int) -> tuple[list[NDArray[np.int64]], int]:
    """Which sequences are held out together, in turn, and how many of each part are tried; ``[]`` where too few.

    They rise, so that those tried are the first: of a large corpus, only those have states.
    """
    if sequences < MIN_SEQUENCES:
        return [], 0
    order = np.random.default_rng(seed).permutation(sequences)
    size = sequences // FOLDS
    folds, tried = (FOLDS, TRIED) if size <= 2 * TRIED else (1, TRIED_ONCE)
    return [np.sort(order[fold * size : (fold + 1) * size]) for fold in range(folds)], tried


def try_sources(sources: Sources, corpus: Corpus, progress: Bar) -> Cases:
    """Let the sources name tokens along the sequences of a corpus that they do not know."""
    voices: list[list[int]] = []
    came: list[int] = []
    row = prompt = 0
    for rows, before in zip(corpus.rows.tolist(), corpus.before_rows.tolist(), strict=True):
        said = corpus.before[prompt : prompt + before].tolist() + corpus.tokens[row : row + rows].tolist()
        labels = corpus.labels[row : row + rows].tolist()
        for anchor in _anchors(rows):
            until = before + anchor + 1
            known = row + anchor < len(corpus.states)
            moment = sources.start(said, labels[anchor], until, corpus.states[row + anchor] if known else None)
            for token in said[until : until + REACH]:
                voices.append(moment.voices)
                came.append(token)
                sources.push(token, moment)
        row, prompt = row + rows, prompt + before
        progress.update()
    said_by = np.array(voices, np.int64).reshape(-1, len(sources.all))
    return Cases(
        (said_by >> CELL_BITS).astype(np.int32),
        np.where(said_by == SILENT, 0, said_by & CELL).astype(np.int32),
        np.array(came, np.int32),
    )


def _anchors(rows: int) -> list[int]:
    """Evenly spread rows to start from, the first of all among them; the last row has nothing behind it."""
    return (
        sorted(set(np.linspace(0, rows - 2, min(rows - 1, ANCHORS)).round().astype(int).tolist())) if rows > 1 else []
    )


def fit(cases: Cases, sources: Sources, names: Sequence[str] | None = None) -> Arbiter:
    """The arbiter of counted cases.

    One regression over all scenes says what each source adds where it names the token and where it names another; every
    scene then departs from that as far as its own cases tell.
    """
    heard = [k for k, s in enumerate(sources.all) if names is None or s.name in names]
    odds = tuple(_odds(cases, k, SHAPES[sources.all[k].name]) for k in heard)
    scene, values, right = _tokens(cases, heard, odds)
    says = scenes_of(len(heard))
    shared, bias = _regress(_columns(says[scene], values), right)
    weights = np.concatenate([np.full((len(says), 1), bias), np.zeros(says.shape)], axis=1)
    for place, (own, own_anyhow, other, other_anyhow) in enumerate(shared.reshape(-1, 4).tolist()):
        weights[:, 0] += np.choose(says[:, place], [0, own_anyhow, other_anyhow])
        weights[:, 1 + place] = np.choose(says[:, place], [0, own, other])
    for number in np.unique(scene):
        here = scene == number
        spoken = np.flatnonzero(says[number])
        features = np.concatenate([np.ones((here.sum(), 1)), values[here][:, spoken]], axis=1)
        columns = [0, *(1 + spoken)]
        weights[number, columns] += _depart(features, features @ weights[number, columns], right[here])
    return Arbiter(tuple(sources.all[k].name for k in heard), odds, weights.astype(np.float32))


def _tokens(
    cases: Cases, heard: list[int], odds: Sequence[FloatArray]
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.bool_]]:
    """Every token that was named in a case: its scene, the sources' log-odds (0 where silent), whether it was right."""
    tokens = cases.tokens[:, heard]
    speaks = tokens != SILENT
    each = np.stack([o[cases.cells[:, k]] for o, k in zip(odds, heard, strict=True)], axis=1) * speaks
    worth = 3 ** np.arange(len(heard))
    scenes, values, right = [], [], []
    for k in range(len(heard)):
        same = speaks & (tokens == tokens[:, k : k + 1])
        first = speaks[:, k] & ~same[:, :k].any(axis=1)  # a token named twice is one case
        scenes.append(SAME * (same[first] @ worth) + OTHER * ((speaks & ~same)[first] @ worth))
        values.append(each[first])
        right.append(tokens[first, k] == cases.came[first])
    return np.concatenate(scenes), np.concatenate(values).astype(float), np.concatenate(right)


def _columns(says: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Four columns a source: its log-odds where it names the token, one there, and both where it names another."""
    own, other = says == SAME, says == OTHER
    return np.stack([own * values, own, other * values, other], axis=2).reshape(len(says), 4 * says.shape[1])


def _depart(features: NDArray[np.float64], known: NDArray[np.float64], right: NDArray[np.bool_]) -> NDArray[np.float64]:
    """What to add to a regression's weights for cases of one kind, shrunk towards zero; by Newton's method.

    Args:
        features: ``(C, F)``.
        known: ``(C,)``, the log-odds that the regression gives.
        right: ``(C,)``.
    """
    weights = np.zeros(features.shape[1])
    loss = _loss(features, weights, known, right)
    for _ in range(NEWTON_STEPS):
        chance = 1 / (1 + np.exp(-np.clip(known + features @ weights, -_FLAT, _FLAT)))
        slope = features.T @ (right - chance) - DRAWN * weights
        bend = (features * (chance * (1 - chance))[:, None]).T @ features + DRAWN * np.eye(len(weights))
        step = np.linalg.solve(bend, slope)
        # where the regression is sure and wrong there is hardly a bend, and a whole step would go far beyond the goal
        while (reached := _loss(features, weights + step, known, right)) > loss and np.abs(step).max() >= 1e-6:
            step /= 2
        if reached > loss:
            break
        weights, loss = weights + step, reached
        if np.abs(step).max() < 1e-6:
            break
    return weights


def _loss(
    features: NDArray[np.float64], weights: NDArray[np.float64], known: NDArray[np.float64], right: NDArray[np.bool_]
) -> float:
    """What :func:`_depart` makes least: the log loss of the cases, and the squared length of the weights."""
    odds = known + features @ weights
    return float(np.logaddexp(0, odds).sum() - odds[right].sum() + DRAWN / 2 * weights @ weights)


def _odds(cases: Cases, source: int, shape: tuple[int, ...]) -> FloatArray:
    """Log-odds ``(cells,)`` that the source is right, each cell shrunk towards those that it is part of."""
    speaks = cases.tokens[:, source] != SILENT
    cell = cases.cells[speaks, source]
    right = cases.tokens[speaks, source] == cases.came[speaks]
    count = np.bincount(cell, minlength=int(np.prod(shape))).reshape(shape).astype(float)
    kept = np.bincount(cell, right, minlength=int(np.prod(shape))).reshape(shape)
    chance = (kept.sum() + 1) / (count.sum() + 2)
    for level in range(1, len(shape) + 1):
        behind = tuple(range(level, len(shape)))
        parent = chance if level == 1 else chance[..., None]
        chance = (kept.sum(axis=behind) + PRIOR * parent) / (count.sum(axis=behind) + PRIOR)
    limited = np.clip(chance, 1e-3, 1 - 1e-3).ravel()
    return np.log(limited / (1 - limited)).astype(np.float32)


def _regress(features: NDArray[np.float64], right: NDArray[np.bool_]) -> tuple[FloatArray, float]:
    """Weights and bias of a logistic regression, by Newton's method; no drafts where nothing was ever right."""
    if right.all() or not right.any():
        return np.zeros(features.shape[1], np.float32), MAX_ODDS if right.any() else -MAX_ODDS
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():  # where all answers are alike columns are too: scikit-learn tells, and takes L-BFGS
        warnings.simplefilter("ignore")
        fitted = LogisticRegression(solver="newton-cholesky", max_iter=100).fit(features, right)
    return fitted.coef_[0].astype(np.float32), float(np.float32(fitted.intercept_[0]))  # as a file brings it back
