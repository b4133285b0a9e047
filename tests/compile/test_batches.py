"""Forwards that are shared give the states of single ones, always in the same company, or are not shared."""

from __future__ import annotations

from typing import Any

import architectures
import mlx.core as mx
import numpy as np
import pytest
import zoo
from mlx_lm.models.cache import KVCache, make_prompt_cache

from daari_mlx.compile import batches
from daari_mlx.compile.batches import Layout, Piece, Reader, choose, read_rows, spread
from daari_mlx.teacher.load import Teacher

FULL = Layout(prefixes=True, batches=True)
# caches of every kind, experts, shared keys, attention in chunks
KINDS = ["deepseek_v3", "falcon_h1", "gemma3n", "llama4_text", "mamba", "qwen3_moe", "qwen3_next", "rwkv7"]


def made_up(seed: int = 0, prefix: int = 21) -> list[Piece]:
    """Sequences longer than the windows of the models, behind a prefix that is longer too."""
    random = np.random.default_rng(seed)
    head = random.integers(3, 120, prefix).tolist()
    return [
        Piece(head + random.integers(3, 120, length).tolist(), prefix + lead, prefix)
        for length, lead in ((6, 3), (13, 4), (19, 5), (20, 0))
    ]


def alone(teacher: Teacher, pieces: list[Piece]) -> list[Any]:
    return [teacher.states(p.tokens, "final", p.first) for p in pieces]


@pytest.fixture(scope="module")
def teacher(tiny_teacher: tuple[Any, Any]) -> Teacher:
    return Teacher(*tiny_teacher, "tiny")


@pytest.mark.parametrize("name", [*zoo.CONFIGS, *KINDS])
def test_every_kind_of_cache_shares_prefixes_and_batches(name: str) -> None:
    model = zoo.build(name) if name in zoo.CONFIGS else architectures.build(name)
    teacher, pieces = Teacher(model, None, name), made_up()
    layout = choose(teacher, "final", pieces)
    assert (layout.prefixes, layout.batches) == (True, True) and layout.difference <= batches.BOUND
    for found, expected in zip(Reader(teacher, "final", layout).states(pieces), alone(teacher, pieces), strict=True):
        assert found.shape == expected.shape
        assert batches._difference(found, expected) <= 2 * batches.BOUND  # mamba is near it


@pytest.mark.parametrize("name", ["gemma3n", "gemma3_text", "mamba2"])
def test_states_are_those_of_decoding_which_has_a_cache(name: str) -> None:
    """gemma3n's layers that share keys see others where there is no cache: its states came out wrong without one."""
    model = zoo.build(name) if name in zoo.CONFIGS else architectures.build(name)
    teacher, tokens = Teacher(model, None, name), made_up()[2].tokens
    cache = make_prompt_cache(model)
    singly = [read_rows(teacher, "final", np.array([[t]], np.int32), cache, 0)[0, 0] for t in tokens]
    assert batches._difference(teacher.states(tokens, "final", 0), np.stack(singly)) <= 5 * batches.BOUND


def test_the_same_pieces_give_the_same_bits_whatever_was_read_before(teacher: Teacher) -> None:
    parts = [made_up(seed) for seed in range(4)]
    fresh = [Reader(teacher, "final", FULL).states(part) for part in parts]
    one = Reader(teacher, "final", FULL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "PREFIX_TOKENS", 30)  # prefixes are dropped and computed anew
        for number in (3, 0, 2, 0, 1, 3):
            for found, expected in zip(one.states(parts[number]), fresh[number], strict=True):
                np.testing.assert_array_equal(found, expected)


def test_batches_hold_like_lengths_of_one_prefix_within_the_limits(teacher: Teacher) -> None:
    random = np.random.default_rng(0)
    pieces = [
        Piece([prefix] * 20 + random.integers(3, 600, int(random.integers(2, 300))).tolist(), 20, 20)
        for prefix in random.integers(5, 8, 90).tolist()
    ]
    plan = Reader(teacher, "final", FULL).plan(pieces)
    assert sorted(i for batch in plan for i in batch) == list(range(90))
    assert len(plan) < 60
    for batch in plan:
        lengths = [len(pieces[i].tokens) - 20 for i in batch]
        assert len({pieces[i].tokens[0] for i in batch}) == 1
        assert len(batch) == 1 or len(batch) * max(lengths) <= batches.NEW_TOKENS
        assert len(batch) <= batches.ROWS and max(lengths) <= batches.PADDING * min(lengths)
    assert all(len(batch) == 1 for batch in Reader(teacher, "final", Layout(True, False)).plan(pieces))


def test_rows_that_depend_on_their_forward_are_left_alone(teacher: Teacher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "blocks_until", lambda model: 38)
    pieces = made_up()  # 27, 34, 40 and 41 tokens
    reader = Reader(teacher, "final", FULL)
    assert [batch for batch in reader.plan(pieces) if {2, 3} & set(batch)] in ([[2], [3]], [[3], [2]])
    np.testing.assert_array_equal(reader.states(pieces)[3], alone(teacher, pieces[3:])[0])


def test_a_model_that_spoils_copied_caches_or_batches_reads_without(
    teacher: Teacher, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces, expected = made_up(), alone(teacher, made_up())

    def shifted(cache: Any, rows: int) -> Any:
        copy = spread(cache, rows)
        for leaf in copy:
            leaf.offset -= 1
        return copy

    def single(*given: Any) -> Any:
        if given[2].shape[0] > 1:
            raise ValueError("one row only")
        return read_rows(*given)

    with monkeypatch.context() as patch:
        patch.setattr(batches, "spread", shifted)
        layout = choose(teacher, "final", pieces)
        assert (layout.prefixes, layout.batches) == (False, True)
        for found, wanted in zip(Reader(teacher, "final", layout).states(pieces), expected, strict=True):
            assert batches._difference(found, wanted) <= batches.BOUND
        patch.setattr(batches, "read_rows", single)
        assert choose(teacher, "final", pieces) == Layout(False, False)
    monkeypatch.setattr(batches, "read_rows", single)
    layout = choose(teacher, "final", pieces)
    assert (layout.prefixes, layout.batches) == (True, False)


def test_long_prefixes_and_sequences_are_read_in_steps(teacher: Teacher, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = made_up()
    expected = alone(teacher, pieces)
    monkeypatch.setattr(batches, "PREFILL_STEP_SIZE", 7)
    for found, wanted in zip(Reader(teacher, "final", FULL).states(pieces), expected, strict=True):
        assert batches._difference(found, wanted) <= batches.BOUND


def test_a_spread_cache_leaves_its_original_alone() -> None:
    cache = KVCache()
    cache.update_and_fetch(mx.ones((1, 2, 5, 4)), mx.ones((1, 2, 5, 4)))
    for rows in (1, 3):
        copy = spread([cache], rows)[0]
        keys, _ = copy.update_and_fetch(mx.zeros((rows, 2, 2, 4)), mx.zeros((rows, 2, 2, 4)))
        assert keys.shape == (rows, 2, 7, 4) and cache.offset == 5
        assert mx.all(cache.keys[..., :5, :] == 1).item() and cache.keys.shape[0] == 1
