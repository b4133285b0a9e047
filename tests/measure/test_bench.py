"""The benchmark: what it calls the same, what it refuses to measure, and what its figures are made of."""

from __future__ import annotations

import gc
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daari_mlx.compile.compiler import compile_graph
from daari_mlx.compile.extract import ExtractOptions, extract
from daari_mlx.compile.workdir import Workdir
from daari_mlx.graph.graph import Graph
from daari_mlx.ground.errors import DaariError
from daari_mlx.measure import about, bench, identity
from daari_mlx.measure.bench import run_bench
from daari_mlx.measure.identity import compare
from daari_mlx.measure.records import FAILED, IDENTICAL, TIE, BenchRecord, Row, Spread
from daari_mlx.teacher.load import Teacher
from daari_mlx.text.data import Prompt
from daari_mlx.text.identity import prompt_key

MAX_TOKENS = 40
MESSAGES = [f"Your code is {n}{n + 3}{n % 7}1. Do not share it." for n in range(10, 22)]
HELD_OUT = ["Lunch at 12? See you there", "You won a prize! Reply to claim 500", "Flight AB123 leaves at 9am"]


def make_row(**changes: Any) -> Row:
    """A row of made-up figures: twice as fast as plain."""
    row = Row(
        source="test.jsonl:1",
        prompt_tokens=10,
        plain_tokens=8,
        tokens=8,
        verdict=IDENTICAL,
        first_difference=None,
        gap=None,
        plain_ids=None,
        ids=None,
        plain_seconds=2.0,
        seconds=1.0,
        plain_wall_seconds=3.0,
        wall_seconds=2.0,
        forwards=3,
        drafted=7,
        accepted=5,
        draft_seconds=0.1,
        sources={"edge": 5, "teacher": 3},
        rounds=((4, 3, 4), (3, 2, 3), (0, 0, 1)),
        plain_first=True,
    )
    return replace(row, **changes)


@pytest.fixture(scope="module")
def teacher(tiny_teacher, tiny_teacher_path) -> Teacher:
    return Teacher(*tiny_teacher, str(tiny_teacher_path))


def prompts_of(teacher: Teacher, texts: list[str]) -> list[Prompt]:
    turns = [[{"role": "user", "content": text}] for text in texts]
    ids = [teacher.tokenizer.apply_chat_template(turn, add_generation_prompt=True) for turn in turns]
    return [Prompt(list(tokens), row, f"some.jsonl:{row + 1}", None) for row, tokens in enumerate(ids)]


@pytest.fixture(scope="module")
def graph(teacher, tmp_path_factory) -> Graph:
    workdir = Workdir(tmp_path_factory.mktemp("work"))
    options = ExtractOptions(answers="teacher", max_tokens=MAX_TOKENS, dimensions=16)
    extract(teacher, prompts_of(teacher, MESSAGES), workdir, options)
    return compile_graph(workdir, nodes=64).graph


@pytest.fixture(scope="module")
def record(teacher, graph) -> BenchRecord:
    held_out = prompts_of(teacher, HELD_OUT)
    return run_bench(teacher, graph, held_out, max_tokens=MAX_TOKENS, num_draft_tokens=6, command="a command")


def test_both_arms_say_the_same_and_take_turns(record):
    assert record.ok
    assert [row.verdict for row in record.rows] == [IDENTICAL] * 3
    assert [row.plain_first for row in record.rows] == [True, False, True]
    assert record.speedup == record.decode_ratio.median


def test_times_are_inside_one_another(record):
    for row in record.rows:
        assert 0 < row.plain_seconds < row.plain_wall_seconds
        assert 0 < row.draft_seconds < row.seconds < row.wall_seconds


def test_rounds_and_sources_sum_to_the_statistics(record):
    drafted, accepted = record.positions
    assert sum(drafted) == sum(row.drafted for row in record.rows) > 0
    assert sum(accepted) == sum(row.accepted for row in record.rows) > 0
    for row in record.rows:
        assert len(row.rounds) == row.forwards
        assert sum(emitted for _, _, emitted in row.rounds) == row.tokens == sum(row.sources.values())
        assert max(drafted for drafted, _, _ in row.rounds) <= 6
    sizes = record.round_sizes
    assert sum(sizes.values()) == sum(row.forwards for row in record.rows)
    assert sum(size * count for size, count in sizes.items()) == sum(row.tokens for row in record.rows)


def test_the_record_is_json_and_says_where_it_comes_from(record):
    found = json.loads(json.dumps(record.as_dict()))
    assert found["command"] == "a command"
    assert found["dtype"] == "float32"
    assert found["n"] == len(found["rows"]) == 3
    assert found["overlap"] == 0
    assert {"mlx", "mlx-lm", "daari-mlx"} <= set(found["versions"])
    assert found["device"] and found["python"] and found["platform"] and found["teacher"]["is"]
    assert found["graph"]["nodes"] == 64
    assert found["max_tokens"] == MAX_TOKENS and found["num_draft_tokens"] == 6


@pytest.fixture
def corrupted(monkeypatch):
    """Let our arm alter its responses, a list of which ``corrupt`` gets and returns."""
    real = bench.decode.stream_generate

    def install(corrupt) -> None:
        monkeypatch.setattr(bench.decode, "stream_generate", lambda **given: iter(corrupt(list(real(**given)))))

    return install


def test_a_wrong_token_fails_and_there_is_no_speedup(teacher, graph, corrupted):
    def corrupt(responses: list[Any]) -> list[Any]:
        responses[3].token = (responses[3].token + 1) % 600
        return responses

    corrupted(corrupt)
    record = run_bench(teacher, graph, prompts_of(teacher, HELD_OUT[:2]), max_tokens=MAX_TOKENS, num_draft_tokens=6)
    found = record.as_dict()
    assert not record.ok and record.speedup is None and found["speedup"] is None
    assert found["identity"] | {"gap_bound": 0} == {
        "identical": 0,
        "ties": 0,
        "failed": 2,
        "failed_rows": ["some.jsonl:1", "some.jsonl:2"],
        "gap_bound": 0,
    }
    for row in record.rows:
        assert row.first_difference == 3 and row.gap is not None and row.gap > record.gap_bound
        assert row.plain_ids is not None and row.ids is not None and row.plain_ids[:3] == row.ids[:3]


@pytest.mark.parametrize("corrupt", [lambda r: r[:-2], lambda r: [*r, r[-1]]], ids=["too short", "too long"])
def test_an_answer_of_another_length_fails(teacher, graph, corrupted, corrupt):
    corrupted(corrupt)
    record = run_bench(teacher, graph, prompts_of(teacher, HELD_OUT[:1]), max_tokens=MAX_TOKENS, num_draft_tokens=6)
    assert (record.rows[0].verdict, record.rows[0].gap) == (FAILED, None)


def second_best_answer(teacher: Teacher, prompt: list[int], at: int) -> tuple[list[int], list[int], float]:
    """Plain's answer; one that takes the second best token at ``at`` and goes on from there as plain would; the gap."""
    responses = list(identity.stream_plain(teacher, prompt, MAX_TOKENS))
    logprobs = np.array(responses[at].logprobs)
    second, best = np.argsort(logprobs)[-2:]
    kept = [*(r.token for r in responses[:at]), int(second)]
    rest = identity.stream_plain(teacher, prompt + kept, MAX_TOKENS - at - 1)
    return [r.token for r in responses], kept + [r.token for r in rest], float(logprobs[best] - logprobs[second])


def test_a_tie_is_excused_below_the_bound_and_only_if_plain_goes_on_so(teacher):
    prompt = prompts_of(teacher, HELD_OUT)[0].tokens
    plain, other, gap = second_best_answer(teacher, prompt, 2)
    tie = compare(teacher, prompt, plain, other, MAX_TOKENS, gap * 1.01)
    assert (tie.verdict, tie.first_difference) == (TIE, 2)
    assert tie.gap == pytest.approx(gap, rel=1e-3)
    assert compare(teacher, prompt, plain, other, MAX_TOKENS, gap * 0.99).verdict == FAILED
    wrong = [*other[:5], (other[5] + 1) % 600, *other[6:]]
    assert compare(teacher, prompt, plain, wrong, MAX_TOKENS, gap * 1.01)[:2] == (FAILED, 5)
    assert compare(teacher, prompt, plain, other[:4], MAX_TOKENS, gap * 1.01)[:2] == (FAILED, 4)


def test_prompts_that_were_compiled_are_refused_by_name_unless_allowed(teacher, graph):
    seen, unseen = prompts_of(teacher, MESSAGES[:2]), prompts_of(teacher, HELD_OUT[:1])
    assert prompt_key(seen[0].tokens, seen[0].identity) in graph.prompts.tolist()
    with pytest.raises(DaariError, match=r"compiled from 2 of these 3 prompts: some\.jsonl:1, some\.jsonl:2"):
        run_bench(teacher, graph, unseen + seen, max_tokens=4)
    record = run_bench(teacher, graph, unseen + seen, max_tokens=4, num_draft_tokens=2, allow_overlap=True, warmup=0)
    assert record.about["overlap"] == 2


def test_what_cannot_be_measured_is_told_before_anything_runs(teacher, graph, monkeypatch):
    monkeypatch.setattr(bench, "_timed", lambda *_: pytest.fail("it ran"))
    good = prompts_of(teacher, HELD_OUT[:1])
    long = replace(good[0], tokens=[5] * teacher.context_length, source="long.jsonl:7")
    with pytest.raises(DaariError, match=r"1 of 2 prompts leave no room .* 2048 tokens: long\.jsonl:7"):
        run_bench(teacher, graph, [*good, long])
    with pytest.raises(DaariError, match="no prompts"):
        run_bench(teacher, graph, [])
    with pytest.raises(DaariError, match="max_tokens is 0"):
        run_bench(teacher, graph, good, max_tokens=0)
    with pytest.raises(DaariError, match="another teacher"):
        run_bench(teacher, replace(graph, teacher={**graph.teacher, "weights": "others"}), good)


def test_garbage_is_collected_again_after_an_arm_that_fails(teacher, graph, corrupted):
    def corrupt(responses: list[Any]) -> list[Any]:
        assert not gc.isenabled()
        raise RuntimeError("broken arm")

    corrupted(corrupt)
    with pytest.raises(RuntimeError, match="broken arm"):
        run_bench(teacher, graph, prompts_of(teacher, HELD_OUT[:1]), max_tokens=4, num_draft_tokens=2)
    assert gc.isenabled()


def test_ratios_are_plain_over_ours_by_token():
    tie = make_row(verdict=TIE, plain_tokens=4, plain_seconds=2.0, tokens=8, seconds=1.0)
    assert tie.ratio == 4.0
    losing = make_row(seconds=4.0, wall_seconds=6.0, source="test.jsonl:3")
    record = BenchRecord({}, 1e-4, (make_row(), tie, losing))
    assert record.decode_ratio == Spread(median=2.0, lower=1.25, upper=3.0, least=0.5, most=4.0)
    found = record.as_dict()
    assert found["decode_ratio"]["total"] == pytest.approx((6 / 20) / (6 / 24))
    assert found["wall_ratio"]["median"] == 1.5
    assert found["losing"] == {"count": 1, "rows": ["test.jsonl:3"]}
    assert found["identity"]["ties"] == 1 and record.ok and found["speedup"] == 2.0


def test_counts_over_all_rows():
    found = BenchRecord({}, 1e-4, (make_row(), make_row())).as_dict()
    assert found["positions"] == {"drafted": [4, 4, 4, 2], "accepted": [4, 4, 2, 0]}
    assert found["round_sizes"] == {"1": 2, "3": 2, "4": 2}
    assert found["tokens_per_forward"] == pytest.approx(16 / 6)
    assert found["acceptance_rate"] == pytest.approx(10 / 14)
    assert found["draft_time_share"] == pytest.approx(0.1)
    assert found["mean_tokens"] == 8
    assert found["sources"] == {"edge": 10, "teacher": 6}
    assert found["tokens_per_second"]["plain"]["median"] == 4.0


def test_one_failed_row_takes_the_speedup_away():
    record = BenchRecord({}, 1e-4, (make_row(), make_row(verdict=FAILED)))
    assert record.speedup is None and not record.as_dict()["ok"]


def test_a_single_row_is_its_own_spread():
    assert Spread.of([3.0]) == Spread(3.0, 3.0, 3.0, 3.0, 3.0)


def test_the_commit_is_that_of_the_source_or_none(monkeypatch, tmp_path):
    monkeypatch.setattr(about, "__file__", str(tmp_path / "about.py"))
    Path(about.__file__).write_text("")
    assert about._commit() is None
