"""After any blocks and drops a cache is that of a fresh forward over what was kept."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
    make_prompt_cache,
)
from zoo import CONFIGS, VOCABULARY, WINDOW, build

from daari_mlx.teacher.rewind import Checkpoint, can_drop_one, drop_last, leaves, refuses_drafts

RESTORED = {"mamba2", "lfm2"}
ROTATING = {"gemma3_text", "cohere2"}
MODELS: dict[str, nn.Module] = {}


def model_of(name: str) -> nn.Module:
    if name not in MODELS:
        MODELS[name] = build(name)
    return MODELS[name]


def feed(model: nn.Module, cache: list[Any], tokens: list[int]) -> np.ndarray:
    """The logits of the last token."""
    logits = model(mx.array([tokens]), cache=cache)[0, -1]
    mx.eval(logits, [c.state for c in cache])
    return np.array(logits)


def same_as_fresh(model: nn.Module, cache: list[Any], kept: list[int]) -> None:
    """The next single row sees exactly what was kept."""
    fresh = make_prompt_cache(model)
    feed(model, fresh, kept)
    np.testing.assert_allclose(feed(model, cache, [7]), feed(model, fresh, [7]), rtol=2e-3, atol=2e-3)


def random_tokens(seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCABULARY, count).tolist()


@settings(max_examples=25)
@given(
    st.sampled_from(sorted(CONFIGS)),
    st.integers(1, 30),
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=8),
)
def test_any_blocks_and_drops(name: str, start: int, rounds: list[tuple[int, int]]) -> None:
    """Windows of 16 are passed many times over; where a state had to be restored, the kept rows are fed again."""
    model = model_of(name)
    cache = make_prompt_cache(model)
    kept = random_tokens(0, start)
    feed(model, cache, kept)
    for number, (rows, drop) in enumerate(rounds):
        block, drop = random_tokens(number + 1, rows), min(drop, rows)
        checkpoint = Checkpoint(cache, rows)
        feed(model, cache, block)
        dropped = checkpoint.drop(drop)
        assert dropped in (drop, rows) and (dropped == drop or not checkpoint.exact)
        if dropped > drop:
            feed(model, cache, block[: rows - drop])
        kept += block[: rows - drop]
    same_as_fresh(model, cache, kept)


@pytest.mark.parametrize("name", sorted(CONFIGS))
@pytest.mark.parametrize("length", [3, WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW])
@pytest.mark.parametrize("rows", [1, 4])
def test_back_to_the_checkpoint(name: str, length: int, rows: int) -> None:
    """For a block that failed half way: everything that came since is gone."""
    model = model_of(name)
    cache = make_prompt_cache(model)
    kept = random_tokens(0, length)
    feed(model, cache, kept)
    checkpoint = Checkpoint(cache, rows)
    feed(model, cache, random_tokens(1, rows))
    checkpoint.back_to(0)
    same_as_fresh(model, cache, kept)


@pytest.mark.parametrize("name", sorted(CONFIGS))
@pytest.mark.parametrize("length", [1, WINDOW - 2, WINDOW, 3 * WINDOW])
@pytest.mark.parametrize("count", [1, 5, WINDOW + 3])
def test_back_from_any_number_of_single_rows(name: str, length: int, count: int) -> None:
    """A drafting model goes on row by row, over the edge of its windows and all around them, and comes back."""
    model = model_of(name)
    cache = make_prompt_cache(model)
    kept = random_tokens(0, length)
    feed(model, cache, kept)
    for times in range(2):
        checkpoint = Checkpoint(cache, count, singly=True)
        for token in random_tokens(times + 1, count):
            feed(model, cache, [token])
        checkpoint.back_to(0)
    same_as_fresh(model, cache, kept)


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_a_block_that_stopped_between_two_layers(name: str) -> None:
    model = model_of(name)
    cache = make_prompt_cache(model)
    kept = random_tokens(0, 2 * WINDOW)
    feed(model, cache, kept)
    checkpoint = Checkpoint(cache, 4)
    last = model.layers[-1]
    cls = type(last)
    last.__class__ = type("Broken", (cls,), {"__call__": lambda *_, **__: 1 / 0})
    try:
        with pytest.raises(ZeroDivisionError):
            model(mx.array([random_tokens(1, 4)]), cache=cache)
    finally:
        last.__class__ = cls
    checkpoint.back_to(0)
    same_as_fresh(model, cache, kept)


@pytest.mark.parametrize("name", sorted(CONFIGS))
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_the_last_rows_can_be_dropped_long_after_where_the_cache_says_so(name: str, rows: int) -> None:
    model = model_of(name)
    cache = make_prompt_cache(model)
    kept = random_tokens(0, 40)
    for token in kept:
        feed(model, cache, [token])
    possible = name not in RESTORED | ROTATING
    assert can_drop_one(cache) == possible
    assert drop_last(cache, rows) == (possible or rows == 0)
    same_as_fresh(model, cache, kept[: 40 - rows] if possible else kept)


def test_which_checkpoints_are_exact() -> None:
    for name in CONFIGS:
        cache = make_prompt_cache(model_of(name))
        assert Checkpoint(cache, 4).exact == (name not in RESTORED)
        assert Checkpoint(cache, 1).exact == (name not in RESTORED | ROTATING)


def test_the_callers_own_objects_are_kept() -> None:
    """Restoring changes the cache objects in place: the caller holds them."""
    model = model_of("lfm2")
    cache = make_prompt_cache(model)
    before = list(cache)
    feed(model, cache, [1, 2, 3])
    checkpoint = Checkpoint(cache, 2)
    feed(model, cache, [4, 5])
    assert checkpoint.drop(1) == 2
    assert all(ours is theirs for ours, theirs in zip(cache, before, strict=True))


# --- single kinds of cache


def rows_of(count: int, first: int = 0) -> mx.array:
    """``(1, 1, count, 32)`` rows that tell their number."""
    return mx.broadcast_to(mx.arange(first, first + count, dtype=mx.float32)[None, None, :, None], (1, 1, count, 32))


def numbers(cache: Any, first: int) -> list[float]:
    """The rows that the next single row sees, itself included."""
    keys, _ = cache.update_and_fetch(rows_of(1, first), rows_of(1, first))
    return keys[0, 0, :, 0].tolist()


@pytest.mark.parametrize("make", [KVCache, ConcatenateKVCache, lambda: ChunkedKVCache(64)])
@pytest.mark.parametrize("drop", [0, 1, 3, 4])
def test_rows_of_plain_caches(make: Any, drop: int) -> None:
    cache = [make()]
    cache[0].update_and_fetch(rows_of(6), rows_of(6))
    checkpoint = Checkpoint(cache, 4)
    cache[0].update_and_fetch(rows_of(4, 6), rows_of(4, 6))
    assert checkpoint.drop(drop) == drop
    assert numbers(cache[0], 99) == [*range(10 - drop), 99]


@pytest.mark.parametrize("held", [2, 7, 8, 9, 30])
@pytest.mark.parametrize("drop", [0, 1, 3, 4])
def test_rows_of_a_rotating_cache(held: int, drop: int) -> None:
    """Before, at and long after its window of 8 is full."""
    cache = [RotatingKVCache(max_size=8, keep=0)]
    for number in range(held):
        cache[0].update_and_fetch(rows_of(1, number), rows_of(1, number))
    checkpoint = Checkpoint(cache, 4)
    cache[0].update_and_fetch(rows_of(4, held), rows_of(4, held))
    assert checkpoint.drop(drop) == drop
    expected = [*range(held + 4 - drop), 99][-8:]
    assert sorted(numbers(cache[0], 99)) == expected


def test_rows_of_a_quantised_cache() -> None:
    cache = [QuantizedKVCache(group_size=32, bits=8)]
    cache[0].update_and_fetch(rows_of(6), rows_of(6))
    checkpoint = Checkpoint(cache, 3)
    cache[0].update_and_fetch(rows_of(3, 6), rows_of(3, 6))
    assert checkpoint.drop(2) == 2 and cache[0].offset == 7


def test_nested_caches_are_seen_whole() -> None:
    inner = [KVCache(), ArraysCache(2), RotatingKVCache(max_size=8)]
    cache = [CacheList(inner[0], inner[1]), inner[2]]
    assert list(leaves(cache)) == inner
    assert not can_drop_one(cache) and not Checkpoint(cache, 4).exact


def test_a_cache_that_keeps_its_first_tokens_is_refused() -> None:
    assert refuses_drafts([KVCache(), RotatingKVCache(max_size=8, keep=0)]) is None
    assert "max_kv_size" in str(refuses_drafts([KVCache(), RotatingKVCache(max_size=8, keep=4)]))
    assert "keep=4" in str(refuses_drafts([CacheList(KVCache(), RotatingKVCache(max_size=8, keep=4))]))


def test_more_rows_than_there_are_cannot_be_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = [KVCache()]
    cache[0].update_and_fetch(rows_of(4), rows_of(4))
    assert not drop_last(cache, 5) and cache[0].offset == 4
    checkpoint = Checkpoint(cache, 2)
    cache[0].update_and_fetch(rows_of(2, 4), rows_of(2, 4))
    monkeypatch.setattr(KVCache, "trim", lambda *_: 0)  # as a full rotating cache does, without a word
    with pytest.raises(RuntimeError, match="cannot be rewound"):
        checkpoint.drop(2)
