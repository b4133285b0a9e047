"""Under a schema the schema drafts too: the same tokens as without drafts, in fewer forwards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from graphs import Compiled
from mlx_lm.sample_utils import make_sampler
from wide import encode, own, plain_ids, scripted, tokenizer_with

from daari_mlx.cost import machine, probe
from daari_mlx.cost.length import Cost
from daari_mlx.decode.grammar import json_schema_processor

FOUR = {
    "type": "object",
    "properties": {
        "label": {"enum": ["ham", "spam"]},
        "category": {"enum": ["advert", "banking", "family", "plans", "work"]},
        "risk": {"type": "integer", "minimum": 0, "maximum": 99},
        "evidence": {"type": "string", "maxLength": 12},
    },
    "required": ["label", "category", "risk", "evidence"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def prompts(compiled: Compiled) -> list[list[int]]:
    from make_sms_corpus import make_rows

    template = compiled.teacher.tokenizer.apply_chat_template
    return [
        template(row["messages"][1:-1], add_generation_prompt=True, return_dict=False) for row in make_rows(3, seed=78)
    ]


@pytest.mark.parametrize("whitespace", ["compact", "spaced", "any"])
@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("length", [1, 4, 16])
def test_greedy_tokens_equal_plains(
    compiled: Compiled, prompts: list[list[int]], whitespace: Any, graph: bool, length: int
) -> None:
    teacher = compiled.teacher
    grammar = json_schema_processor(teacher.tokenizer, FOUR, whitespace)
    for prompt in prompts:
        options = {"logits_processors": [grammar]}
        expected = plain_ids(teacher.model, teacher.tokenizer, prompt, 120, **options)
        if graph:
            options["graph"] = compiled.graph
        found, _, last = own(teacher.model, teacher.tokenizer, prompt, 120, num_draft_tokens=length, **options)
        assert found == expected
        sources = last.statistics.sources
        assert last.drafting_off is None and sum(sources.values()) == len(found)
        assert graph or whitespace == "any" or sources["schema"] > 0


@pytest.mark.parametrize("temp", [0.7, 1.5])
def test_seeded_draws_equal_plains(compiled: Compiled, prompts: list[list[int]], temp: float) -> None:
    teacher = compiled.teacher
    grammar = json_schema_processor(teacher.tokenizer, FOUR)
    for seed, prompt in enumerate(prompts):
        options = {"logits_processors": [grammar], "sampler": make_sampler(temp=temp)}
        mx.random.seed(seed)
        expected = plain_ids(teacher.model, teacher.tokenizer, prompt, 120, **options)
        mx.random.seed(seed)
        assert own(teacher.model, teacher.tokenizer, prompt, 120, num_draft_tokens=8, **options)[0] == expected


def test_a_teacher_that_writes_json_as_its_tokenizer_does_needs_few_forwards() -> None:
    """No graph: each forward says one choice, and all that is forced behind it."""
    tokenizer = tokenizer_with()
    prompt = encode(tokenizer, "Free entry now")
    answer = '{"label":"spam","category":"plans","risk":7,"urgent":true}'
    said, decisions = [*encode(tokenizer, answer), 2], json.loads(json.dumps(FOUR))
    del decisions["properties"]["evidence"]
    decisions["properties"]["urgent"] = {"type": "boolean"}
    decisions["required"][3] = "urgent"
    options = {"logits_processors": [json_schema_processor(tokenizer, decisions)]}
    found, text, last = own(scripted(prompt, said), tokenizer, prompt, 90, num_draft_tokens=32, **options)
    assert found == said and json.loads(text) == json.loads(answer)
    assert last.tokens_per_forward > 3 and last.acceptance_rate == 1
    off = own(scripted(prompt, said), tokenizer, prompt, 90, num_draft_tokens=0, **options)[2]
    assert off.drafting_off == "num_draft_tokens is 0" and off.statistics.drafted == 0


def test_nothing_is_forced_where_there_is_a_choice() -> None:
    tokenizer = tokenizer_with("<think>", "</think>")
    prompt = encode(tokenizer, "Free")
    answer = json_schema_processor(tokenizer, FOUR).for_answer(prompt)
    thinking = encode(tokenizer, "<think>so")
    closed = [*thinking, *encode(tokenizer, "</think>")]
    assert answer.forced(prompt) == [] == answer.forced(prompt + thinking) == answer.forced(prompt + closed)
    opened = [*closed, *encode(tokenizer, '\n{"')]
    assert tokenizer.decode(answer.forced(prompt + opened)).startswith("label")
    whole = encode(tokenizer, '\n{"label":"ham","category":"work","risk":1,"evidence":""}')
    assert answer.forced([*prompt, *closed, *whole]) == [2] and answer.forced([*prompt, *closed, *whole, 2]) == []


def test_forced_tokens_are_allowed(compiled: Compiled, prompts: list[list[int]]) -> None:
    teacher = compiled.teacher
    for whitespace in ("compact", "spaced", "any"):
        answer = json_schema_processor(teacher.tokenizer, FOUR, whitespace).for_answer(prompts[0])
        said, _, _ = own(
            teacher.model,
            teacher.tokenizer,
            prompts[0],
            120,
            logits_processors=[json_schema_processor(teacher.tokenizer, FOUR, whitespace)],
        )
        for place in range(len(said)):
            history = prompts[0] + said[:place]
            forced = answer.forced(history)
            assert answer.allowed(history, forced) == len(forced)
            assert not forced or answer.allowed(history, [(forced[0] + 1) % 640]) in (0, 1)


def test_a_schema_alone_drafts_from_the_first_answer_on_and_waits_for_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where nobody has timed this machine a published curve is the start; its rounds correct it, and that is kept."""
    monkeypatch.setenv("DAARI_MLX_CACHE", str(tmp_path))
    for module, name in ((probe, "measure"), (machine, "look_at")):
        monkeypatch.setattr(module, name, lambda *_, **__: pytest.fail("time was spent on measuring"))
    tokenizer = tokenizer_with()
    prompt = encode(tokenizer, "Free entry now")
    model = scripted(prompt, [*encode(tokenizer, '{"label":"ham"'), 2])
    options = {"logits_processors": [json_schema_processor(tokenizer, FOUR)]}
    expected = plain_ids(model, tokenizer, prompt, 60, **options)
    found, _, last = own(model, tokenizer, prompt, 60, **options)
    assert found == expected and last.drafting_off is None and last.statistics.sources["schema"] > 0
    cost = machine.provisional(model)
    assert cost is not None and cost.times(), "rounds are timed"
    for _ in range(4):
        own(model, tokenizer, prompt, 60, **options)
    assert list((tmp_path / "rounds").iterdir())


def test_what_does_not_pay_is_not_drafted_though_it_is_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = tokenizer_with()
    prompt = encode(tokenizer, "Free entry now")
    model = scripted(prompt, [*encode(tokenizer, '{"label":"ham"'), 2])
    options = {"logits_processors": [json_schema_processor(tokenizer, FOUR)]}
    for relative, drafts in ((1.1, True), (33.0, False)):
        monkeypatch.setattr(machine, "ready_cost", lambda _, r=relative: Cost((1, 33), (1.0, r)))
        last = own(model, tokenizer, prompt, 60, **options)[2]
        assert last.drafting_off is None and bool(last.statistics.drafted) == drafts
