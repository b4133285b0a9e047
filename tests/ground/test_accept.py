"""Acceptance as a rule over integers, and the one place where decoding is counted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from daari_mlx.ground.accept import Statistics, accept_block, count_accepted

TOKEN = st.integers(0, 3)  # few values, so that drafts often agree


@st.composite
def rounds(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """A draft of γ tokens and the teacher's own token at each of the γ+1 rows."""
    draft = draw(st.lists(TOKEN, max_size=12))
    verdicts = [draw(st.sampled_from([d, d, d, (d + 1) % 4])) for d in draft] + [draw(TOKEN)]
    return draft, verdicts


def naive(draft: list[int], verdicts: list[int]) -> list[int]:
    """Plain decoding in slow motion: say the teacher's token, go on while the draft said the same."""
    emitted = []
    for row in range(len(draft) + 1):
        emitted.append(verdicts[row])
        if row == len(draft) or draft[row] != verdicts[row]:
            break
    return emitted


@given(rounds())
def test_a_round_emits_the_agreeing_prefix_and_the_bonus(case: tuple[list[int], list[int]]) -> None:
    draft, verdicts = case
    emitted, accepted = accept_block(draft, verdicts), count_accepted(draft, verdicts)
    assert emitted == naive(draft, verdicts)
    assert emitted == [*draft[:accepted], verdicts[accepted]]
    assert 1 <= len(emitted) == accepted + 1 <= len(draft) + 1
    if accepted < len(draft):
        assert draft[accepted] != emitted[-1], "a refused draft token is never what comes out"


@given(rounds())
def test_everything_emitted_is_the_teachers_own(case: tuple[list[int], list[int]]) -> None:
    draft, verdicts = case
    emitted = accept_block(draft, verdicts)
    assert emitted == verdicts[: len(emitted)]


@given(st.lists(TOKEN, max_size=8), st.lists(TOKEN, max_size=8))
def test_counting_stops_at_the_shorter_of_the_two(draft: list[int], verdicts: list[int]) -> None:
    """A caller that stopped verifying early has fewer verdicts than draft tokens."""
    agreeing = 0
    while agreeing < min(len(draft), len(verdicts)) and draft[agreeing] == verdicts[agreeing]:
        agreeing += 1
    assert count_accepted(draft, verdicts) == agreeing


def test_an_empty_draft_emits_the_bonus_alone() -> None:
    assert accept_block([], [7]) == [7] and count_accepted([], [7]) == 0


@given(st.lists(rounds(), max_size=8), st.integers(0, 8))
def test_statistics_add_up(cases: list[tuple[list[int], list[int]]], split: int) -> None:
    """Counted in one go, or in two that are added: the same, and the parts sum to the whole."""
    whole, first, second = Statistics(), Statistics(), Statistics()
    for number, (draft, verdicts) in enumerate(cases):
        for statistics in (whole, first if number < split else second):
            emitted = accept_block(draft, verdicts)
            statistics.forward(len(draft))
            for row in range(len(emitted)):
                statistics.emit("edge" if row < len(emitted) - 1 else None)
    first.add(second)
    assert first == whole
    emitted_tokens = [accept_block(*case) for case in cases]
    assert whole.tokens == sum(map(len, emitted_tokens)) == sum(whole.sources.values())
    assert whole.forwards == len(cases)
    assert whole.drafted == sum(len(draft) for draft, _ in cases)
    assert whole.accepted == whole.tokens - whole.forwards == whole.sources.get("edge", 0)
    assert whole.rounds_drafted == sum(bool(draft) for draft, _ in cases)
    assert whole.tokens_per_forward == (whole.tokens / len(cases) if cases else 0.0)
    assert whole.acceptance_rate == (whole.accepted / whole.drafted if whole.drafted else 0.0)


def test_the_reason_for_not_drafting_survives_adding() -> None:
    total = Statistics()
    total.add(Statistics(drafting_off="no graph was given"))
    total.add(Statistics())
    assert total.drafting_off == "no graph was given"


def test_the_record_has_the_published_names_and_is_a_copy() -> None:
    statistics = Statistics()
    statistics.forward(2)
    statistics.emit("edge")
    statistics.emit(None)
    record = statistics.as_dict()
    assert record == {
        "tokens": 2,
        "forwards": 1,
        "tokens_per_forward": 2.0,
        "calls": 1,
        "tokens_per_call": 2.0,
        "drafted": 2,
        "accepted": 1,
        "acceptance_rate": 0.5,
        "draft_seconds": 0.0,
        "sources": {"edge": 1, "teacher": 1},
        "drafting_off": None,
    }
    statistics.emit(None)
    assert record["sources"] == {"edge": 1, "teacher": 1}
