"""Whatever a request does (raise, mutate, leave, hand in nonsense), the others have the tokens that they have alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache
from test_batch_engine import TOKENS, engine_of, prompts_of, run
from zoo import Oracle, build, plain_tokens

from daari_mlx.batch.request import Event, Request
from daari_mlx.draft.drafter import Draft
from daari_mlx.ground.errors import DaariError

PROMPTS = prompts_of(20)


@pytest.fixture(scope="module", params=["llama", "gemma3_text", "lfm2"])
def model(request: pytest.FixtureRequest) -> Any:
    return build(request.param)


@pytest.fixture(scope="module")
def expected(model: Any) -> list[list[int]]:
    return [plain_tokens(model, prompt, TOKENS) for prompt in PROMPTS]


class Own(Exception):
    """What a caller's own code raises."""


def raises(*_: Any, **__: Any) -> Any:
    raise Own


def raises_at(count: int) -> Callable[..., Any]:
    left = [count]

    def call(*given: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise Own
        return given[-1]

    return call


def mutates(tokens: mx.array, logits: mx.array) -> mx.array:
    tokens[:] = 0
    logits[:] = 0
    logits[:, 9] = 1
    return logits


class Drafts:
    """A drafter that gives whatever it is told to."""

    layer = "final"

    def __init__(self, give: Callable[[Any], Any]) -> None:
        self.give = give

    def draft(self, context: Any, limit: int, pending: int) -> Any:
        return self.give(context)


def foreign_cache(model: Any) -> Any:
    cache = make_prompt_cache(model)
    return cache[:-1]


def misfit_cache(model: Any) -> Any:
    """The right kinds of another size, in the last layer."""
    cache = make_prompt_cache(model)
    model(mx.array([[3, 4, 5]]), cache=cache)
    last = cache[-1]
    if hasattr(last, "keys"):
        last.keys, last.values = (mx.zeros((1, 5, 3, 7)) for _ in range(2))
    else:
        last.cache = [mx.zeros((1, 5, 9))] * len(last.cache)
    return cache


BAD: dict[str, Callable[[Any], Request]] = {
    "a processor raises at once": lambda m: Request(PROMPTS[1], TOKENS, logits_processors=[raises]),
    "a processor raises later": lambda m: Request(PROMPTS[1], TOKENS, logits_processors=[raises_at(7)]),
    "a processor gives nonsense": lambda m: Request(PROMPTS[1], TOKENS, logits_processors=[lambda t, x: "no"]),
    "a sampler raises": lambda m: Request(PROMPTS[1], TOKENS, sampler=raises),
    "a sampler chooses no token": lambda m: Request(PROMPTS[1], TOKENS, sampler=lambda x: mx.array([10**7])),
    "a sampler gives nonsense": lambda m: Request(PROMPTS[1], TOKENS, sampler=lambda x: None),
    "its progress raises at once": lambda m: Request(PROMPTS[5], TOKENS, prompt_progress_callback=raises),
    "its progress raises later": lambda m: Request(PROMPTS[5], TOKENS, prompt_progress_callback=raises_at(2)),
    "its drafter raises": lambda m: Request(PROMPTS[1], TOKENS, drafter=Drafts(raises)),
    "its drafter gives nonsense": lambda m: Request(PROMPTS[1], TOKENS, drafter=Drafts(lambda c: 5)),
    "its drafter's chances are words": lambda m: Request(
        PROMPTS[1], TOKENS, drafter=Drafts(lambda c: Draft([5, 6], ["a", "b"]))
    ),
    "its cache is another model's": lambda m: Request([5, 6], TOKENS, prompt_cache=foreign_cache(m)),
    "its cache does not fit": lambda m: Request([5, 6], TOKENS, prompt_cache=misfit_cache(m)),
}  # fmt: skip
HARMLESS: dict[str, Callable[[Any], Request]] = {
    "a processor mutates": lambda m: Request(PROMPTS[1], TOKENS, logits_processors=[mutates]),
    "its drafts are none": lambda m: Request(PROMPTS[1], TOKENS, drafter=Drafts(lambda c: Draft([10**9, -3], [2.0]))),
    "its chances are none": lambda m: Request(
        PROMPTS[1], TOKENS, drafter=Drafts(lambda c: Draft([5, 6], [float("nan"), float("inf")]))
    ),
    "one token": lambda m: Request([5], 1),
    "a long prompt": lambda m: Request((PROMPTS[5] * 40)[:2000], 3),
    "it stops at its first token": lambda m: Request(PROMPTS[1], TOKENS, stop=["", " "][1:]),
}


@pytest.mark.parametrize("why_alone", [None, "a reason"])
@pytest.mark.parametrize("what", BAD)
def test_what_fails_is_its_own_rows(model: Any, expected: list[list[int]], what: str, why_alone: str | None) -> None:
    if why_alone and what in ("its cache does not fit", "its drafter's chances are words"):
        pytest.skip("alone, the model and the drafter's own length say so, or nobody asks")
    good = [0, 2, 4, 7]
    requests = [Request(PROMPTS[k], TOKENS, drafter=Oracle(PROMPTS[k] + expected[k], block=3)) for k in good]
    requests.insert(1, BAD[what](model))
    said, last = run(engine_of(model, why_alone=why_alone), requests)
    assert isinstance(last[1].error, Exception)
    assert [said[k] for k in (0, 2, 3, 4)] == [expected[k] for k in good]
    assert all(event.error is None for uid, event in last.items() if uid != 1)


@pytest.mark.parametrize("what", HARMLESS)
def test_what_is_odd_ends_well_and_changes_no_other(model: Any, expected: list[list[int]], what: str) -> None:
    requests = [Request(PROMPTS[k], TOKENS) for k in (0, 2)]
    requests.insert(1, HARMLESS[what](model))
    said, last = run(engine_of(model), requests)
    assert [said[0], said[2]] == [expected[0], expected[2]] and last[1].error is None
    if what in ("its drafts are none", "its chances are none"):
        assert said[1] == expected[1]


@pytest.mark.parametrize("step", range(9))
def test_a_row_cancelled_at_any_moment_leaves_no_trace(model: Any, expected: list[list[int]], step: int) -> None:
    """In the queue, while its prompt is read, in its rounds: as another joins, and while a forward is under way."""
    engine = engine_of(model, most_rows=2, prefill_step_size=12)
    said: dict[int, list[int]] = {engine.add(Request(PROMPTS[k], TOKENS)): [] for k in (5, 3, 2)}
    events: list[Event] = []
    for number in range(200):
        if number == step:
            engine.cancel(0)
            engine.cancel(0)
            engine.cancel(99)
            said[engine.add(Request(PROMPTS[4], TOKENS))] = []
        events = engine.step()
        assert number < step or all(event.uid != 0 for event in events)
        for event in events:
            said[event.uid] += [response.token for response in event.responses]
    assert not len(engine) and [said[1], said[2], said[3]] == [expected[3], expected[2], expected[4]]


def test_a_prompt_is_its_own_even_where_the_caller_changes_the_list(model: Any, expected: list[list[int]]) -> None:
    prompt = list(PROMPTS[3])
    engine = engine_of(model)
    engine.add(Request(prompt, TOKENS))
    prompt[:] = [5, 5]
    said: list[int] = []
    while len(engine):
        said += [response.token for event in engine.step() for response in event.responses]
    assert said == expected[3]


@pytest.mark.parametrize("prompt", [[5, -1], [5, 10**9], [128]])
def test_ids_that_the_teacher_lacks_are_refused_when_they_are_added(model: Any, prompt: list[int]) -> None:
    with pytest.raises(DaariError, match="ids that this teacher lacks"):
        engine_of(model).add(Request(prompt))


def test_a_prompt_that_is_shared_is_read_behind_those_that_came_before(model: Any) -> None:
    """Nobody whose prompt is being read waits for what later ones share."""
    engine = engine_of(model, prefill_step_size=8)
    engine.add(Request([3, 4, 5, 6, 7, 8, 9, 10, 11, 12], 4))
    for tail in (5, 6):
        engine.add(Request([*range(3, 103), tail], 4))
    seen = [event.uid for _ in range(3) for event in engine.step()]
    assert 0 in seen


def test_an_engine_with_one_layer_of_another_kind_is_whole(model: Any) -> None:
    """What a refused cache began is undone in every layer."""
    engine = engine_of(model)
    said, last = run(engine, [Request([5, 6], 4, prompt_cache=misfit_cache(model)), Request(PROMPTS[2], TOKENS)])
    assert last[0].error is not None and said[1] == plain_tokens(model, PROMPTS[2], TOKENS)
    assert run(engine, [Request(PROMPTS[3], 8)])[0][2] == plain_tokens(model, PROMPTS[3], 8)
