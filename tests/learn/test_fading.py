"""What no longer comes true fades and goes first; what still does stays, however old."""

from __future__ import annotations

import numpy as np
import pytest

from daari_mlx.draft.drafter import Context
from daari_mlx.graph.arrays import to_arrays
from daari_mlx.graph.graph import Graph
from daari_mlx.learn.drafter import LearningDrafter
from daari_mlx.learn.fading import NEWEST, faded, first_to_go, lasting, stale
from daari_mlx.learn.fold import fold, nothing_known
from daari_mlx.learn.heard import Heard, heard
from daari_mlx.learn.learner import Learner
from daari_mlx.learn.memory import CROWDED, corpus_of
from daari_mlx.learn.newest import room_for_newest
from daari_mlx.learn.prior import prior
from daari_mlx.learn.remembered import Remembered

WIDTH, VOCABULARY = 24, 400
BYTES = 18_000  # of 17 answers, too few to calibrate on
FORMS = {"A": (10, 60), "B": (200, 250)}  # where the tokens of a form lie
DIRECTIONS = np.random.default_rng(7).normal(size=(VOCABULARY, WIDTH)).astype(np.float32)


def said(form: str, seed: int) -> tuple[list[int], list[int], np.ndarray]:
    """A prompt and an answer of a form, a value in the middle, and the states that they were chosen from."""
    first, last = FORMS[form]
    value = np.random.default_rng(seed).integers(first + 20, last, 2).tolist()
    prompt, answer = [5, 300 + seed % 90], [*range(first, first + 8), *value, *range(first + 8, first + 16)]
    noise = np.random.default_rng(seed + 1).normal(scale=0.05, size=(len(answer) + 1, WIDTH))
    return prompt, answer, DIRECTIONS[[prompt[-1], *answer]] + noise.astype(np.float32)


def answers(forms: str, start: int = 0) -> list[Heard]:
    """An answer a letter, each a second after the other."""
    found = []
    for k, form in enumerate(forms, start):
        prompt, answer, states = said(form, k)
        one = heard(prompt, answer, [states], at=1000.0 + k)
        assert one is not None
        found.append(one)
    return found


def tell(learner: Learner, forms: str, start: int = 0) -> None:
    for k, form in enumerate(forms, start):
        prompt, answer, states = said(form, k)
        learner.hear(prompt, answer, [states])


def forms_of(some: list[Heard]) -> str:
    return "".join("A" if one.answer[0] == FORMS["A"][0] else "B" for one in some)


def test_what_the_newest_do_not_say_is_stale_and_what_they_do_is_not() -> None:
    some = answers("A" * 30 + "B" * 40)
    assert stale(some)[:30].all() and not stale(some)[30:].any()
    mixed = answers("AB" * 40)
    assert not stale(mixed).any()


def test_text_without_a_form_is_not_stale_for_being_new() -> None:
    random, some = np.random.default_rng(0), []
    for k in range(60):
        one = heard([1], random.integers(0, 12, 30).tolist(), [random.normal(size=(31, WIDTH))], at=float(k))
        assert one is not None
        some.append(one)
    assert stale(some).mean() < 0.1


def test_old_forms_halve_with_age_and_none_of_the_others_goes() -> None:
    some = answers("A" * NEWEST + "BA" * 10 + "B" * (3 * NEWEST))
    kept = lasting(some)
    assert forms_of(kept).count("B") == 3 * NEWEST + 10
    assert 0 < forms_of(kept).count("A") < NEWEST / 4
    assert [one.at for one in kept] == sorted(one.at for one in kept)
    assert [one.at for one in lasting(some)] == [one.at for one in kept]  # the same ones each time
    alike = answers("AB" * NEWEST)
    assert lasting(alike) == alike


def test_what_is_used_least_goes_first_then_the_oldest() -> None:
    some = answers("BBBB" + "A" * 8 + "B" * 20)
    each = some[0].nbytes
    assert first_to_go(some, 5 * each) == {4, 5, 6, 7, 8}
    assert first_to_go(some, 10 * each) == {*range(4, 12), 0, 1}
    assert first_to_go(some, 0) == set()


def test_a_stream_of_one_form_gives_way_to_another_within_the_bytes() -> None:
    """Form A, then long form B: A's entries go, B's drafts come, and at no time are there more bytes than allowed."""
    learner = Learner.of_nothing({}, WIDTH, VOCABULARY, memory_bytes=BYTES, max_bytes=140_000, beside=False)

    def entries(form: str) -> int:
        graph, first = learner.snapshot.graph, FORMS[form][0]
        return int((graph.edge_token == first).sum() + (graph.text == first).sum())

    def drafted() -> list[int]:
        """What is drafted behind the beginning of an answer of form B."""
        prompt, answer, states = said("B", 10**6)
        context = Context([*prompt, *answer[:2]], states[2])
        return LearningDrafter(learner, num_draft_tokens=4).draft(context, 8).tokens

    tell(learner, "A" * 15)
    assert entries("A") and not entries("B")
    assert drafted() != said("B", 10**6)[1][2:6]
    shares = []
    for k in range(15, 95):
        tell(learner, "B", k)
        shares.append(forms_of(list(learner.memory.answers)).count("A"))
        assert learner.memory.nbytes <= BYTES
        assert sum(array.nbytes for array in to_arrays(learner.snapshot.graph).values()) <= 140_000
    assert shares[0] > 0 and shares[-1] == 0
    assert entries("B") and not entries("A")
    assert drafted() == said("B", 10**6)[1][2:6]
    learner.snapshot.graph.check()


def test_a_form_that_still_comes_outlives_younger_ones_that_do_not() -> None:
    kept = Remembered(BYTES, WIDTH, None)
    for one in answers("BBBB" + "A" * 4 + "B" * 10):
        kept.hear(one)
        kept.tidy()
        assert kept.memory.nbytes <= CROWDED * BYTES
    assert kept.memory.forgotten > 0
    left = forms_of(list(kept.memory.answers))
    assert left.startswith("BBBB") and left.count("A") == 4 - kept.memory.forgotten


@pytest.fixture(scope="module")
def base() -> Graph:
    graph = nothing_known(WIDTH, VOCABULARY, "final", prior())
    return fold(answers("A" * 9 + "B" * 9), graph, None).graph


def test_a_compiled_graph_fades_where_it_no_longer_comes_true(base: Graph) -> None:
    new = [one.through(base.nodes.projection) for one in reversed(answers("B" * 40, 100))]
    corpus = corpus_of(new, base.nodes)
    assert faded(base, corpus, NEWEST - 1) is base
    then = faded(base, corpus, 3 * NEWEST)
    then.check()
    node = np.repeat(np.arange(base.size), np.diff(base.edge_start))

    def count(graph: Graph, form: str) -> float:
        first, _ = FORMS[form]
        own = (graph.edge_token >= first) & (graph.edge_token < first + 16)
        return float((graph.edge_probability * graph.support[node])[own].sum())

    assert count(then, "A") <= count(base, "A") / 8 + len(node)
    assert count(then, "B") == pytest.approx(count(base, "B"))
    own = base.text[base.exemplars.place] < FORMS["B"][0]
    left = then.text[then.exemplars.place] < FORMS["B"][0]
    assert left.sum() < own.sum() / 4


def test_a_compiled_graph_that_still_comes_true_stays(base: Graph) -> None:
    new = [one.through(base.nodes.projection) for one in reversed(answers("AB" * 60))]
    then = faded(base, corpus_of(new, base.nodes), 5 * NEWEST)
    assert then.support.sum() > 0.9 * base.support.sum()
    assert len(then.exemplars) > 0.9 * len(base.exemplars)


def test_what_tables_do_not_know_yet_has_room_of_its_own() -> None:
    learner = Learner.of_nothing({}, WIDTH, VOCABULARY, max_bytes=140_000, beside=False, clock=lambda: 0.0)
    tell(learner, "A" * 4)
    learner._spent = 1e9  # nothing is counted any more
    tell(learner, "B" * 60, 4)
    graph = learner.snapshot.graph
    assert FORMS["B"][0] in graph.text
    assert sum(array.nbytes for array in to_arrays(graph).values()) <= 140_000
    assert len(graph.text) < 20 * 64  # the newest that its room holds
    assert room_for_newest(140_000) == 5_000
