"""Every text architecture of mlx-lm against mlx-lm itself: same tokens, exact cache, states from the same forward."""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from architectures import BROKEN, PARTS, REFUSED, ROUNDED, WINDOW, WORKING, build, names
from mlx_lm.models.cache import make_prompt_cache
from zoo import Oracle, plain_tokens

from daari_mlx.decode.choose import choose_drafter
from daari_mlx.decode.limits import Options
from daari_mlx.decode.loop import generate_step
from daari_mlx.draft.drafter import Context, Draft
from daari_mlx.ground.accept import Statistics
from daari_mlx.ground.errors import DaariError
from daari_mlx.teacher import quirks, rewind
from daari_mlx.teacher.kept import stamp
from daari_mlx.teacher.row import Row
from daari_mlx.teacher.tap import tap_model

PROMPT = [3, 17, 42, 99, 5, 64, 7]
LENGTH, AFTER = 56, 8  # far past the windows of 16
LONG = 120  # past contexts of 64

# caches that cannot be restored from references: none
UNRESTORED: dict[str, str] = {}


class Blocks(Oracle):
    """Drafts of 1 to 8 tokens, each right with a chance of 0.7."""

    def draft(self, context: Context, limit: int, pending: int = 0) -> Draft:
        self.block = int(self.random.integers(1, 9))
        return super().draft(context, limit, pending)


@dataclass
class Case:
    """A tiny model and what mlx-lm generates with it."""

    name: str
    model: nn.Module
    plain: list[int]

    def run(self, seed: int, length: int = LENGTH) -> tuple[list[int], Statistics, list[Any], Blocks]:
        """(tokens, statistics, the cache as it was left, the drafter)"""
        cache, statistics = make_prompt_cache(self.model), Statistics()
        drafter = Blocks(PROMPT + self.plain, block=8, seed=seed)
        options = Options(max_tokens=length, blocks_until=quirks.blocks_until(self.model))
        tap, _ = tap_model(self.model)
        steps = generate_step(
            PROMPT, self.model, cache, options=options, drafter=drafter, tap=tap, statistics=statistics
        )
        return [step.token for step in steps], statistics, cache, drafter


@functools.lru_cache(maxsize=2)  # whatever order the tests are run in
def case_of(name: str) -> Case:
    model = build(name)
    return Case(name, model, plain_tokens(model, PROMPT, LENGTH + AFTER))


@pytest.fixture(scope="module", params=[pytest.param(n, marks=pytest.mark.xdist_group(n)) for n in WORKING])
def case(request: pytest.FixtureRequest) -> Case:
    return case_of(request.param)


def test_greedy_tokens_equal_plain_and_the_cache_is_exact(case: Case) -> None:
    tap_model(case.model)
    before = stamp(case.model)
    tokens, statistics, cache, _ = case.run(0)
    assert stamp(case.model) == before, "forwards and taps are no change"
    assert tokens == case.plain[:LENGTH]
    assert statistics.accepted > 0 and statistics.forwards < LENGTH
    assert plain_tokens(case.model, tokens[-1:], AFTER, prompt_cache=cache) == case.plain[LENGTH:]


def test_states_are_those_of_a_plain_forward(case: Case) -> None:
    """One firing a forward, and what the drafter was shown last is the state of a fresh forward over the same text."""
    *_, drafter = case.run(0, length=30)
    context = drafter.contexts[-1]
    tap, width = tap_model(case.model)
    with tap.reading() as seen:
        logits = case.model(mx.array([context.tokens[:-1]]), cache=make_prompt_cache(case.model))
    assert len(seen) == 1 and seen[0].shape == (*logits.shape[:2], width)
    assert context.state is not None and context.state.shape == (width,)
    fresh = np.array(seen[0][0, -1].astype(mx.float32))
    scale = float(np.abs(fresh).max())
    np.testing.assert_allclose(context.state, fresh, atol=scale * (0.1 if case.name in ROUNDED else 5e-3))


def test_restoring_instead_of_trimming_is_exact_too(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    if case.name in UNRESTORED:
        pytest.skip(UNRESTORED[case.name])
    monkeypatch.setattr(rewind, "_trims", lambda leaf: False)
    monkeypatch.setattr(rewind, "is_rotating", lambda leaf: False)
    tokens, _, cache, _ = case.run(2)
    assert tokens == case.plain[:LENGTH]
    assert plain_tokens(case.model, tokens[-1:], AFTER, prompt_cache=cache) == case.plain[LENGTH:]


def test_a_damaged_cache_would_show(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: with rejected rows left in the cache the tokens differ."""
    monkeypatch.setattr(Row, "settle", lambda self, emitted: None)
    assert any(case.run(seed)[0] != case.plain[:LENGTH] for seed in range(3))


def test_every_architecture_has_its_place() -> None:
    assert len(WORKING) >= 120
    assert set(names()) == {*WORKING, *BROKEN, *REFUSED}
    for name in PARTS:
        assert not hasattr(importlib.import_module(f"mlx_lm.models.{name}"), "Model"), f"{name} is a model"


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_mlx_lm_itself_cannot_run_these(name: str) -> None:
    with pytest.raises((ImportError, RuntimeError, SystemExit, ValueError)):
        plain_tokens(build(name), PROMPT, 4)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_refused_models_decode_plainly_and_are_no_teachers(name: str) -> None:
    model = build(name)
    statistics = Statistics()
    cache = make_prompt_cache(model)
    assert choose_drafter(model, None, cache, statistics, None, Oracle([], block=1), "auto") == (None, None)
    assert statistics.drafting_off is not None and statistics.drafting_off.startswith(f"{name}: ")
    with pytest.raises(DaariError, match=f"cannot be a teacher: {name}: "):
        tap_model(model)
    expected = plain_tokens(model, PROMPT, 20)
    steps = generate_step(
        PROMPT, model, cache, options=Options(max_tokens=20), drafter=None, tap=None, statistics=statistics
    )
    assert [step.token for step in steps] == expected


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_rows_of_refused_models_do_differ(name: str) -> None:
    """If mlx-lm mends it, this fails and the model can be taken off the list."""
    model = build(name)
    tokens = mx.array([[3 + 5 * k % 97 for k in range(40)]])
    cache = make_prompt_cache(model)
    single = mx.concatenate([model(tokens[:, k : k + 1], cache=cache) for k in range(40)], axis=1)
    block = model(tokens, cache=make_prompt_cache(model))
    assert int((mx.argmax(single, axis=-1) != mx.argmax(block, axis=-1)).sum()) > 0


LIMITED = {
    "plamo3": {},
    "internlm2": {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "max_position_embeddings": 64},
    "internlm3": {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings": 64},
}


@pytest.mark.parametrize("name", sorted(LIMITED))
def test_blocks_end_where_rows_begin_to_differ(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(name, **LIMITED[name])
    limit = quirks.blocks_until(model)
    assert limit == (WINDOW if name == "plamo3" else 64)
    case = Case(name, model, plain_tokens(model, PROMPT, LONG + AFTER))
    for seed in range(3):
        tokens, statistics, cache, _ = case.run(seed, LONG)
        assert tokens == case.plain[:LONG]
        assert plain_tokens(model, tokens[-1:], AFTER, prompt_cache=cache) == case.plain[LONG:]
    assert statistics.accepted > 0
    monkeypatch.setattr(quirks, "blocks_until", lambda model: None)
    assert any(case.run(seed, LONG)[0] != case.plain[:LONG] for seed in range(3)), "the limit is not needed any more"


def test_other_models_have_no_limit() -> None:
    for name in ("llama", "gemma3_text", "deepseek_v3", "qwen3_next"):
        assert quirks.blocks_until(build(name)) is None and quirks.refuses_blocks(build(name)) is None
