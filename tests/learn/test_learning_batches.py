"""Learning in a batch: the words stay plain's, and what is learnt of one client is drafted to no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx_lm

from daari_mlx import batch_generate, learner_for
from daari_mlx.batch.answerer import LearningAnswerer
from daari_mlx.batch.engine import BatchEngine
from daari_mlx.batch.generate import make_engine
from daari_mlx.batch.request import Request
from daari_mlx.compile.answers import answer_prompts
from daari_mlx.compile.workdir import Workdir
from daari_mlx.learn.scopes import Apart, Together
from daari_mlx.teacher.load import Teacher
from daari_mlx.text.data import Prompt

PROMPTS = [[1, 5, 9, 4], [7, 3, 3, 8, 2], [2, 6], [9, 9, 1], [4, 8, 15, 16], [5, 1, 2]]


def plain(teacher: tuple[Any, Any], prompt: list[int]) -> list[int]:
    return [r.token for r in mlx_lm.stream_generate(*teacher, prompt, max_tokens=20)]


def answers(engine: BatchEngine, requests: list[Request]) -> dict[int, tuple[list[int], Any]]:
    """By request number: its tokens and its statistics."""
    found: dict[int, tuple[list[int], Any]] = {engine.add(request): ([], None) for request in requests}
    while len(engine):
        for event in engine.step():
            assert event.error is None
            tokens = found[event.uid][0] + [response.token for response in event.responses]
            found[event.uid] = tokens, event.responses[-1].statistics if event.responses else found[event.uid][1]
    return found


def test_rows_learn_and_say_what_plain_says(tiny_teacher: tuple[Any, Any]) -> None:
    learner = learner_for(*tiny_teacher, beside=False)
    expected = [plain(tiny_teacher, prompt) for prompt in PROMPTS]
    forwards = []
    for _ in range(3):
        found = batch_generate(
            *tiny_teacher, PROMPTS, max_tokens=20, num_draft_tokens=6, return_token_ids=True, learn=learner
        )
        ends = set(tiny_teacher[1].eos_token_ids)  # which mlx-lm leaves out of the ids
        assert found.token_ids == [[token for token in ids if token not in ends] for ids in expected]
        forwards.append(sum(s.forwards for s in found.statistics))
    assert forwards[2] < 0.7 * forwards[0]
    heard = {tuple(one.prompt.tolist()): one.answer.tolist() for one in learner.memory.answers}
    assert heard == {tuple(prompt): ids for prompt, ids in zip(PROMPTS, expected, strict=True)}


def test_nothing_learnt_from_one_client_is_drafted_to_another(tiny_teacher: tuple[Any, Any]) -> None:
    scopes = Apart(lambda: learner_for(*tiny_teacher, beside=False))
    engine, off = make_engine(*tiny_teacher, num_draft_tokens=6, learners=scopes)
    assert off is None

    def ask(scope: str | None) -> int:
        requests = [Request(list(prompt), max_tokens=20, scope=scope) for prompt in PROMPTS]
        return sum(statistics.forwards for _, statistics in answers(engine, requests).values())

    first = ask("one")
    assert ask("one") < first
    assert ask("two") == first  # as if nobody had asked before
    nobody = ask(None)
    assert ask(None) == nobody == sum(len(plain(tiny_teacher, prompt)) for prompt in PROMPTS)
    assert scopes.of("one") is not scopes.of("two")
    for scope in ("one", "two"):
        learner = scopes.of(scope)
        assert learner is not None
        assert len(learner.memory) == (2 if scope == "one" else 1) * len(PROMPTS)


def test_scopes_that_were_not_used_for_long_are_forgotten(tiny_teacher: tuple[Any, Any]) -> None:
    scopes = Apart(lambda: learner_for(*tiny_teacher), most=2)
    first = scopes.of("one")
    scopes.of("two"), scopes.of("one"), scopes.of("three")
    assert scopes.of("one") is first
    assert scopes.of("two") is not None and len(scopes._learners) == 2


def test_a_cancelled_row_is_learnt_as_far_as_it_was_told(tiny_teacher: tuple[Any, Any]) -> None:
    learner = learner_for(*tiny_teacher, beside=False)
    engine, _ = make_engine(*tiny_teacher, num_draft_tokens=6, learners=Together(learner))
    uid = engine.add(Request(PROMPTS[0], max_tokens=50))
    told: list[int] = []
    while len(told) < 3:
        told += [response.token for event in engine.step() for response in event.responses]
    engine.cancel(uid)
    engine.step()
    assert [one.answer.tolist() for one in learner.memory.answers] == [told]


def test_a_compilations_answers_are_drafted_and_the_same_bytes(tiny_teacher: tuple[Any, Any], tmp_path: Path) -> None:
    teacher = Teacher(*tiny_teacher, source="")
    prompts = [Prompt([*prompt, number], number, "", None) for number in range(8) for prompt in PROMPTS]
    plainly, drafted = Workdir(tmp_path / "plain"), Workdir(tmp_path / "drafted")
    answer_prompts(teacher, prompts, plainly, 16)
    answerer = LearningAnswerer(num_draft_tokens=6)
    answer_prompts(teacher, prompts, drafted, 16, answerer=answerer)
    assert drafted.answers_path(0).read_bytes() == plainly.answers_path(0).read_bytes()
    assert answerer._engine is not None
    assert answerer._engine.counts.rounds < 16 * len(prompts) / 16
