"""Ragged caches: whatever rows join, leave, keep and drop, every row's next logits are those of a fresh cache."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
import zoo
from mlx_lm.models.cache import KVCache, make_prompt_cache

from daari_mlx.ground.errors import DaariError
from daari_mlx.teacher.ragged import RaggedCache
from daari_mlx.teacher.rewind import leaves
from daari_mlx.teacher.tap import tap_model

MODELS = sorted(zoo.CONFIGS)


class Batch:
    """Rows of a ragged cache beside the tokens that each of them should hold."""

    def __init__(self, model: nn.Module, seed: int = 0) -> None:
        self.model, self.tap = model, tap_model(model)[0]
        self.rows, self.texts = RaggedCache(model, tap=self.tap), list[list[int]]()
        self.random = np.random.default_rng(seed)

    def text(self, count: int) -> list[int]:
        return self.random.integers(1, zoo.VOCABULARY, count).tolist()

    def alone(self, text: list[int]) -> tuple[mx.array, mx.array]:
        """What a fresh cache gives for this text: ``(n, V)`` logits, ``(n, H)`` states."""
        with self.tap.reading() as seen:
            logits = self.model(mx.array([text]), cache=make_prompt_cache(self.model))
        return logits[0], seen[0][0]

    def join(self, count: int) -> None:
        text, cache = self.text(count), make_prompt_cache(self.model)
        if text:
            self.model(mx.array([text]), cache=cache)
        self.rows.join(cache, len(text))
        self.texts.append(text)

    def leave(self, row: int) -> None:
        cache, text = self.rows.leave(row), self.texts[row]
        self.texts[row] = self.texts[-1]
        self.texts.pop()
        token = self.text(1)
        logits = self.model(mx.array([token]), cache=cache)
        assert_close(logits[0], self.alone(text + token)[0][-1:])

    def round(self, blocks: list[list[int]], kept: list[int], compared: bool = True) -> None:
        logits, states = self.rows.forward(blocks)
        assert states is not None
        mx.eval(logits, states)
        for row, block in enumerate(blocks):
            if block and compared:
                alone = [x[-len(block) :] for x in self.alone(self.texts[row] + block)]
                assert_close(logits[row, : len(block)], alone[0])
                assert_close(states[row, : len(block)], alone[1])
        self.rows.settle(kept)
        self.texts = [text + block[:k] for text, block, k in zip(self.texts, blocks, kept, strict=True)]
        assert self.rows.tokens == [len(text) for text in self.texts]

    def random_round(self, compared: bool = True) -> None:
        blocks = [self.text(int(self.random.integers(0, 7))) for _ in self.texts]
        if any(blocks):
            self.round(blocks, [int(self.random.integers(0, len(block) + 1)) for block in blocks], compared)


def assert_close(batched: mx.array, alone: mx.array) -> None:
    a, b = (np.array(x.astype(mx.float32)) for x in (batched, alone))
    assert a.shape == b.shape
    assert np.abs(a - b).max() <= 2e-4 * max(1.0, float(b.std())), np.abs(a - b).max()


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> nn.Module:
    return zoo.build(request.param)


def test_two_hundred_rounds_of_random_acceptance_equal_fresh_caches(model: nn.Module) -> None:
    batch = Batch(model)
    for count in (3, 0, 11, 7):
        batch.join(count)
    for number in range(200):
        batch.random_round(compared=number % 5 == 0)
        if number % 9 == 4 and len(batch.rows) < 7:
            batch.join(int(batch.random.integers(0, 30)))
        if number % 11 == 10 and len(batch.rows) > 1:
            batch.leave(int(batch.random.integers(len(batch.rows))))


def test_a_damaged_row_would_show(model: nn.Module) -> None:
    """The negative control: one rejected token left in one row."""
    batch = Batch(model)
    for count in (5, 9):
        batch.join(count)
    block = batch.text(3)
    batch.rows.forward([block, block])
    batch.rows.settle([1, 2])
    batch.texts = [text + block[:1] for text in batch.texts]
    with pytest.raises(AssertionError):
        batch.round([[5], [5]], [1, 1])


def test_rows_of_another_cache_are_absorbed(model: nn.Module) -> None:
    batch, newcomers = Batch(model), Batch(model, seed=1)
    for count in (4, 0, 300):
        batch.join(count)
    for _ in range(3):
        newcomers.join(0)
    newcomers.round([newcomers.text(n) for n in (12, 3, 7)], [12, 3, 7])
    batch.rows.absorb(newcomers.rows, [0, 2])
    batch.texts += [newcomers.texts[0], newcomers.texts[2]]
    newcomers.texts = [newcomers.texts[1]]
    for _ in range(3):
        newcomers.random_round()
        batch.random_round()
    batch.rows.absorb(newcomers.rows, [0])
    batch.texts += newcomers.texts
    assert len(newcomers.rows) == 0 and newcomers.rows.nbytes == 0
    for _ in range(5):
        batch.random_round()


def test_what_rows_will_take_is_foretold(model: nn.Module) -> None:
    batch = Batch(model)
    for count in (3, 300, 20):
        batch.join(count)
    foretold = batch.rows.bytes_for([280, 330, 60])
    for _ in range(6):
        batch.round([batch.text(5) for _ in batch.texts], [5, 5, 5], compared=False)
    assert batch.rows.nbytes <= foretold <= 2 * batch.rows.nbytes


def test_rows_are_filtered_in_any_order(model: nn.Module) -> None:
    batch = Batch(model)
    for count in (4, 0, 30, 12, 5):
        batch.join(count)
    batch.random_round()
    for rows in ([3, 0, 4], [0, 1], [0], []):
        batch.rows.filter(rows)
        batch.texts = [batch.texts[row] for row in rows]
        batch.random_round()
    assert batch.rows.nbytes == 0
    batch.join(6)
    batch.random_round()


def test_a_forward_that_fails_changes_nothing(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = Batch(model)
    for count in (4, 9):
        batch.join(count)
    batch.random_round()
    broken = type("Broken", (type(model.layers[-1]),), {"__call__": lambda *_, **__: 1 / 0})
    with monkeypatch.context() as patch:
        patch.setattr(model.layers[-1], "__class__", broken)
        with pytest.raises(ZeroDivisionError):
            batch.rows.forward([[1, 2], [3]])
    batch.random_round()


def test_misuse_is_told(model: nn.Module) -> None:
    batch = Batch(model)
    for count in (4, 9):
        batch.join(count)
    with pytest.raises(ValueError, match="no forward to settle"):
        batch.rows.settle([0, 0])
    with pytest.raises(ValueError, match="every block is empty"):
        batch.rows.forward([[], []])
    batch.rows.forward([[1], [2, 3]])
    with pytest.raises(ValueError, match="cannot keep"):
        batch.rows.settle([2, 0])
    with pytest.raises(RuntimeError, match=r"call settle\(\) before"):
        batch.rows.join()
    batch.rows.settle([1, 2])
    with pytest.raises(DaariError, match="not this model's"):
        batch.rows.join([KVCache()])
    damaged = make_prompt_cache(model)
    model(mx.array([[1, 2, 3]]), cache=damaged)
    counting = [leaf for leaf in leaves(damaged) if hasattr(leaf, "offset")]
    if len(counting) < 2:
        return
    counting[0].trim(1)
    with pytest.raises(DaariError, match="damaged"):
        batch.rows.join(damaged)
