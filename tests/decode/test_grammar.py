"""Answers under a JSON schema: they follow it, and equal plain constrained decoding however they were drafted."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
from graphs import Compiled
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.sample_utils import make_logits_processors, make_sampler

from daari_mlx import stream_generate
from daari_mlx.decode.grammar import AnswerGrammar, json_schema_processor
from daari_mlx.draft.drafter import Context, Draft
from daari_mlx.teacher.judge import BlockProcessor

EOS = 2
LONGEST = 300


def record(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


SHORT = {"type": "string", "maxLength": 12}
HABIT = record(
    label={"enum": ["ham", "spam"]},
    category={"type": "string", "maxLength": 20},
    risk={"type": "integer", "minimum": 0, "maximum": 100},
    evidence={"type": "string", "maxLength": 80},
)
CONTRARY = record(
    verdict={"enum": ["keep", "drop"]},
    risk={"type": "integer", "minimum": 0, "maximum": 9},
    tags={"type": "array", "items": SHORT, "maxItems": 2},
    label={"const": "unsure"},
)
SCHEMAS = {"habit": HABIT, "contrary": CONTRARY}


class Oracle:
    """Drafts the true answer in blocks, with a wrong token at the places that are not right by chance."""

    def __init__(self, truth: list[int], block: int, wrong: Callable[[int], int] = lambda t: (t + 1) % 640) -> None:
        self.truth, self.block, self.wrong = truth, block, wrong
        self.random = np.random.default_rng(0)

    def draft(self, context: Context, limit: int, pending: int = 0) -> Draft:
        start = len(context.tokens)
        tokens = self.truth[start : start + min(self.block, limit)]
        drafted = [self.wrong(t) if self.random.random() < 0.15 else t for t in tokens]
        return Draft(drafted, [0.8] * len(drafted))


class Logged:
    """A processor that keeps what it was asked; one that only mlx-lm's protocol knows."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.calls = inner, []

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        self.calls.append(tokens.tolist())
        return self.inner(tokens, logits)


class LoggedBlocks(Logged):
    """The same for blocks: a block is as many calls as it has rows."""

    def for_answer(self, prompt: list[int], **where: Any) -> LoggedBlocks:
        self.inner = self.inner.for_answer(prompt, **where)
        return self

    def allowed(self, history: list[int], draft: list[int]) -> int:
        return self.inner.allowed(history, draft)

    def process_rows(self, history: list[int], draft: list[int], logits: mx.array) -> mx.array:
        assert logits.shape[0] == len(draft) + 1
        self.calls.append([history + draft[:row] for row in range(len(draft) + 1)])
        return self.inner.process_rows(history, draft, logits)


@pytest.fixture(scope="module")
def prompts(compiled: Compiled) -> list[list[int]]:
    """Prompts that the graph was not compiled from."""
    from make_sms_corpus import make_rows

    template = compiled.teacher.tokenizer.apply_chat_template
    rows = make_rows(4, seed=78)
    return [template(row["messages"][1:-1], add_generation_prompt=True, return_dict=False) for row in rows]


@pytest.fixture(params=sorted(SCHEMAS))
def schema(request: pytest.FixtureRequest) -> dict[str, Any]:
    return SCHEMAS[request.param]


def plain(compiled: Compiled, prompt: list[int], *processors: Any, tokens: int = LONGEST, **options: Any) -> list[int]:
    teacher = compiled.teacher
    steps = mlx_lm.stream_generate(
        teacher.model, teacher.tokenizer, prompt, max_tokens=tokens, logits_processors=list(processors), **options
    )
    return [r.token for r in steps]


def ours(
    compiled: Compiled, prompt: list[int], *processors: Any, tokens: int = LONGEST, **options: Any
) -> tuple[list[int], Any]:
    teacher = compiled.teacher
    steps = list(
        stream_generate(teacher.model, teacher.tokenizer, prompt, tokens, logits_processors=list(processors), **options)
    )
    return [r.token for r in steps], steps[-1].statistics


def follows(compiled: Compiled, ids: list[int], schema: dict[str, Any]) -> bool:
    """Whether an answer that has ended follows one of the schemas above."""
    assert ids[-1] == EOS and EOS not in ids[:-1]
    found = json.loads(compiled.teacher.tokenizer.decode(ids[:-1]))
    assert list(found) == schema["required"]
    return all(_fits(found[name], rule) for name, rule in schema["properties"].items())


def _fits(value: Any, rule: dict[str, Any]) -> bool:
    if "enum" in rule or "const" in rule:
        return value in rule.get("enum", [rule.get("const")])
    if rule["type"] == "string":
        return isinstance(value, str) and len(value) <= rule["maxLength"]
    if rule["type"] == "integer":
        return type(value) is int and rule["minimum"] <= value <= rule["maximum"]
    return isinstance(value, list) and len(value) <= rule["maxItems"] and all(_fits(v, rule["items"]) for v in value)


@pytest.mark.parametrize("drafted", [0, 4, 16])
def test_greedy_answers_equal_plain_and_follow_the_schema(
    compiled: Compiled, prompts: list[list[int]], schema: dict[str, Any], drafted: int
) -> None:
    processor = json_schema_processor(compiled.teacher.tokenizer, schema)
    reference = json_schema_processor(compiled.teacher.tokenizer, schema)
    for prompt in prompts:
        expected = plain(compiled, prompt, reference)
        found, statistics = ours(compiled, prompt, processor, graph=compiled.graph, num_draft_tokens=drafted)
        assert found == expected
        assert follows(compiled, found, schema)
        assert statistics.drafting_off is None or drafted == 0


@pytest.mark.parametrize("block", [1, 2, 5, 8, 16])
def test_an_oracle_at_any_block_size_equals_plain(
    compiled: Compiled, prompts: list[list[int]], schema: dict[str, Any], block: int
) -> None:
    processor = json_schema_processor(compiled.teacher.tokenizer, schema)
    for prompt in prompts[:2]:
        expected = plain(compiled, prompt, json_schema_processor(compiled.teacher.tokenizer, schema))
        found, statistics = ours(compiled, prompt, processor, drafter=Oracle(prompt + expected, block))
        assert found == expected
        assert statistics.accepted > len(expected) // 3


@pytest.mark.parametrize("sampling", [{"temp": 1.0}, {"temp": 1.5, "top_p": 0.9}, {"temp": 1.0, "top_k": 20}])
def test_seeded_sampling_equals_plain(
    compiled: Compiled, prompts: list[list[int]], schema: dict[str, Any], sampling: dict[str, Any]
) -> None:
    processor = json_schema_processor(compiled.teacher.tokenizer, schema)
    for seed, prompt in enumerate(prompts[:2]):
        mx.random.seed(seed)
        expected = plain(compiled, prompt, processor, sampler=make_sampler(**sampling))
        for block in (3, 8):
            mx.random.seed(seed)
            oracle = Oracle(prompt + expected, block)
            found, _ = ours(compiled, prompt, processor, drafter=oracle, sampler=make_sampler(**sampling))
            assert found == expected
            assert follows(compiled, found, schema)


def test_one_call_a_round_and_the_rows_that_plain_shows(compiled: Compiled, prompts: list[list[int]]) -> None:
    tokenizer, prompt = compiled.teacher.tokenizer, prompts[0]
    reference = Logged(json_schema_processor(tokenizer, HABIT))
    expected = plain(compiled, prompt, reference)
    logged = LoggedBlocks(json_schema_processor(tokenizer, HABIT))
    assert isinstance(logged, BlockProcessor) and not isinstance(reference, BlockProcessor)
    found, statistics = ours(compiled, prompt, logged, drafter=Oracle(prompt + expected, 6))
    assert found == expected
    assert len(logged.calls) == statistics.forwards < len(found)
    assert sum(map(len, logged.calls)) == statistics.forwards + statistics.drafted
    firsts = [rows[0] for rows in logged.calls[1:]]
    shown = [
        row for rows, after in zip(logged.calls, firsts, strict=False) for row in rows[: len(after) - len(rows[0])]
    ]
    shown += logged.calls[-1]
    assert shown[: len(found)] == reference.calls[: len(found)]


def test_forbidden_drafts_cost_no_rows(compiled: Compiled, prompts: list[list[int]]) -> None:
    """The draft is cut before the forward: of a drafter that is always forbidden nothing is verified."""
    processor = json_schema_processor(compiled.teacher.tokenizer, CONTRARY)
    expected = plain(compiled, prompts[0], processor)

    def held(processor: Any) -> Any:
        contrary = Oracle([*prompts[0], *[EOS] * len(expected)], 8, lambda t: t)
        found, statistics = ours(compiled, prompts[0], processor, drafter=contrary)
        assert found == expected
        return statistics

    own = held(processor)
    assert own.sources.get("drafter", 0) <= 1 and own.sources["schema"] > 10, "all else is what the schema forces"
    assert own.forwards < len(expected) / 2
    untold = held(LoggedBlocks(processor))  # one that does not say what it forces
    assert (untold.drafted, untold.forwards) == (1, len(expected)), "only the end itself was allowed"


def test_mixed_with_processors_that_go_row_by_row(compiled: Compiled, prompts: list[list[int]]) -> None:
    tokenizer, prompt = compiled.teacher.tokenizer, prompts[1]

    def chain(log: Logged) -> list[Any]:
        return [*make_logits_processors(repetition_penalty=1.2), log, json_schema_processor(tokenizer, HABIT)]

    reference, own = Logged(lambda tokens, logits: logits), Logged(lambda tokens, logits: logits)
    expected = plain(compiled, prompt, *chain(reference))
    found, statistics = ours(compiled, prompt, *chain(own), drafter=Oracle(prompt + expected, 5))
    assert found == expected and statistics.accepted > 0
    assert len(found) <= len(own.calls) <= len(found) + 1 and own.calls == reference.calls[: len(own.calls)]


@pytest.mark.parametrize("stop", [1, 2, 5, 11])
def test_one_processor_serves_closed_answers_and_the_next(
    compiled: Compiled, prompts: list[list[int]], stop: int
) -> None:
    teacher = compiled.teacher
    expected = [plain(compiled, p, json_schema_processor(teacher.tokenizer, HABIT)) for p in prompts[:2]]
    processor = json_schema_processor(teacher.tokenizer, HABIT)
    for prompt, whole in zip(prompts[:2] * 2, expected * 2, strict=True):
        steps = stream_generate(
            teacher.model,
            teacher.tokenizer,
            prompt,
            LONGEST,
            drafter=Oracle(prompt + whole, 7),
            logits_processors=[processor],
        )
        assert [next(steps).token for _ in range(stop)] == whole[:stop]
        steps.close()
        found, _ = ours(compiled, prompt, processor, drafter=Oracle(prompt + whole, 4))
        assert found == whole


@pytest.mark.parametrize("failing", ["allowed", "process_rows", "__call__"])
def test_an_exception_leaves_processor_and_cache_exact(
    compiled: Compiled, prompts: list[list[int]], failing: str
) -> None:
    """Also one amid the matcher's own moves: what it has taken then is unknown, and read off the tokens anew."""
    teacher, prompt = compiled.teacher, prompts[0]
    processor = json_schema_processor(teacher.tokenizer, HABIT)
    expected = plain(compiled, prompt, processor)

    class Failing(AnswerGrammar):
        calls = 0

        def _masks(self, draft: list[int], width: int) -> Any:
            Failing.calls += 1
            if Failing.calls == 4 and failing != "allowed":
                known, self._taken = self._taken, None
                assert known is not None
                self._matcher.try_consume_tokens(draft[:1])
                raise KeyboardInterrupt
            return super()._masks(draft, width)

        def allowed(self, history: list[int], draft: list[int]) -> int:
            if Failing.calls == 3 and failing == "allowed":
                Failing.calls += 1
                raise KeyboardInterrupt
            return super().allowed(history, draft)

    whole = processor.for_answer(prompt)
    broken = Failing(processor.vocabulary, processor.matcher.deep_copy(), whole._opening, [], len(prompt))
    others = make_logits_processors(logit_bias={5: 0.0}) if failing == "__call__" else []
    cache = make_prompt_cache(teacher.model)
    steps = stream_generate(
        teacher.model,
        teacher.tokenizer,
        prompt,
        LONGEST,
        drafter=Oracle(prompt + expected, 3),
        prompt_cache=cache,
        logits_processors=[*others, broken],
    )
    with pytest.raises(KeyboardInterrupt):
        list(steps)
    emitted = expected[: cache[0].offset - len(prompt)]
    assert cache[0].offset > len(prompt)
    for one in (broken, processor):
        options = {"drafter": Oracle(prompt + expected, 3), "begun": len(emitted)}
        found, _ = ours(compiled, prompt + emitted, one, **options)
        assert found == expected[len(emitted) :], "the answer goes on where it stood"
        found, _ = ours(compiled, prompt, one, drafter=Oracle(prompt + expected, 3))
        assert found == expected


def test_a_second_turn_on_the_same_cache(compiled: Compiled, prompts: list[list[int]]) -> None:
    teacher = compiled.teacher
    answers = []
    for drafts in (False, True):
        processor, cache = json_schema_processor(teacher.tokenizer, HABIT), make_prompt_cache(teacher.model)
        for prompt in prompts[:2]:
            options = {"graph": compiled.graph, "num_draft_tokens": 6} if drafts else {}
            found, _ = ours(compiled, prompt, processor, prompt_cache=cache, **options)
            assert follows(compiled, found, HABIT)
            answers.append(found)
    assert answers[:2] == answers[2:]
