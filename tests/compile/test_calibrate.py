"""Promises that are kept: fitted on data whose chances are known, on parts that the tables never saw."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from graphs import Said, corpus_of, full_graph, full_sequences
from test_arbiter import Scripted, beginning

from daari_mlx.compile import calibrate as calibrate_module
from daari_mlx.compile.calibrate import (
    ANCHORS,
    DRAWN,
    FOLDS,
    MIN_SEQUENCES,
    TRIED,
    TRIED_ONCE,
    Cases,
    _depart,
    calibrate,
    fit,
    try_sources,
)
from daari_mlx.graph.arbiter import MAX_ODDS, Arbiter
from daari_mlx.graph.exemplars import REACH
from daari_mlx.graph.source import CELL, CELL_BITS, NAMES, SILENT, cells
from daari_mlx.graph.sources import Sources


def only(*names: str) -> Any:
    """Sources of which nothing but their names is read."""
    return SimpleNamespace(all=[SimpleNamespace(name=name) for name in names])


def bar() -> Any:
    return SimpleNamespace(update=lambda: None)


def cases_of(chance: dict[str, np.ndarray], count: int, seed: int, *, speaks: float = 0.8) -> Cases:
    """Cases in which source and cell tell the chance that the token is right; what is wrong is so by itself."""
    random = np.random.default_rng(seed)
    came = random.integers(0, 50, size=count)
    tokens, found = [], []
    for chances in chance.values():
        cell = random.integers(0, len(chances), size=count)
        right = random.random(count) < chances[cell]
        wrong = (came + random.integers(1, 50, size=count)) % 50
        token = np.where(right, came, wrong)
        tokens.append(np.where(random.random(count) < speaks, token, SILENT))
        found.append(cell)
    return Cases(
        np.stack(tokens, axis=1).astype(np.int32),
        np.stack(found, axis=1).astype(np.int32),
        came.astype(np.int32),
    )


def promises(arbiter: Arbiter, cases: Cases) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(promised, right, first source's token is the one drafted) of the first draft token of each case."""
    promised, right, first = [], [], []
    for tokens, found, came in zip(cases.tokens.tolist(), cases.cells.tolist(), cases.came.tolist(), strict=True):
        heard = [Scripted(n, [(t, c)]) for n, t, c in zip(arbiter.names, tokens, found, strict=True)]
        proposal = arbiter.propose(heard, beginning(heard), 1, floor=0.0)
        if proposal.tokens:
            promised.append(proposal.probabilities[-1])
            right.append(proposal.tokens[-1] == came)
            first.append(proposal.tokens[-1] == tokens[0])
    return np.array(promised), np.array(right), np.array(first)


def reliability(promised: np.ndarray, right: np.ndarray, least: int = 500) -> list[float]:
    """How far promise and truth are apart in every tenth of the promises with enough cases."""
    tenth = np.minimum((promised * 10).astype(int), 9)
    groups = [tenth == k for k in range(10)]
    return [float(abs(promised[g].mean() - right[g].mean())) for g in groups if g.sum() >= least]


CHANCES = {
    "near": np.linspace(0.05, 0.98, cells("near")),
    "edge": np.linspace(0.3, 0.95, cells("edge")),
    "copy": np.linspace(0.1, 0.9, cells("copy")),
}


def test_promises_of_several_sources_are_kept_on_unseen_cases() -> None:
    arbiter = fit(cases_of(CHANCES, 20_000, seed=0), only(*CHANCES))
    assert arbiter.names == tuple(CHANCES)
    promised, right, _ = promises(arbiter, cases_of(CHANCES, 12_000, seed=1))
    gaps = reliability(promised, right)
    assert len(gaps) >= 5 and max(gaps) < 0.05
    assert promised.std() > 0.1, "the same promise for everything would be kept too"


def test_hearing_several_is_no_worse_than_the_best_of_them() -> None:
    arbiter = fit(cases_of(CHANCES, 20_000, seed=0), only(*CHANCES))
    unseen = cases_of(CHANCES, 3_000, seed=1, speaks=1.0)
    _, right, _ = promises(arbiter, unseen)
    alone = [(unseen.tokens[:, k] == unseen.came).mean() for k in range(len(CHANCES))]
    assert right.mean() > 0.98 * max(alone)


def test_the_chance_of_a_single_source_is_that_of_its_cell() -> None:
    chances = {"copy": np.linspace(0.05, 0.95, cells("copy"))}
    arbiter = fit(cases_of(chances, 200_000, seed=2), only("copy"))
    for cell, chance in enumerate(chances["copy"]):
        heard = [Scripted("copy", [(4, cell)])]
        proposal = arbiter.propose(heard, beginning(heard), 1)  # type: ignore[arg-type]
        assert proposal.probabilities[0] == pytest.approx(chance, abs=0.05)


def test_a_source_that_says_what_another_says_adds_nothing() -> None:
    """They err together: agreement of two copies of one voice must not raise the promise."""
    one = cases_of({"edge": CHANCES["edge"]}, 20_000, seed=3)
    twice = Cases(np.repeat(one.tokens, 2, axis=1), np.repeat(one.cells, 2, axis=1), one.came)
    arbiter = fit(twice, only("near", "edge"))
    unseen = cases_of({"edge": CHANCES["edge"]}, 12_000, seed=4)
    unseen = Cases(np.repeat(unseen.tokens, 2, axis=1), np.repeat(unseen.cells, 2, axis=1), unseen.came)
    promised, right, _ = promises(arbiter, unseen)
    gaps = reliability(promised, right)
    assert len(gaps) >= 5 and max(gaps) < 0.05


def scene_cases(count: int, seed: int) -> Cases:
    """Two sources of one cell each: what they agree on is right in 9 of 10, and where they differ, so is the second."""
    random = np.random.default_rng(seed)
    came = random.integers(0, 50, size=count)
    wrong = (came + 1 + random.integers(0, 40, size=(2, count))) % 50
    agree, sure = random.random(count) < 0.5, random.random(count) < 0.9
    first = np.where(agree & sure, came, wrong[0])
    second = np.where(agree, first, np.where(sure, came, wrong[1] + (wrong[1] == first)))
    tokens = np.stack([first, second], axis=1).astype(np.int32)
    zero = np.zeros_like(tokens)
    return Cases(tokens, zero, came.astype(np.int32))


def test_who_agrees_with_whom_tells_more_than_how_sure_each_is() -> None:
    """By themselves they are right in 45 and 90 of 100: no weights of theirs alone tell dissent from agreement."""
    arbiter = fit(scene_cases(20_000, 7), only("copy", "near"))
    chance: dict[tuple[int, int], float] = {}
    for tokens in ((5, 5), (6, 5), (5, SILENT)):
        heard = [Scripted(n, [(t, 0)]) for n, t in zip(arbiter.names, tokens, strict=True)]
        proposal = arbiter.propose(heard, beginning(heard), 1)  # type: ignore[arg-type]
        assert proposal.tokens == [5]
        chance[tokens] = proposal.probabilities[0]
    assert chance[5, 5] == pytest.approx(0.9, abs=0.01) and chance[6, 5] == pytest.approx(0.9, abs=0.01)
    assert chance[5, SILENT] < 0.9, "a scene that was never seen is judged by what all scenes have in common"


def test_a_rare_scene_is_drawn_towards_all_others() -> None:
    common, rare = cases_of(CHANCES, 20_000, seed=8, speaks=1.0), cases_of(CHANCES, 3, seed=9)
    rare_tokens = np.array([[7, SILENT, SILENT]] * 3, np.int32)
    joined = Cases(
        np.concatenate([common.tokens, rare_tokens]),
        np.concatenate([common.cells, rare.cells]),
        np.concatenate([common.came, np.full(3, 7, np.int32)]),
    )
    before, after = fit(common, only(*CHANCES)), fit(joined, only(*CHANCES))
    assert np.abs(after.weights[1] - before.weights[1]).max() < 0.5, "three right tokens do not make a scene sure"


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.98, 1.0])
@pytest.mark.parametrize("count", [1, 50, 20_000])
@pytest.mark.parametrize("known", [-12.0, -5.0, -1.0, 0.0, 3.0, 12.0])
def test_a_scene_departs_to_where_its_own_cases_draw_it(known: float, count: int, share: float) -> None:
    """However sure all scenes are of the contrary: the slope is level there, and no weight runs away."""
    random = np.random.default_rng(count)
    features = np.stack([np.ones(count), random.normal(-1, 2, size=count)], axis=1)
    right = random.random(count) < share
    weights = _depart(features, np.full(count, known), right)
    odds = known + features @ weights
    slope = features.T @ (right - 1 / (1 + np.exp(-odds))) - DRAWN * weights
    assert np.abs(slope).max() < 1e-3 * (1 + count**0.5)
    assert np.abs(weights).max() < 40


def test_a_rare_cell_is_drawn_towards_those_like_it() -> None:
    """One right token in an otherwise unseen cell does not make it certain, nor one wrong token hopeless."""
    size = cells("copy")
    cell = np.array([*([0] * 500), 1, 2], np.int32)
    came = np.array([*([1, 0] * 250), 1, 0], np.int32)
    cases = Cases(np.ones((502, 1), np.int32), cell[:, None], came)
    odds = fit(cases, only("copy")).odds[0]
    assert odds.shape == (size,) and np.isfinite(odds).all()
    chance = 1 / (1 + np.exp(-odds))
    assert chance[0] == pytest.approx(0.5, abs=0.02)
    assert 0.5 < chance[1] < 0.75 and 0.25 < chance[2] < 0.5
    assert chance[3] == pytest.approx(0.5, abs=0.02), "a cell never seen is taken for the average"


@pytest.mark.parametrize("right", [True, False])
def test_all_right_and_all_wrong(right: bool) -> None:
    made = cases_of(CHANCES, 400, seed=5)
    tokens = np.where(made.tokens == SILENT, SILENT, made.came[:, None] if right else made.came[:, None] + 1)
    arbiter = fit(Cases(tokens.astype(np.int32), made.cells, made.came), only(*CHANCES))
    promised, _, _ = promises(arbiter, made)
    assert (promised > 0.999).all() if right else (promised < 0.001).all()


def test_no_cases_promise_nothing() -> None:
    none = np.zeros((0, 3), np.int32)
    arbiter = fit(Cases(none, none, none[:, 0]), only(*CHANCES))
    assert (arbiter.weights[:, 0] == -MAX_ODDS).all() and all(np.isfinite(odds).all() for odds in arbiter.odds)


def test_only_the_named_are_heard() -> None:
    made = cases_of(CHANCES, 2_000, seed=6)
    whole = only(*CHANCES)
    for names in (["copy"], ["near", "copy"], None):
        arbiter = fit(made, whole, names)
        expected = [n for n in CHANCES if names is None or n in names]
        assert list(arbiter.names) == expected and arbiter.weights.shape == (3 ** len(expected), 1 + len(expected))
        assert [o.shape for o in arbiter.odds] == [(cells(n),) for n in expected]
        assert arbiter.weights.dtype == np.float32 and all(o.dtype == np.float32 for o in arbiter.odds)


# --- what is held out


def numbered(count: int) -> list[Said]:
    return [Said([number], [number], [0]) for number in range(count)]


@pytest.mark.parametrize("count", [MIN_SEQUENCES, 57, 100, FOLDS * 2 * TRIED + 7, 2000])
def test_no_sequence_is_tried_on_tables_that_know_it(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[list[int]] = []

    def trying(known: Any, corpus: Any, _: Any) -> Cases:
        held = corpus.tokens.tolist()
        assert not known & set(held) and held == corpus.before.tolist()
        assert len(known) + count // FOLDS == count, "four fifths are known"
        tried.append(held)
        return Cases(*(np.zeros((0, 1), np.int32),) * 2, np.zeros(0, np.int32))

    monkeypatch.setattr(calibrate_module, "try_sources", trying)
    monkeypatch.setattr(calibrate_module, "fit", lambda *_: "arbiter")
    assert calibrate(corpus_of(numbered(count)), lambda some: set(some.tokens.tolist()), seed=0) == "arbiter"  # type: ignore[arg-type, return-value]
    whole = [number for part in tried for number in part]
    assert len(set(whole)) == len(whole), "and none twice"
    small = count // FOLDS <= 2 * TRIED
    assert len(whole) == (FOLDS * min(count // FOLDS, TRIED) if small else min(count // FOLDS, TRIED_ONCE))
    assert len(tried) == (FOLDS if small else 1)


@pytest.mark.parametrize("count", [0, 1, MIN_SEQUENCES - 1])
def test_a_small_corpus_leaves_nothing_to_hold_back(count: int) -> None:
    assert calibrate(corpus_of(numbered(count)), lambda _: pytest.fail("no tables are needed"), seed=0) is None  # type: ignore[arg-type, return-value]


def test_a_corpus_of_single_rows_is_calibrated_to_nothing() -> None:
    """Nothing follows any row: no source ever names a token."""
    graph = full_graph()
    arbiter = calibrate(corpus_of([Said([1], [2], [0])] * 30), lambda _: Sources(graph), seed=0)
    assert arbiter is not None and arbiter.names == NAMES and (arbiter.weights[:, 0] == -MAX_ODDS).all()


def test_cases_are_what_sources_say_along_a_sequence() -> None:
    """Every case against sources that were started there afresh and given the tokens that came."""
    graph = full_graph()
    said = full_sequences(5, seed=77)
    long = Said([30, 31], [10, *([40, 41, 42] * 14)], [k % 12 for k in range(43)])
    for one in (*said, long, Said([3], [4], [0]), Said([], [4, 5], [1, 2])):
        cases = try_sources(Sources(graph), corpus_of([one]), bar())
        whole = [*one.before, *one.tokens]
        rows = len(one.tokens)
        anchors = sorted({round(a) for a in np.linspace(0, rows - 2, min(rows - 1, ANCHORS))}) if rows > 1 else []
        at = 0
        for anchor in anchors:
            until = len(one.before) + anchor + 1
            fresh = Sources(graph)
            moment = fresh.start(whole[:until], one.labels[anchor])
            for token in whole[until : until + REACH]:
                assert cases.came[at] == token
                for k, voice in enumerate(moment.voices):
                    assert cases.tokens[at, k] == voice >> CELL_BITS
                    assert voice == SILENT or cases.cells[at, k] == voice & CELL
                fresh.push(token, moment)
                at += 1
        assert len(cases.came) == at


def test_answers_that_are_all_alike_are_fitted_without_a_warning() -> None:
    """Columns that tell the same leave the regression no single best answer; the user can do nothing about that."""
    features, right = np.full((2000, 20), 4.6, np.float32), np.arange(2000) > 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        weights, bias = calibrate_module._regress(features, right)
    assert np.isfinite([*weights, bias]).all()
