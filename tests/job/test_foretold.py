"""How many rows at once, and what a job is said to take: of T(m) and a graph's held-out answers alone."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphs import Compiled
from jobs import map_here, sms_rows, write_jsonl

from daari_mlx.cost.batch_cost import BatchCost
from daari_mlx.cost.length import Cost
from daari_mlx.cost.probe import ProbeRecord
from daari_mlx.graph.outlook import HeldOut, Outlook, Promise
from daari_mlx.job.asks import KEY
from daari_mlx.job.concurrency import SIZES, Foretold, cache_bytes
from daari_mlx.job.foretold import how_long
from daari_mlx.job.order import work_order
from daari_mlx.job.plan import Plan

FREE = BatchCost(Cost((1, 4096), (1.0, 1.0)))  # rows cost nothing more
LINEAR = BatchCost(Cost((1, 33), (1.0, 33.0)))  # every row costs as much as the first
SURE = Outlook((HeldOut(10, tuple(Promise((0.99,) * 9, 9) for _ in range(20))),) * 30)
WRONG = Outlook((HeldOut(10, tuple(Promise((0.3,) * 9, 0) for _ in range(20))),) * 30)


def test_rows_share_forwards_as_far_as_that_pays() -> None:
    assert Foretold(FREE, drafts=False).rows_at_once() == max(SIZES)
    assert Foretold(LINEAR, drafts=False).rows_at_once() == 1
    steps = BatchCost(Cost((1, 8, 9, 16, 17, 33), (1.0, 1.0, 2.0, 2.0, 3.0, 5.0)))  # 8 rows for the price of one
    assert Foretold(steps, drafts=False).rows_at_once() == 8
    cheap = [(rows, columns, 1.0) for rows in (4, 16) for columns in (1, 2, 4, 8)]  # though T(m) rises, batches do not
    assert Foretold(BatchCost(LINEAR.cost, cheap), drafts=False).rows_at_once() == max(SIZES)
    for drafts in (Foretold(LINEAR, True, SURE), Foretold(LINEAR, True, WRONG), Foretold(LINEAR, True)):
        assert drafts.rows_at_once() == 1


def test_a_token_costs_less_where_drafts_are_right() -> None:
    half = BatchCost(Cost((1, 33), (1.0, 5.0)))
    plain, sure, wrong = (Foretold(half, kept is not None, kept).token(4) for kept in (None, SURE, WRONG))
    assert sure < 0.5 * plain and wrong <= 1.1 * plain


def test_how_long_it_takes_is_foretold_by_held_out_answers() -> None:
    half = BatchCost(Cost((1, 33), (1.0, 5.0)))
    timed = ProbeRecord({}, (1, 33), (0.05, 0.25), 0.0, 1, 7)
    keys = np.arange(1000 * KEY, dtype=np.uint32).astype(np.uint8).reshape(1000, KEY)
    plan = Plan(keys, np.arange(1000), {}, [], 50_000, 20)
    told = how_long(Foretold(half, True, SURE), timed, plan, 4)
    assert "for answers of 20 tokens, without drafts" in told
    assert "without drafts" not in how_long(Foretold(half, True, WRONG), timed, plan, 4)
    assert how_long(Foretold(half, drafts=False), timed, plan, 4) == ""
    plan.file[:] = 0
    assert "about 0 s" in how_long(Foretold(half, True, SURE), timed, plan, 4)


def test_it_is_told_before_the_work(tmp_path: Path, tiny_teacher_path: Path, compiled: Compiled) -> None:
    data = write_jsonl(tmp_path / "in.jsonl", sms_rows(4))
    options: list[Any] = ["--model", tiny_teacher_path, "--data", data, "--max-tokens", 6]
    told = map_here(*options, "--out", tmp_path / "out.jsonl", "--graph", compiled.path)
    assert told.index("4 rows: 4 to answer") < told.index("rows at once") < told.index("written")


def test_the_memory_for_caches_is_some_of_the_machines() -> None:
    found = cache_bytes()
    assert found is None or found > 0


@pytest.mark.parametrize("seed", range(3))
def test_rows_that_share_a_beginning_follow_one_another(seed: int) -> None:
    import random

    chance = random.Random(seed)
    beginnings = [[k] * 40 for k in (5, 6)]
    prompts = [chance.choice(beginnings) + chance.choices(range(9, 99), k=chance.randint(2, 30)) for _ in range(30)]
    order = work_order(prompts)
    assert sorted(order) == list(range(30))
    found = [prompts[k] for k in order]
    assert sum(a[:40] != b[:40] for a, b in itertools.pairwise(found)) == 1
    for beginning in beginnings:
        lengths = [len(prompt) for prompt in found if prompt[:40] == beginning]
        assert lengths == sorted(lengths, reverse=True)
