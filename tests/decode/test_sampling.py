"""What is drawn, and from what: the teacher's distribution, plain's ties, plain's log-probabilities."""

from __future__ import annotations

import importlib
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.models.cache import KVCache, make_prompt_cache
from mlx_lm.sample_utils import greedy_sampler, make_logits_processors, make_sampler
from scipy.stats import chisquare
from zoo import VOCABULARY, Oracle, build, plain_tokens

from daari_mlx.decode.emitted import Emitted
from daari_mlx.decode.limits import Options
from daari_mlx.decode.loop import generate_step
from daari_mlx.draft.drafter import Context, Draft
from daari_mlx.ground.accept import Statistics
from daari_mlx.measure.identity import GAP_BOUND
from daari_mlx.teacher.tap import tap_model

PROMPT = [3, 17, 42, 99, 5, 64, 7]


def run(
    model: Any, drafter: Any, length: int, prompt: list[int] = PROMPT, **options: Any
) -> tuple[list[Emitted], Statistics]:
    statistics = Statistics()
    steps = generate_step(
        prompt,
        model,
        make_prompt_cache(model),
        options=Options(max_tokens=length, **options),
        drafter=drafter,
        tap=tap_model(model)[0] if drafter else None,
        statistics=statistics,
    )
    return list(steps), statistics


def plain(model: Any, length: int, **options: Any) -> list[tuple[int, mx.array]]:
    step = importlib.import_module("mlx_lm.generate").generate_step
    return [(int(t), p) for t, p in step(prompt=mx.array(PROMPT), model=model, max_tokens=length, **options)]


# --- the distribution

SEEDS = 300


class Chain(nn.Module):
    """A teacher over six tokens whose next-token distribution depends on the last token alone; no draw is certain."""

    def __init__(self) -> None:
        super().__init__()
        self.model_type = "chain"
        self.head = nn.Linear(7, 6, bias=False)
        self.head.weight = mx.array(np.random.default_rng(4).normal(size=(6, 7)).astype(np.float32))

    def make_cache(self) -> list[Any]:
        return [KVCache()]

    def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
        if cache is not None:
            zeros = mx.zeros((1, 1, inputs.shape[1], 1))
            cache[0].update_and_fetch(zeros, zeros)
        return self.head(mx.eye(7)[inputs])

    def distribution(self, temp: float) -> np.ndarray:
        """``(6, 6)``: row i is that of the token after i."""
        logits = np.array(self.head.weight, np.float64).T[:6] / temp
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        return shares / shares.sum(axis=1, keepdims=True)


class Fixed:
    """Drafts the same tokens whatever was said."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens

    def draft(self, context: Context, limit: int, pending: int = 0) -> Draft:
        return Draft(self.tokens[:limit], [0.5] * min(limit, len(self.tokens)))


class Likeliest:
    """Drafts three tokens, each the likeliest after the one before; adds up how many should be accepted."""

    def __init__(self, distribution: np.ndarray) -> None:
        self.distribution, self.expected = distribution, 0.0

    def draft(self, context: Context, limit: int, pending: int = 0) -> Draft:
        tokens, last, chance = [], context.tokens[-1], 1.0
        for _ in range(min(limit, 3)):
            row = self.distribution[last]
            last = int(np.argmax(row))
            chance *= row[last]
            self.expected += chance
            tokens.append(last)
        return Draft(tokens, [0.5] * len(tokens))


@pytest.mark.parametrize("temp", [0.7, 1.3])
@pytest.mark.parametrize("processors", [None, [lambda _, logits: logits]])
def test_what_is_drawn_with_drafts_is_distributed_as_the_teacher_says(temp: float, processors: Any) -> None:
    """Chi-square over the tokens after each token, for many seeds."""
    model, counts = Chain(), {True: np.zeros((6, 6)), False: np.zeros((6, 6))}
    expected = model.distribution(temp)
    drafter, accepted = Likeliest(expected), 0
    for seed in range(SEEDS):
        mx.random.seed(seed)
        options = {"sampler": make_sampler(temp=temp), "logits_processors": processors}
        emitted, statistics = run(model, drafter, 12, [0, 1], **options)
        accepted, last = accepted + statistics.accepted, 1
        for step in emitted:
            counts[step.source is not None][last, step.token] += 1
            last = step.token
    assert accepted == pytest.approx(drafter.expected, rel=0.1), "a draft is kept as often as the teacher draws it"
    total = counts[True] + counts[False]
    assert total.sum() == SEEDS * 12 and counts[True].sum() > 300
    for row in range(6):
        assert chisquare(total[row], total[row].sum() * expected[row]).pvalue > 1e-4
    # drafted tokens alone are not distributed so: the test would see a draft that is kept for its own sake
    assert any(chisquare(counts[True][r], counts[True][r].sum() * expected[r]).pvalue < 1e-6 for r in range(6))


# --- ties


class Tied(nn.Module):
    """A teacher in bfloat16 whose two best logits differ, and whose log-probabilities do not."""

    def __init__(self, vocabulary: int = 4096) -> None:
        super().__init__()
        self.model_type = "tied"
        self.head = nn.Linear(4, vocabulary, bias=False)
        logits = mx.full((vocabulary,), 2.0)
        logits[3000], logits[40] = 3.015625, 3.0  # after minus 10.3 the step is 1/16: both become the same
        self.head.weight = mx.stack([logits, *[mx.zeros_like(logits)] * 3], axis=1).astype(mx.bfloat16)

    def make_cache(self) -> list[Any]:
        return [KVCache()]

    def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
        if cache is not None:
            zeros = mx.zeros((1, 1, inputs.shape[1], 1))
            cache[0].update_and_fetch(zeros, zeros)
        return self.head(mx.broadcast_to(mx.eye(4)[0].astype(mx.bfloat16), (*inputs.shape, 4)))


@pytest.mark.parametrize("sampler", [None, greedy_sampler, make_sampler(temp=0.0)])
@pytest.mark.parametrize("processors", [None, make_logits_processors(logit_bias={7: 0.0})])
@pytest.mark.parametrize("block", [0, 1, 5])
def test_ties_of_log_probabilities_break_as_plains_do(block: int, sampler: Any, processors: Any) -> None:
    model = Tied()
    logits = model(mx.array([[1]]))[0, 0]
    logprobs = logits - mx.logsumexp(logits)
    assert int(mx.argmax(logits)) == 3000 and int(mx.argmax(logprobs)) == 40, "raw logits would break it otherwise"
    expected = [t for t, _ in plain(model, 12, sampler=sampler, logits_processors=processors)]
    assert expected == [40] * 12
    emitted, statistics = run(
        model, Fixed([40] * block) if block else None, 12, sampler=sampler, logits_processors=processors
    )
    assert [e.token for e in emitted] == expected
    assert statistics.accepted == statistics.drafted and (block == 0 or statistics.accepted > 0)


@pytest.mark.parametrize("name", ["llama", "qwen3", "cohere2"])
def test_bfloat16_leaves_plain_only_where_its_log_probabilities_tie(name: str) -> None:
    model = build(name, dtype=mx.bfloat16)
    expected = plain(model, 60)
    emitted, _ = run(model, Oracle(PROMPT + [t for t, _ in expected], block=5), 60)
    for step, (token, logprobs) in zip(emitted, expected, strict=True):
        if step.token != token:
            gap = float((logprobs[token] - logprobs[step.token]).astype(mx.float32))
            assert gap <= GAP_BOUND[mx.bfloat16]
            break


# --- log-probabilities


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "mamba2", "lfm2"])
@pytest.mark.parametrize("processed", [False, True])
@pytest.mark.parametrize("sampler", [None, make_sampler(temp=0.8)])
def test_log_probabilities_equal_plains(name: str, processed: bool, sampler: Any) -> None:
    """To the bit while nothing is drafted; with drafts within the bound below which float32 ties, as for tokens."""
    model = build(name)
    options = {
        "sampler": sampler,
        "logits_processors": make_logits_processors(repetition_penalty=1.2) if processed else None,
    }
    mx.random.seed(1)
    expected = plain(model, 40, **options)
    truth = PROMPT + [t for t, _ in expected]
    for drafter in (None, Oracle(truth, block=4)):
        mx.random.seed(1)
        emitted, statistics = run(model, drafter, 40, **options)
        assert (statistics.accepted > 5) == (drafter is not None)
        for step, (token, logprobs) in zip(emitted, expected, strict=True):
            assert step.token == token and step.logprobs.shape == (VOCABULARY,) and step.logprobs.dtype == mx.float32
            ours, theirs = np.array(step.logprobs), np.array(logprobs)
            if drafter is None:
                assert np.array_equal(ours, theirs)
            np.testing.assert_allclose(ours, theirs, atol=GAP_BOUND[mx.float32])


def test_plain_is_what_it_is_taken_for() -> None:
    model = build("llama")
    assert [t for t, _ in plain(model, 20)] == plain_tokens(model, PROMPT, 20)
