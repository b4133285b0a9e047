"""How far promises are believed: learnt from what the teacher accepts, in both directions, and only from that."""

from __future__ import annotations

from graphs import graph_of
from hypothesis import given
from hypothesis import strategies as st
from test_draft import STATE, TOKENS, anchored

from daari_mlx.cost.length import Cost, Trust
from daari_mlx.draft.drafter import Context, GraphDrafter

COST = Cost((1, 33), (1.0, 5.0))  # every row costs something, so that a draft in vain does not pay

# what the teacher says in a round; each ends with the token that the path begins with
RIGHT, WRONG = [*TOKENS[1:], TOKENS[0]], [999, TOKENS[0]]


@given(st.lists(st.tuples(st.floats(0.01, 1.0), st.booleans()), max_size=200))
def test_the_factor_stays_a_factor(judged: list[tuple[float, bool]]) -> None:
    trust = Trust()
    assert trust.factor == 1.0
    for probability, right in judged:
        trust.learn(probability, right)
        assert 0.0 < trust.factor <= 1.0
    if all(right for _, right in judged):
        assert trust.factor == 1.0


def loop_drafter() -> GraphDrafter:
    """Stands on a node that drafts ``TOKENS[1:]`` with a high promise, round after round."""
    edges = {i: {t: 0.95} for i, t in enumerate(TOKENS)}
    steps = {(i, t): i + 1 for i, t in enumerate(TOKENS[:-1])}
    return GraphDrafter(anchored(graph_of(len(TOKENS), 1000, edges, steps, seen=100), 0), cost=COST)


def rounds(drafter: GraphDrafter, own: list[int], count: int) -> list[int]:
    """The draft lengths of so many rounds in which the teacher says ``own`` each time."""
    tokens, lengths = [1, TOKENS[0]], []
    for _ in range(count):
        draft = drafter.draft(Context(tokens, STATE), 1000)
        lengths.append(len(draft.tokens))
        tokens = [*tokens, *own]
    return lengths


def test_a_text_that_breaks_promises_is_soon_not_drafted_and_drafted_again_when_it_keeps_them() -> None:
    drafter = loop_drafter()
    lengths = rounds(drafter, own=WRONG, count=30)
    assert lengths[0] > 3 and max(lengths[4:]) <= 2 and lengths[16:] == [0] * 14
    assert rounds(drafter, own=RIGHT, count=60)[-1] > 3


def test_kept_promises_leave_the_length_as_it_is() -> None:
    lengths = rounds(loop_drafter(), own=RIGHT, count=10)
    assert len(set(lengths)) == 1 and lengths[0] > 3


def test_a_set_length_is_not_second_guessed() -> None:
    drafter = loop_drafter()
    drafter.num_draft_tokens, drafter.cost = 4, None
    assert rounds(drafter, own=WRONG, count=20) == [4] * 20


@given(st.lists(st.tuples(st.floats(0.3, 0.99), st.booleans()), max_size=100))
def test_a_new_text_is_met_with_half_of_what_was_learnt(judged: list[tuple[float, bool]]) -> None:
    trust, fresh = Trust(), Trust()
    for probability, right in judged:
        trust.learn(probability, right)
    names = ("_kept", "_promised", "_judged")
    before, start = ([getattr(t, name) for name in names] for t in (trust, fresh))
    trust.turn()
    for name, learnt, new in zip(names, before, start, strict=True):
        assert abs(getattr(trust, name) - (learnt + new) / 2) < 1e-9
    for _ in range(60):
        trust.turn()
    assert abs(trust.factor - 1.0) < 1e-9, "and after many texts with none of it"


def test_another_text_lets_a_drafter_trust_itself_more_again() -> None:
    drafter = loop_drafter()
    rounds(drafter, WRONG, 6)
    distrusted = drafter._trust.factor
    drafter.draft(Context([5, 6, TOKENS[0]], STATE), 30)
    assert distrusted < drafter._trust.factor < 1.0
