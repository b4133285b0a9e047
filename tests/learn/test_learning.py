"""Learning in one process: words stay plain's, what was heard is drafted, bytes stay within bounds."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
from mlx_lm.sample_utils import make_sampler

from daari_mlx import SpecEngine, learner_for, stream_generate
from daari_mlx.cost.length import Cost
from daari_mlx.draft.drafter import LONGEST_REST, Context
from daari_mlx.ground.errors import DaariError
from daari_mlx.learn.drafter import LearningDrafter
from daari_mlx.learn.learner import Learner

PROMPTS = [[1, 5, 9, 4], [7, 3, 3, 8, 2], [2, 6], [9, 9, 1], [4, 8, 15, 16], [5, 1, 2]]


def plain(teacher: tuple[Any, Any], prompt: list[int], **options: Any) -> list[int]:
    return [r.token for r in mlx_lm.stream_generate(*teacher, prompt, **options)]


def ours(teacher: tuple[Any, Any], prompt: list[int], learner: Learner, **options: Any) -> tuple[list[int], Any]:
    responses = list(stream_generate(*teacher, prompt, learn=learner, num_draft_tokens=6, **options))
    return [r.token for r in responses], responses[-1].statistics


@pytest.mark.parametrize("temp", [0.0, 0.9])
def test_words_stay_plains_while_it_learns(tiny_teacher: tuple[Any, Any], temp: float) -> None:
    learner = learner_for(*tiny_teacher, beside=False)
    for turn in range(4):
        for number, prompt in enumerate(PROMPTS):
            mx.random.seed(turn * 100 + number)
            expected = plain(tiny_teacher, prompt, max_tokens=24, sampler=make_sampler(temp))
            mx.random.seed(turn * 100 + number)
            found, _ = ours(tiny_teacher, prompt, learner, max_tokens=24, sampler=make_sampler(temp))
            assert found == expected
    assert len(learner.memory) == 4 * len(PROMPTS)
    assert learner.snapshot.graph.size > 1


def test_what_was_said_before_is_drafted(tiny_teacher: tuple[Any, Any]) -> None:
    learner = learner_for(*tiny_teacher, beside=False)
    first = [ours(tiny_teacher, prompt, learner, max_tokens=24)[1].forwards for prompt in PROMPTS]
    again = [ours(tiny_teacher, prompt, learner, max_tokens=24)[1].forwards for prompt in PROMPTS]
    assert sum(again) < 0.7 * sum(first)


def test_nothing_is_learnt_unless_asked(tiny_teacher: tuple[Any, Any]) -> None:
    engine = SpecEngine(tiny_teacher[0], tokenizer=tiny_teacher[1])
    list(engine.stream_tokens(PROMPTS[0], max_tokens=8))
    assert engine.learner is None and engine.drafter is None


def test_text_unlike_any_before_soon_runs_ahead_as_plain_does(tiny_teacher: tuple[Any, Any]) -> None:
    learner = learner_for(*tiny_teacher, beside=False)
    drafter = LearningDrafter(learner, cost=Cost((1, 33), (1.0, 2.44)))
    random, tokens = np.random.default_rng(0), [1, 2, 3]
    rounds = []
    for new in random.permutation(np.arange(10, 60)).tolist():  # no token comes twice
        context = Context(tokens, random.normal(size=64).astype(np.float32))
        draft = drafter.draft(context, 32)
        assert draft.tokens == []
        rounds.append(draft.rest)
        tokens.append(new)
    assert max(rounds) == LONGEST_REST and sum(rounds[:3]) <= 1


def test_a_single_answer_is_heard_by_the_very_next_request(tiny_teacher: tuple[Any, Any]) -> None:
    learner = learner_for(*tiny_teacher, beside=False)
    ours(tiny_teacher, PROMPTS[1], learner, max_tokens=24)
    _, again = ours(tiny_teacher, PROMPTS[1], learner, max_tokens=24)
    assert again.forwards < 12 and again.sources["copy"] > 8


def test_the_states_are_those_that_the_tokens_were_chosen_from(tiny_teacher: tuple[Any, Any]) -> None:
    from daari_mlx.graph.nodes import scale_states
    from daari_mlx.teacher.load import Teacher

    learner = learner_for(*tiny_teacher, beside=False)
    for _ in range(2):
        found, _ = ours(tiny_teacher, PROMPTS[0], learner, max_tokens=20)
    for one in learner.memory.answers:
        assert one.answer.tolist() == found and one.prompt.tolist() == PROMPTS[0]
        tokens = [*PROMPTS[0], *found]
        expected = scale_states(Teacher(*tiny_teacher, source="").states(tokens[:-1], "final", len(PROMPTS[0]) - 2))
        np.testing.assert_allclose(one.states.astype(np.float32), expected, atol=5e-3)


def test_an_answer_that_is_left_is_learnt_as_far_as_it_was_told(tiny_teacher: tuple[Any, Any]) -> None:
    learner = learner_for(*tiny_teacher, beside=False)
    responses = stream_generate(*tiny_teacher, PROMPTS[0], learn=learner, num_draft_tokens=6)
    told = [next(responses).token for _ in range(5)]
    responses.close()
    assert [one.answer.tolist() for one in learner.memory.answers] == [told]


def test_an_engine_learns_from_turn_to_turn(tiny_teacher: tuple[Any, Any]) -> None:
    engine = SpecEngine(tiny_teacher[0], tokenizer=tiny_teacher[1], learn=True, num_draft_tokens=6)
    assert engine.learner is not None
    for prompt in PROMPTS * 2:
        found = [r.token for r in engine.stream_tokens(prompt, max_tokens=16)]
        engine.learner.wait()
        assert found == plain(tiny_teacher, prompt, max_tokens=16)
    assert [one.prompt.tolist() for one in engine.learner.memory.answers] == PROMPTS * 2
    assert engine.learner.snapshot.graph.size > 1


def test_memory_stays_within_its_bytes_and_keeps_the_newest(tiny_teacher: tuple[Any, Any]) -> None:
    learner = learner_for(*tiny_teacher, beside=False, memory_bytes=20_000, max_bytes=150_000)
    random = np.random.default_rng(0)
    for _ in range(60):
        prompt = random.integers(1, 60, 4).tolist()
        ours(tiny_teacher, prompt, learner, max_tokens=12)
        assert learner.memory.nbytes <= 20_000
    assert learner.memory.forgotten > 0
    assert learner.memory.answers[-1].prompt.tolist() == prompt
    learner.snapshot.graph.check()


def test_a_compiled_graph_is_gone_on_from(compiled: Any) -> None:
    teacher, graph = (compiled.teacher.model, compiled.teacher.tokenizer), compiled.graph
    learner = learner_for(*teacher, graph=graph, beside=False)
    for prompt in PROMPTS * 2:
        assert ours(teacher, prompt, learner, max_tokens=16)[0] == plain(teacher, prompt, max_tokens=16)
    assert learner.snapshot.graph.support.sum() > graph.support.sum()
    learner.snapshot.graph.check()


def test_another_teachers_learner_is_refused(tiny_teacher: tuple[Any, Any], compiled: Any) -> None:
    learner = learner_for(*tiny_teacher, beside=False)
    learner.base.teacher["weights"] = "other"
    with pytest.raises(DaariError, match="another teacher"):
        ours(tiny_teacher, PROMPTS[0], learner)
