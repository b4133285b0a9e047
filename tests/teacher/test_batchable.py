"""Every architecture in a batch of three rows of unlike lengths: plain's very tokens, together or one at a time."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
import zoo
from architectures import REFUSED, VOCABULARY, WORKING, build
from mlx_lm.models.cache import KVCache, make_prompt_cache
from zoo import plain_tokens

from daari_mlx.teacher import batchable, quirks
from daari_mlx.teacher.batchable import why_alone
from daari_mlx.teacher.judge import greedy
from daari_mlx.teacher.ragged import RaggedCache
from daari_mlx.teacher.rewind import Cache
from daari_mlx.teacher.row import MAX_PENDING
from daari_mlx.teacher.tap import tap_model

PROMPTS = [[3, 17, 42], [5, 64, 7, 11, 70, 23, 38, 9, 51, 2, 44, 8], [1 + 7 * k % 101 for k in range(40)]]
LENGTH, AFTER = 28, 3  # past the windows of 16, and past the ring of a window and its spare places

PADDING, BESIDE = "padding beside a longer row changes", "beside a longer row a row's logits differ"
# what goes one row at a time, and why
ONE_AT_A_TIME = {
    "afm7": BESIDE,  # layers that reuse keys place all rows by the longest
    "baichuan_m1": PADDING,
    "bailing_moe_linear": PADDING,
    "deepseek_v41": "LayerCache has no form for several rows",
    "gpt_bigcode": "fails: ValueError",  # positions are made of one number
    "jamba": PADDING,
    "llama4": "ChunkedKVCache has no form for several rows",
    "longcat_flash_ngram": PADDING,
    "mamba": PADDING,
    "minimax_m3_vl": "counts the blocks nearest to a token",
    "nemotron_h": BESIDE,  # its recurrence is not told how many columns are tokens
    "olmo_hybrid": PADDING,
    "recurrent_gemma": PADDING,
    "rwkv7": PADDING,
}


def decode(
    model: nn.Module, rows: RaggedCache, truths: list[list[int]], seed: int, limit: int | None = None
) -> tuple[list[list[int]], list[Cache], int]:
    """Decode all prompts with drafts of 0 to 6 tokens, each right with a chance of 0.7.

    Returns:
        For each prompt its tokens and the cache that its row left with; and how many rounds there were.
    """
    random, rounds = np.random.default_rng(seed), 0
    emitted: list[list[int]] = [[] for _ in PROMPTS]
    caches: list[Cache] = [[] for _ in PROMPTS]
    here = []
    for who, prompt in enumerate(PROMPTS):
        cache = make_prompt_cache(model)
        model(mx.array([prompt[:-1]]), cache=cache)
        rows.join(cache, len(prompt) - 1)
        here.append(who)
    while here:
        blocks = []
        for row, who in enumerate(here):
            sure = truths[who][len(emitted[who]) :][: int(random.integers(0, 7))]
            draft = [t if random.random() < 0.7 else (t + 1) % VOCABULARY for t in sure]
            if len(rows.owed[row]) > MAX_PENDING or (limit and rows.tokens[row] + 1 + len(draft) > limit):
                draft = []
            blocks.append([(PROMPTS[who] + emitted[who])[-1], *draft])
        own = greedy(rows.forward(blocks)[0])[0].tolist()
        kept = []
        for who, block, said in zip(here, blocks, own, strict=True):
            good = 0
            while good < len(block) - 1 and block[good + 1] == said[good]:
                good += 1
            new = said[: good + 1][: LENGTH - len(emitted[who])]
            emitted[who] += new
            kept.append(len(new))
        rows.settle(kept)
        rounds += 1
        for row in reversed(range(len(here))):
            if len(emitted[here[row]]) == LENGTH:
                caches[here[row]] = rows.leave(row)
                here[row] = here[-1]
                here.pop()
    return emitted, caches, rounds


def truths_of(model: nn.Module) -> list[list[int]]:
    return [plain_tokens(model, prompt, LENGTH + AFTER) for prompt in PROMPTS]


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.xdist_group(n)) for n in WORKING])
def test_three_unlike_rows_have_plains_tokens_or_a_reason(name: str) -> None:
    model = build(name)
    reason = why_alone(model)
    if name in ONE_AT_A_TIME:
        assert reason is not None and reason.startswith(f"{name}: ") and ONE_AT_A_TIME[name] in reason
        return
    assert reason is None
    truths, until = [plain_tokens(model, prompt, LENGTH + AFTER) for prompt in PROMPTS], quirks.blocks_until(model)
    emitted, caches, rounds = decode(model, RaggedCache(model, tap=tap_model(model)[0]), truths, 0, until)
    assert emitted == [truth[:LENGTH] for truth in truths]
    assert rounds < LENGTH or until is not None
    for tokens, cache, truth in zip(emitted, caches, truths, strict=True):  # and mlx-lm goes on from what a row leaves
        assert plain_tokens(model, tokens[-1:], AFTER, prompt_cache=cache) == truth[LENGTH:]


def test_every_exception_is_one() -> None:
    assert set(WORKING) > set(ONE_AT_A_TIME)


def test_sparse_blocks_that_are_counted_from_the_longest_rows_end_do_differ() -> None:
    """If mlx-lm mends it, this fails and the model can be taken off the list of names."""
    model = build("minimax_m3_vl")
    truths = [plain_tokens(model, prompt, LENGTH + AFTER) for prompt in PROMPTS]
    assert decode(model, RaggedCache(model), truths, 0)[0] != [truth[:LENGTH] for truth in truths]


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_models_that_cannot_be_drafted_for_go_one_at_a_time(name: str) -> None:
    model = build(name)
    assert why_alone(model) == quirks.refuses_blocks(model) is not None


@pytest.mark.parametrize("name", ["internlm2", "internlm3"])
def test_a_rotary_embedding_that_knows_one_length_only_goes_one_at_a_time(name: str) -> None:
    scaling = {"type": "dynamic", "rope_type": "dynamic", "factor": 2.0}
    reason = why_alone(build(name, rope_scaling=scaling, max_position_embeddings=64))
    assert reason is not None and "fails: ValueError" in reason


def test_the_trial_is_made_once_and_again_when_the_model_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tried = zoo.build("llama"), []
    monkeypatch.setattr(batchable, "_tried", lambda m: tried.append(m))
    assert why_alone(model) is None and why_alone(model) is None
    assert tried == [model]
    nn.quantize(model, group_size=32)
    assert why_alone(model) is None and len(tried) == 2


def test_caches_without_a_form_for_several_rows_are_told() -> None:
    class Odd(KVCache):
        pass

    model = zoo.build("llama")
    object.__setattr__(model, "make_cache", lambda: [Odd() for _ in model.layers])
    assert why_alone(model) == "llama: Odd has no form for several rows"


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
@pytest.mark.parametrize("name", ["llama", "gemma3_text", "lfm2"])
def test_sixteen_bits_are_no_reason(name: str, dtype: mx.Dtype) -> None:
    assert why_alone(zoo.build(name, dtype=dtype)) is None


@pytest.mark.parametrize("name", ["rwkv7", "baichuan_m1", "nemotron_h"])
def test_in_sixteen_bits_a_model_that_reads_padding_is_found_out(name: str) -> None:
    reason = why_alone(build(name, dtype=mx.bfloat16))
    assert reason is not None and ONE_AT_A_TIME[name] in reason
