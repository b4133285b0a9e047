"""Latent attention in small blocks, and the rewinding that needs care: chunks, slots, rows owed."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from architectures import build
from mlx_lm.models.cache import make_prompt_cache
from zoo import Oracle, plain_tokens

from daari_mlx.decode.limits import Options
from daari_mlx.decode.loop import generate_step
from daari_mlx.ground.accept import Statistics
from daari_mlx.teacher import quirks, rewind
from daari_mlx.teacher.row import MAX_PENDING, Row
from daari_mlx.teacher.tap import tap_model

PROMPT = [3, 17, 42, 99, 5, 64, 7]
LATENT = (
    "bailing_hybrid", "bailing_moe_v3", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa", "kimi_k25",
    "kimi_k3", "kimi_linear", "kimi_vl", "longcat_flash", "longcat_flash_ngram", "mistral4",
)  # fmt: skip


def latent_modules(model: Any) -> list[Any]:
    return [m for _, m in model.named_modules() if hasattr(m, "embed_q") and hasattr(m, "unembed_out")]


def widths(model: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows that every later ``unembed_out`` is given: those of the block, or those of the whole cache."""
    seen: list[int] = []
    for module in latent_modules(model):
        inner = module.unembed_out
        cls = type(inner)

        def call(self: Any, x: mx.array, *args: Any, cls: type = cls, **kwargs: Any) -> mx.array:
            seen.append(x.shape[-2])
            return cls.__call__(self, x, *args, **kwargs)

        monkeypatch.setattr(inner, "__class__", type(cls.__name__, (cls,), {"__call__": call}))
    return seen


@pytest.mark.parametrize("name", LATENT)
def test_a_small_block_does_not_expand_the_latent_cache(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(name)
    tokens = mx.array([[3 + 5 * k % 97 for k in range(45)]])
    caches = [make_prompt_cache(model) for _ in range(2)]
    for cache in caches:
        model(tokens[:, :40], cache=cache)
    seen = widths(model, monkeypatch)
    assert seen == [] and latent_modules(model)
    plain = model(tokens[:, 40:], cache=caches[0])
    assert set(seen) == {45}, "mlx-lm keeps small blocks on the absorbed path itself now"
    seen.clear()
    ours = quirks.forward_rows(model, tokens[:, 40:], caches[1])
    assert set(seen) == {5}
    np.testing.assert_allclose(np.array(ours), np.array(plain), atol=2e-3 * float(mx.abs(plain).max()))
    for cache in caches:
        for leaf in rewind.leaves(cache):
            assert getattr(leaf, "offset", 45) == 45


def test_other_forwards_and_large_blocks_stay_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("deepseek_v3")
    before = [type(m) for m in latent_modules(model)]
    quirks.forward_rows(model, mx.array([[1, 2]]), make_prompt_cache(model))
    seen = widths(model, monkeypatch)
    cache = make_prompt_cache(model)
    model(mx.array([[1, 2, 3]]), cache=cache)
    model(mx.array([[1, 2, 3]]), cache=cache)
    assert set(seen) == {3, 6}
    seen.clear()
    quirks.forward_rows(model, mx.array([[1] * (quirks.ABSORBED_ROWS + 1)]), cache)
    assert set(seen) == {quirks.ABSORBED_ROWS + 7}
    assert all(isinstance(m, cls) for m, cls in zip(latent_modules(model), before, strict=True))
    quirks.close_all(model)
    assert [type(m) for m in latent_modules(model)] == before


def test_modules_that_came_later_are_kept_cheap_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model, other = build("deepseek_v3"), build("deepseek_v3")
    cache = make_prompt_cache(model)
    quirks.forward_rows(model, mx.array([[1] * 40]), cache)
    model.layers[0].self_attn = other.layers[0].self_attn
    assert quirks.refuses_blocks(model) is None  # asked before every answer
    seen = widths(model, monkeypatch)
    quirks.forward_rows(model, mx.array([[1, 2]]), cache)
    assert set(seen) == {2}
    quirks.close_all(model)
    assert "daari_mlx.teacher.quirks" not in {type(m).__module__ for m in latent_modules(model)}


def test_unknown_latent_attention_decodes_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where mlx-lm's source is not as expected, blocks could cost many times a row: no drafting, and the reason."""
    assert quirks.refuses_blocks(build("deepseek_v3")) is None
    monkeypatch.setattr(quirks, "_absorbed", lambda cls: None)
    reason = quirks.refuses_blocks(build("deepseek_v3"))
    assert reason is not None and reason.startswith("deepseek_v3: ") and "latent cache" in reason


@pytest.mark.parametrize("name", ["mamba2", "lfm2", "qwen3_next", "deepseek_v41"])
def test_a_round_is_one_forward_and_owes_few_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where state can only be restored, rows are fed again at the head of the next block, never in a forward more."""
    model = build(name)
    truth = PROMPT + plain_tokens(model, PROMPT, 120)
    rounds: list[tuple[int, int]] = []
    forwards: list[int] = []
    verify, forward = Row.verify, quirks.forward_rows

    def watched(self: Row, text: list[int], draft: list[int], *, ahead: bool) -> Any:
        before, owed = len(forwards), len(self.pending)
        assert not ahead
        verified = verify(self, text, draft)
        rounds.append((owed, len(draft)))
        assert len(forwards) == before + 1 and forwards[-1] == owed + 1 + len(draft)
        assert not draft or owed <= MAX_PENDING
        return verified

    def counted(model: Any, tokens: mx.array, cache: Any) -> mx.array:
        forwards.append(tokens.shape[1])
        return forward(model, tokens, cache)

    monkeypatch.setattr(Row, "verify", watched)
    monkeypatch.setattr("daari_mlx.teacher.row.forward_rows", counted)
    statistics = Statistics()
    steps = generate_step(
        PROMPT,
        model,
        make_prompt_cache(model),
        options=Options(max_tokens=120),
        drafter=Oracle(truth, block=7),
        tap=tap_model(model)[0],
        statistics=statistics,
    )
    assert PROMPT + [s.token for s in steps] == truth
    assert statistics.forwards == len(rounds)
    assert max(owed for owed, _ in rounds) <= MAX_PENDING + 8
    assert any(owed > MAX_PENDING and drafted == 0 for owed, drafted in rounds)
    assert any(owed == 0 and drafted for owed, drafted in rounds[1:])


@pytest.mark.parametrize("filled", [0, 3, 15, 16, 17, 40])
@pytest.mark.parametrize("blocks", [(), (5,), (2, 1)])
def test_a_single_row_of_a_rotating_cache_is_taken_back(filled: int, blocks: tuple[int, ...]) -> None:
    from mlx_lm.models.cache import RotatingKVCache

    def feed(cache: RotatingKVCache, rows: int, seed: int) -> mx.array:
        keys = mx.random.normal((1, 2, rows, 4), key=mx.random.key(seed))
        return mx.array(cache.update_and_fetch(keys, keys + 1)[0])

    caches = [RotatingKVCache(max_size=16) for _ in range(2)]
    for cache in caches:
        for step in range(filled):
            feed(cache, 1, step)
        for rows in blocks:
            feed(cache, rows, 100 + rows)
    checkpoint = rewind.Checkpoint([caches[0]], rows=1)
    feed(caches[0], 1, 7)
    checkpoint.back_to(0)
    for step in range(20):
        ours, expected = (feed(cache, 1 + step % 3, 50 + step) for cache in caches)
        np.testing.assert_array_equal(np.array(ours), np.array(expected))


def test_a_chunked_cache_gives_back_only_what_it_holds() -> None:
    """Rows of an earlier chunk need keys that are gone; trimming them would not fail, only be wrong."""
    from mlx_lm.models.cache import ChunkedKVCache

    def filled(count: int) -> ChunkedKVCache:
        cache = ChunkedKVCache(16)
        for _ in range(count):
            cache.maybe_trim_front()
            cache.update_and_fetch(mx.zeros((1, 2, 1, 4)), mx.zeros((1, 2, 1, 4)))
        return cache

    cache = filled(40)
    assert (cache.offset, cache.start_position) == (40, 23)
    assert not rewind.drop_last([cache], 10) and cache.offset == 40
    assert rewind.drop_last([cache], 8) and cache.offset == 32
    early = filled(12)
    assert not rewind.drop_last([early], 13) and rewind.drop_last([early], 12) and early.offset == 0


def test_a_cache_without_trim_is_restored() -> None:
    """Caches of single models need not derive from mlx-lm's: what they hold is brought back through __dict__."""

    class Own:
        def __init__(self) -> None:
            self.offset, self.rows = 0, [mx.zeros((1, 1, 4))]
            self.counts = mx.array([0, 0])

    cache = Own()
    checkpoint = rewind.Checkpoint([cache], rows=3)
    cache.offset += 3
    cache.rows.append(mx.ones((1, 1, 4)))
    cache.counts += 3
    assert not checkpoint.exact and checkpoint.drop(1) == 3
    assert cache.offset == 0 and len(cache.rows) == 1 and cache.counts.tolist() == [0, 0]
