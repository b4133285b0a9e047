"""How voices add up, against the sum written out with NumPy; where a draft stops; who is named as its source."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daari_mlx.graph import arbiter as arbiter_module
from daari_mlx.graph.arbiter import FLOOR, MAX_ODDS, Arbiter, counted, scenes_of, taken_at_their_word
from daari_mlx.graph.source import CELL_BITS, NAMES, SILENT, Moment, cells


class Scripted:
    """Names the given tokens and cells, one a step, whatever is drafted; then nothing."""

    def __init__(self, name: str, script: list[tuple[int, int]]) -> None:
        self.name, self.script, self.at = name, script, 0
        self.heard: list[tuple[int, str]] = []

    def start(self, moment: Moment) -> int:
        token, cell = self.script[self.at] if self.at < len(self.script) else (SILENT, 0)
        return SILENT if token == SILENT else token << CELL_BITS | cell

    def push(self, token: int, moment: Moment) -> int:
        self.at += 1
        self.heard.append((token, moment.said))
        return self.start(moment)


def beginning(heard: list[Scripted], said: str = "") -> Moment:
    """Where a draft starts that these are heard on."""
    moment = Moment(0, 0, said)
    moment.voices = [source.start(moment) for source in heard]
    return moment


def arbiter_of(names: tuple[str, ...], seed: int, scale: float = 1.5) -> Arbiter:
    random = np.random.default_rng(seed)
    odds = tuple(random.normal(size=cells(n), scale=scale).astype(np.float32) for n in names)
    weights = random.normal(size=(3 ** len(names), 1 + len(names))).astype(np.float32)
    return Arbiter(names, odds, weights)


def scripted(names: tuple[str, ...], seed: int, length: int = 12, vocabulary: int = 4) -> list[Scripted]:
    random = np.random.default_rng(seed)
    return [
        Scripted(n, [(int(random.integers(-1, vocabulary)), int(random.integers(cells(n)))) for _ in range(length)])
        for n in names
    ]


def propose(arbiter: Arbiter, heard: list[Scripted], limit: int = 50, **options: Any) -> Any:
    return arbiter.propose(heard, beginning(heard, "x"), limit, **options)


def chances(arbiter: Arbiter, heard: list[Scripted], step: int) -> dict[int, float]:
    """The chance of every token that some source names in a step, each voice added up in double precision."""
    named = [s.script[step] if step < len(s.script) else (SILENT, 0) for s in heard]
    found = {}
    for candidate in sorted({token for token, _ in named if token != SILENT}):
        says = [0 if token == SILENT else 1 if token == candidate else 2 for token, _ in named]
        weights = arbiter.weights.astype(float)[sum(says[k] * 3**k for k in range(len(says)))]
        total = weights[0]
        for k, (token, cell) in enumerate(named):
            if token != SILENT:
                total += float(arbiter.odds[k][cell]) * weights[1 + k]
        found[candidate] = float(1 / (1 + np.exp(-np.clip(total, -MAX_ODDS, MAX_ODDS))))
    return found


SOME = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True).map(tuple)


@given(SOME, st.integers(0, 10_000), st.integers(1, 15))
def test_a_draft_is_the_likeliest_token_of_every_step(names: tuple[str, ...], seed: int, limit: int) -> None:
    arbiter, heard = arbiter_of(names, seed), scripted(names, seed + 1)
    found = propose(arbiter, heard, limit, floor=0.0)
    assert len(found.tokens) == len(found.probabilities) == len(found.sources) <= limit
    for step, (token, probability) in enumerate(zip(found.tokens, found.probabilities, strict=True)):
        expected = chances(arbiter, heard, step)
        assert probability == pytest.approx(expected[token], abs=1e-4)
        assert expected[token] >= max(expected.values()) - 1e-4
        first = next(s for s in heard if s.script[step][0] == token)
        assert found.sources[step] == first.name
    if len(found.tokens) < limit:
        assert chances(arbiter, heard, len(found.tokens)) == {}


@given(SOME, st.integers(0, 10_000), st.floats(0.0, 0.99))
def test_a_path_less_likely_than_the_floor_ends(names: tuple[str, ...], seed: int, floor: float) -> None:
    arbiter = arbiter_of(names, seed)
    whole = propose(arbiter, scripted(names, seed + 1), floor=0.0)
    found = propose(arbiter, scripted(names, seed + 1), floor=floor)
    likely = [1.0, *np.cumprod(whole.probabilities).tolist()]
    length = next((k for k, path in enumerate(likely[:-1]) if path <= floor), len(whole.tokens))
    assert found.tokens == whole.tokens[:length] and found.probabilities == whole.probabilities[:length]


def sure(names: tuple[str, ...] = ("copy",), bias: float = 4.0) -> Arbiter:
    odds = tuple(np.zeros(cells(n), np.float32) for n in names)
    weights = np.zeros((3 ** len(names), 1 + len(names)), np.float32)
    weights[:, 0] = bias
    return Arbiter(names, odds, weights)


@given(st.integers(0, 12), st.sets(st.integers(0, 9)), st.lists(st.integers(-1, 9), max_size=12))
def test_limit_end_and_silence_end_a_draft(limit: int, ends: set[int], script: list[int]) -> None:
    heard = Scripted("copy", [(t, 0) for t in script])
    found = propose(sure(), [heard], limit, ends=ends)
    expected: list[int] = []
    for token in script:
        if token == SILENT or len(expected) == limit:
            break
        expected.append(token)
        if token in ends:
            break
    assert found.tokens == expected
    pushed = expected[:-1] if expected and (expected[-1] in ends or len(expected) == limit) else expected
    said = ["x" + "".join(map(chr, pushed[: k + 1])) for k in range(len(pushed))]
    assert heard.heard == list(zip(pushed, said, strict=True)), "every source hears every token that is gone on from"


@pytest.mark.parametrize("sign", [1, -1])
def test_no_probability_is_quite_0_or_1(sign: int) -> None:
    """However large the sum: a float would be 0 or 1, and an exponential too large for one."""
    odds = (np.full(cells("copy"), 1e5, np.float32),)
    arbiter = Arbiter(("copy",), odds, np.full((3, 2), sign * 9e5, np.float32))
    (probability,) = propose(arbiter, [Scripted("copy", [(3, 0)])]).probabilities
    assert probability == pytest.approx(1 / (1 + np.exp(-sign * MAX_ODDS))) and 0 < probability < 1


def test_a_hopeless_token_does_not_end_a_draft_of_a_set_length() -> None:
    script = [(k % 7, 0) for k in range(9)]
    assert propose(sure(bias=-MAX_ODDS), [Scripted("copy", script)], floor=0.0).tokens == [t for t, _ in script]


def test_agreement_and_dissent_count() -> None:
    names = ("edge", "copy", "near")
    odds = tuple(np.ones(cells(n), np.float32) for n in names)
    says = scenes_of(3)
    slopes = np.choose(says, [0.0, 1.0, -0.25])
    weights = np.concatenate([np.choose(says, [0.0, 0.5, -0.5]).sum(axis=1, keepdims=True), slopes], axis=1)
    arbiter = Arbiter(names, odds, weights.astype(np.float32))
    alone = propose(arbiter, [Scripted(n, [(5, 0)] if n == "copy" else []) for n in names])
    agreed = propose(arbiter, [Scripted(n, [(5, 0)]) for n in names])
    split = propose(arbiter, [Scripted(n, [(t, 0)]) for n, t in zip(names, (6, 5, 5), strict=True)])
    odds_of = [float(np.log(p / (1 - p))) for p in (f.probabilities[0] for f in (alone, agreed, split))]
    assert odds_of == pytest.approx([1.5, 4.5, 2 * 1.5 - 0.75], abs=1e-5)
    assert split.tokens == [5] and split.sources == ["copy"] and agreed.sources == ["edge"]


def test_of_equal_votes_the_first_source_is_heard() -> None:
    found = propose(sure(("edge", "copy")), [Scripted("edge", [(9, 0)]), Scripted("copy", [(2, 0)])])
    assert found.tokens == [9] and found.sources == ["edge"]


def test_a_draft_may_be_as_long_as_asked_for() -> None:
    script = [(k % 7, 0) for k in range(1500)]
    assert propose(sure(bias=50.0), [Scripted("copy", script)], 1400, floor=0.0).tokens == [t for t, _ in script[:1400]]


def test_the_default_floor_ends_a_hopeless_path() -> None:
    found = propose(sure(bias=0.0), [Scripted("copy", [(1, 0)] * 50)])
    assert len(found.tokens) == next(k for k in range(50) if 0.5**k <= FLOOR)


def test_an_uncalibrated_walk_trusts_shares_less_the_rarer_they_are() -> None:
    arbiter = counted()
    assert arbiter.names == ("edge",) and arbiter.odds[0].shape == (cells("edge"),)
    promised = [propose(arbiter, [Scripted("edge", [(1, kind)])], 1).probabilities[0] for kind in range(cells("edge"))]
    by_share = np.array(promised).reshape(9, 6)
    assert (np.diff(by_share, axis=0) >= 0).all() and (np.diff(by_share, axis=1) >= 0).all()
    assert by_share.min() > 0.009 and by_share.max() < 0.991
    assert by_share[-1, 0] == pytest.approx(1 / 3, abs=1e-5)


def test_a_scene_is_what_every_source_says_as_a_number_to_base_3() -> None:
    for count in range(1, 5):
        says = scenes_of(count).tolist()
        assert len({tuple(row) for row in says}) == len(says) == 3**count
        assert [sum(digit * 3**k for k, digit in enumerate(row)) for row in says] == list(range(3**count))


def test_sources_taken_at_their_word_are_averaged() -> None:
    names = ("edge", "copy", "near")
    odds = tuple(np.full(cells(n), k, np.float32) for k, n in enumerate(names))
    arbiter = Arbiter(names, odds, taken_at_their_word(3))
    for scripts, expected in (((5, 5, 5), 1.0), ((5, 5, -1), 0.5), ((-1, -1, 5), 2.0), ((6, 5, 5), 1.5)):
        found = propose(arbiter, [Scripted(n, [(t, 0)]) for n, t in zip(names, scripts, strict=True)])
        assert found.tokens == [5] and found.probabilities[0] == pytest.approx(1 / (1 + np.exp(-expected)))


def test_a_verdict_that_is_remembered_is_the_same_and_few_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arbiter_module, "REMEMBERED", 7)
    arbiter, fresh = arbiter_of(NAMES, 1), arbiter_of(NAMES, 1)
    for seed in range(60):  # the second half says what the first did
        found = propose(arbiter, scripted(NAMES, seed % 30), floor=0.0)
        assert found == propose(arbiter_of(NAMES, 1), scripted(NAMES, seed % 30), floor=0.0)
        assert len(arbiter.known) <= 7
    assert arbiter.known and not fresh.known


def test_silence_is_remembered_as_silence() -> None:
    arbiter = sure()
    for _ in range(3):
        assert propose(arbiter, [Scripted("copy", [])]).tokens == []


class Cleared(dict[Any, Any]):
    """Verdicts that another thread, which found them too many, clears as soon as one is written down."""

    def __setitem__(self, case: Any, verdict: Any) -> None:
        super().__setitem__(case, verdict)
        self.clear()


def test_verdicts_that_another_thread_clears_change_no_draft() -> None:
    arbiter, alone = arbiter_of(("edge", "copy"), 5), arbiter_of(("edge", "copy"), 5)
    arbiter.__dict__["known"] = Cleared()
    for seed in range(20):
        heard, again = scripted(arbiter.names, seed), scripted(arbiter.names, seed)
        assert propose(arbiter, heard, floor=0.0) == propose(alone, again, floor=0.0)
