"""The tokens that a grammar forces: drafted alone, between another drafter's, and never instead of the teacher's."""

from __future__ import annotations

from typing import Any

import pytest

from daari_mlx.cost.length import Cost
from daari_mlx.draft.drafter import Context, Draft
from daari_mlx.draft.forced import SOURCE, ForcedDrafter
from daari_mlx.ground.errors import DaariError

PROMPT = [50, 51]
CHEAP, DEAR = Cost((1, 33), (1.0, 1.1)), Cost((1, 2, 33), (1.0, 2.0, 33.0))


class Form:
    """A grammar of answers ``1 2 3 x 4 5 y 6``: x and y are 10 or 11, all else is forced."""

    size = 60
    form = ([1], [2], [3], [10, 11], [4], [5], [10, 11], [6])

    def forced(self, history: list[int]) -> list[int]:
        found = []
        for choices in self.form[len(history) - len(PROMPT) :]:
            if len(choices) > 1:
                break
            found += choices
        return found

    def allowed(self, history: list[int], draft: list[int]) -> int:
        rest = self.form[len(history) - len(PROMPT) :]
        pairs = enumerate(zip(draft, rest, strict=False))
        return next((n for n, (token, choices) in pairs if token not in choices), min(len(draft), len(rest)))


class Says:
    """Drafts these tokens, whatever was said; counts how often it was asked."""

    layer = None

    def __init__(self, tokens: list[int], rest: int = 0, **more: Any) -> None:
        self.made, self.asked = Draft(tokens, [0.7] * len(tokens), ["own"] * len(tokens), rest=rest, **more), 0

    def draft(self, context: Context, limit: int, pending: int = 0) -> Draft:
        self.asked += 1
        return self.made


def draft(other: Any, said: list[int], limit: int = 20, **how: Any) -> Draft:
    how = how or {"num_draft_tokens": 20}
    return ForcedDrafter(Form(), other, **how).draft(Context(PROMPT + said, None), limit)


def test_what_is_forced_is_drafted_up_to_the_first_choice() -> None:
    found = draft(None, [])
    assert found.tokens == [1, 2, 3] and found.sources == [SOURCE] * 3
    assert draft(None, [1, 2, 3]).tokens == [] and draft(None, [1, 2, 3, 10]).tokens == [4, 5]
    assert draft(None, [1], limit=1).tokens == [2] and draft(None, [], num_draft_tokens=2).tokens == [1, 2]


def test_another_drafter_says_the_choices() -> None:
    found = draft(Says([1, 2, 3, 11, 4, 5, 10, 6]), [])
    assert found.tokens == [1, 2, 3, 11, 4, 5, 10, 6]
    assert [round(p, 2) for p in found.probabilities] == [0.95, 0.95, 0.95, 0.7, 0.95, 0.95, 0.7, 0.95]
    assert set(found.sources) == {"own"}
    found = draft(Says([11]), [1, 2, 3])
    assert (found.tokens, found.sources) == ([11, 4, 5], ["own", SOURCE, SOURCE])


def test_what_the_grammar_forbids_ends_the_other_draft() -> None:
    found = draft(Says([1, 9, 3, 11]), [])
    assert (found.tokens, found.sources) == ([1, 2, 3], ["own", SOURCE, SOURCE])
    assert draft(Says([9, 11]), [1, 2, 3]).tokens == []
    assert draft(Says([1, 2]), []).tokens == [1, 2, 3], "it goes on where the other ends"


def test_the_length_is_what_pays() -> None:
    assert draft(None, [], cost=CHEAP).tokens == [1, 2, 3]
    assert draft(None, [], cost=DEAR).tokens == []
    with pytest.raises(ValueError, match="cost curve"):
        ForcedDrafter(Form())


def test_a_teacher_that_cuts_the_text_otherwise_is_drafted_less() -> None:
    drafter, tokens = ForcedDrafter(Form(), cost=Cost((1, 2, 33), (1.0, 1.6, 33.0))), list(PROMPT)
    context = Context(tokens, None)
    assert drafter.draft(context, 20).tokens
    for _ in range(30):
        drafter.draft(context, 20)
        tokens.append(40)
        del tokens[len(PROMPT) + 1 :]
        drafter._learn(tokens)
        del tokens[len(PROMPT) :]
    assert drafter.draft(context, 20).tokens == []


def test_another_drafter_rests_while_the_grammar_goes_on() -> None:
    other = Says([], rest=3)
    drafter = ForcedDrafter(Form(), other, num_draft_tokens=9)
    for _ in range(4):
        found = drafter.draft(Context(PROMPT, None), 9)
        assert found.tokens == [1, 2, 3] and found.rest == 0
    assert other.asked == 1
    drafter.draft(Context(PROMPT, None), 9)
    assert other.asked == 2


def test_who_chooses_for_many_rows_is_offered_all_and_says_what_is_taken() -> None:
    class Offers(Says):
        took = -1

        def offer(self, context: Context, limit: int) -> Draft:
            return self.made

        def take(self, length: int) -> Draft:
            self.took = length
            return self.made.first(length)

    other = Offers([1, 2, 3, 11, 4])
    drafter = ForcedDrafter(Form(), other, cost=DEAR)
    assert drafter.offer(Context(PROMPT, None), 20).tokens == [1, 2, 3, 11, 4, 5]
    found = drafter.take(4)
    assert found.tokens == [1, 2, 3, 11] and other.took == 4
    drafter.offer(Context(PROMPT, None), 20)
    assert drafter.take(6).tokens == [1, 2, 3, 11, 4, 5] and other.took == 5
    cheap = ForcedDrafter(Form(), other, cost=CHEAP)
    assert cheap.draft(Context(PROMPT, None), 20).tokens == [1, 2, 3, 11, 4, 5], "one length for all of it"


def test_the_text_before_the_prompt_is_not_the_grammars() -> None:
    drafter = ForcedDrafter(Form(), num_draft_tokens=9, before=3)
    assert drafter.draft(Context([7, 7, 7, *PROMPT, 1], None), 9).tokens == [2, 3]


def test_a_grammar_that_cannot_look_ahead_forces_nothing() -> None:
    class Blind(Form):
        def forced(self, history: list[int]) -> list[int]:
            raise DaariError("too many items")

    found = ForcedDrafter(Blind(), Says([1, 2, 9]), num_draft_tokens=9).draft(Context(PROMPT, None), 9)
    assert found.tokens == [1, 2]


@pytest.mark.parametrize("wrong", [[99], [-1], ["a"]])
def test_what_the_other_returns_is_looked_at_under_its_name(wrong: list[Any]) -> None:
    if wrong == ["a"]:
        with pytest.raises(DaariError, match="Says"):
            draft(Says(wrong), [])
    else:
        assert draft(Says(wrong), []).tokens == [1, 2, 3]
    untold = Says([1, 2, 3, 11])
    untold.made.probabilities = []
    assert draft(untold, []).tokens == [1, 2, 3, 11, 4, 5]


def test_states_are_read_where_the_other_reads_them() -> None:
    class Reads(Says):
        layer = 3  # type: ignore[assignment]

    class Untold:
        def draft(self, context: Context, limit: int, pending: int = 0) -> Draft:
            return Draft()

    layers = [ForcedDrafter(Form(), other, num_draft_tokens=1).layer for other in (None, Says([]), Reads([]), Untold())]
    assert layers == [None, None, 3, "final"]
