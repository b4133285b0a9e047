"""`batch_generate` against mlx-lm: the answers that each prompt has alone, with mlx-lm's names and its figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
import pytest
from graphs import Compiled
from mlx_lm.sample_utils import make_sampler

from daari_mlx import batch_generate
from daari_mlx.batch.lengths import best_common_length
from daari_mlx.cost.batch_cost import BatchCost
from daari_mlx.cost.length import Cost, best_length
from daari_mlx.decode.grammar import json_schema_processor
from daari_mlx.ground.errors import DaariError
from daari_mlx.measure.batch_bench import run_batch_bench
from daari_mlx.show.batch_text import batch_bench_text
from daari_mlx.show.plots import plot_batch
from daari_mlx.text.data import Prompt

TOKENS = 40


@pytest.fixture(scope="module")
def prompts(compiled: Compiled) -> list[list[int]]:
    """Prompts that the graph was not compiled from; all begin with the same system prompt."""
    from make_sms_corpus import make_rows

    template = compiled.teacher.tokenizer.apply_chat_template
    rows = make_rows(6, seed=78)
    return [template(row["messages"][1:-1], add_generation_prompt=True, return_dict=False) for row in rows]


@pytest.fixture(scope="module")
def alone(compiled: Compiled, prompts: list[list[int]]) -> list[list[Any]]:
    teacher = compiled.teacher
    return [
        list(mlx_lm.stream_generate(teacher.model, teacher.tokenizer, prompt, max_tokens=TOKENS)) for prompt in prompts
    ]


@pytest.mark.parametrize("length", [0, 1, 6, "auto"])
@pytest.mark.parametrize("rows", [1, 4])
def test_answers_are_those_that_each_prompt_has_alone(
    compiled: Compiled, prompts: list[list[int]], alone: list[list[Any]], length: Any, rows: int
) -> None:
    model, tokenizer = compiled.teacher.model, compiled.teacher.tokenizer
    options = {"graph": compiled.graph, "num_draft_tokens": length, "completion_batch_size": rows}
    found = batch_generate(model, tokenizer, prompts, max_tokens=TOKENS, return_token_ids=True, **options)
    theirs = mlx_lm.batch_generate(model, tokenizer, prompts, max_tokens=TOKENS, return_token_ids=True)
    assert found.token_ids == theirs.token_ids and found.texts == theirs.texts
    assert found.finish_reasons == [responses[-1].finish_reason for responses in alone]
    assert [s.tokens for s in found.statistics] == [len(responses) for responses in alone]
    assert found.stats.prompt_tokens == theirs.stats.prompt_tokens
    assert found.stats.generation_tokens == sum(map(len, alone)) and found.stats.generation_tps > 0
    assert (found.acceptance_rate > 0) == (length != 0) or length == "auto"
    assert not found.errors and found.alone is None
    if length == 6:
        assert found.tokens_per_forward > 1.5


def test_one_value_for_all_or_one_a_prompt(compiled: Compiled, prompts: list[list[int]]) -> None:
    model, tokenizer = compiled.teacher.model, compiled.teacher.tokenizer
    text = tokenizer.decode(prompts[0])
    limits = [3, 5, 1]
    found = batch_generate(model, tokenizer, [text, *prompts[1:3]], max_tokens=limits, return_logprobs=True)
    assert [s.tokens for s in found.statistics] == limits
    assert [len(rows) for rows in found.logprobs or []] == limits and found.statistics[0].drafting_off
    stops = batch_generate(model, tokenizer, prompts[:2], max_tokens=TOKENS, stop=[['"'], None])
    assert '"' not in stops.texts[0] and '"' in stops.texts[1]
    sampler, seeds = make_sampler(temp=0.9), [5, 6]
    drawn = batch_generate(model, tokenizer, prompts[:2], max_tokens=12, sampler=sampler, seed=seeds)
    for prompt, seed, answer in zip(prompts, seeds, drawn.texts, strict=False):
        mx.random.seed(seed)
        assert answer == mlx_lm.generate(model, tokenizer, prompt, max_tokens=12, sampler=sampler)


def test_prompt_caches_come_back_whole_and_are_gone_on_from(compiled: Compiled, prompts: list[list[int]]) -> None:
    model, tokenizer = compiled.teacher.model, compiled.teacher.tokenizer
    options = {"graph": compiled.graph, "num_draft_tokens": 6, "return_prompt_caches": True, "return_token_ids": True}
    first = batch_generate(model, tokenizer, prompts[:3], max_tokens=8, **options)
    assert [c[0].offset for c in first.caches] == [len(p) + 8 for p in prompts[:3]]
    more = [[50, 51, 52]] * 3
    second = batch_generate(model, tokenizer, more, prompt_caches=first.caches, max_tokens=8, **options)
    for prompt, said, answer in zip(prompts, first.token_ids, second.texts, strict=False):
        assert answer == mlx_lm.generate(model, tokenizer, [*prompt, *said, 50, 51, 52], max_tokens=8)
    assert [c[0].offset for c in first.caches] == [len(p) + 8 for p in prompts[:3]], "given caches are left alone"


@pytest.mark.parametrize(
    "drafting", [{}, {"num_draft_tokens": 0}, {"num_draft_tokens": 5}, {"graph": True, "num_draft_tokens": 6}]
)
def test_one_schema_holds_each_row_by_itself(
    compiled: Compiled, prompts: list[list[int]], drafting: dict[str, Any]
) -> None:
    """One grammar is given for all rows, and each row stands elsewhere in it; what was begun is told for each."""
    model, tokenizer = compiled.teacher.model, compiled.teacher.tokenizer
    schema = {"type": "object", "properties": {"label": {"enum": ["ham", "spam"]}, "n": {"type": "integer"}}}
    grammar = json_schema_processor(tokenizer, {**schema, "required": ["label", "n"], "additionalProperties": False})
    begun = ["", '{"label":"sp', '{"', ""]
    given = [
        [*prompt, *tokenizer.encode(text, add_special_tokens=False)]
        for prompt, text in zip(prompts, begun, strict=False)
    ]
    options = drafting | ({"graph": compiled.graph} if "graph" in drafting else {})
    found = batch_generate(
        model,
        tokenizer,
        given,
        max_tokens=40,
        logits_processors=[grammar],
        begun=begun,
        completion_batch_size=3,
        **options,
    )
    for prompt, text, answer in zip(given, begun, found.texts, strict=True):
        own = grammar.for_answer(prompt, begun=text)
        assert answer == mlx_lm.generate(model, tokenizer, prompt, max_tokens=40, logits_processors=[own])
        assert (text + answer).startswith('{"label":"')
    for statistics in found.statistics:
        assert statistics.drafting_off == ("no graph was given" if drafting == {"num_draft_tokens": 0} else None)
        assert not drafting.get("num_draft_tokens") or statistics.sources["schema"] > 0
    with pytest.raises(DaariError, match="does not end with it"):
        batch_generate(model, tokenizer, given, logits_processors=[grammar], begun="{}")


def test_rows_with_a_schema_draft_beside_rows_without(compiled: Compiled, prompts: list[list[int]]) -> None:
    """Of rows that hand their drafters on, each has its own grammar around them, or none."""
    model, tokenizer = compiled.teacher.model, compiled.teacher.tokenizer
    schema = {"type": "object", "properties": {"label": {"enum": ["ham", "spam"]}}, "required": ["label"]}
    grammar = json_schema_processor(tokenizer, {**schema, "additionalProperties": False})
    processors = [[grammar] if k % 2 else None for k in range(len(prompts))]
    options = {"max_tokens": 24, "logits_processors": processors, "completion_batch_size": 2, "num_draft_tokens": 6}
    for graph in (None, compiled.graph):
        found = batch_generate(model, tokenizer, prompts, graph=graph, **options)
        for k, (prompt, answer) in enumerate(zip(prompts, found.texts, strict=True)):
            own = [grammar.for_answer(prompt)] if k % 2 else []
            assert answer == mlx_lm.generate(model, tokenizer, prompt, max_tokens=24, logits_processors=own)
            assert ("schema" in found.statistics[k].sources) == bool(k % 2)
            off = found.statistics[k].drafting_off
            assert off == (None if graph is not None or k % 2 else "no graph was given")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"max_tokens": [1, 2]}, "max_tokens has 2 entries for 6 prompts"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"completion_batch_size": 0}, "completion_batch_size is 0"),
        ({"prefill_step_size": True}, "prefill_step_size is True"),
        ({"temperature": 1}, "temperature"),
        ({"num_draft_tokens": -1}, "num_draft_tokens is -1"),
    ],
)
def test_what_cannot_be_is_refused(compiled: Compiled, prompts: list[list[int]], options: Any, told: str) -> None:
    with pytest.raises(DaariError, match=told):
        batch_generate(compiled.teacher.model, compiled.teacher.tokenizer, prompts, **options)


# --- how far


def test_one_row_drafts_as_far_as_a_single_answer() -> None:
    cost = Cost((1, 2, 4, 8, 16, 32), (1.0, 1.1, 1.3, 2.2, 2.3, 4.0))
    for path in ([0.9] * 12, [0.99, 0.5, 0.2], [0.3], []):
        for owed in (0, 3):
            assert best_common_length([path], [owed], BatchCost(cost)) == best_length(path, cost, owed)


def test_a_length_is_cut_where_the_rows_together_cross_a_cliff() -> None:
    cost = BatchCost(Cost((1, 32, 33, 64), (1.0, 1.5, 3.0, 3.1)))
    path = [0.9] * 20
    assert best_common_length([path], [0], cost) == 20
    assert best_common_length([path] * 4, [0] * 4, cost) == 7  # 4 · 8 rows
    assert best_common_length([path] * 16, [0] * 16, cost) == 1  # 16 · 2 rows


def test_coming_back_has_to_pay_a_little_more() -> None:
    cost = BatchCost(Cost((1, 2), (1.0, 1.49)))
    assert best_common_length([[0.5]], [0], cost) == 1
    assert best_common_length([[0.5]], [0], cost, parked=True) == 0


def test_rounds_correct_what_is_foretold() -> None:
    cost = BatchCost(Cost((1, 64), (1.0, 2.0)))
    foretold = cost(4, 8)
    for _ in range(40):
        cost.learn(4, 1, 0.1)
        cost.learn(4, 8, 0.5)
    assert cost(4, 8) / cost(4, 1) > 2 * foretold
    assert cost(16, 8) == pytest.approx(cost.cost(128)), "other sizes are not touched"


# --- measuring


def test_the_benchmark_compares_with_mlx_lm_row_by_row(
    compiled: Compiled, prompts: list[list[int]], tmp_path: Path
) -> None:
    rows = [Prompt(tokens, k, f"made:{k}", None) for k, tokens in enumerate(prompts)]
    record = run_batch_bench(compiled.teacher, compiled.graph, rows, [1, 4], max_tokens=20, num_draft_tokens=6)
    assert record["ok"] and [figures["rows"] for figures in record["sizes"]] == [1, 4]
    for figures in record["sizes"]:
        assert figures["identical"] == len(prompts) and figures["tokens_per_forward"] > 1.2
        assert set(figures["passes"]) == {"mlx_lm", "undrafted", "drafted"} and figures["decode_ratio"] > 0
    text = batch_bench_text(record)
    assert "6 of 6 identical" in text and "FAILED" not in text
    assert record["data"] == "made"
    picture = plot_batch([record, record], tmp_path / "batch.png")
    assert picture.stat().st_size > 10_000
    with pytest.raises(DaariError, match="no record of rows at once"):
        plot_batch({"n": 3}, tmp_path / "none.png")


def test_a_wrong_answer_fails_the_benchmark(
    compiled: Compiled, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    import daari_mlx.measure.batch_bench as module

    def wrong(*args: Any, **options: Any) -> Any:
        found = batch_generate(*args, **options)
        found.token_ids[1][3] = 7
        return found

    monkeypatch.setattr(module, "batch_generate", wrong)
    rows = [Prompt(tokens, k, f"made:{k}", None) for k, tokens in enumerate(prompts[:2])]
    record = run_batch_bench(compiled.teacher, compiled.graph, rows, [2], max_tokens=20, num_draft_tokens=6)
    assert not record["ok"] and record["sizes"][0]["failed"] == 1
    assert "FAILED  1 answers of 2 at 2 rows at once" in batch_bench_text(record)
