"""The pair: the verifier's own words whatever the drafter says, and one accept rule for both of them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from zoo import CONFIGS, VOCABULARY, build, plain_tokens

import daari_mlx.teacher.judge
from daari_mlx.decode.speculative import SpeculativeModel
from daari_mlx.ground.accept import accept_block
from daari_mlx.ground.errors import DaariError
from daari_mlx.teacher.load import Teacher


class Words:
    """A tokenizer of numbers; enough of mlx-lm's wrapper for ids as prompts."""

    bos_token = None
    name_or_path = "numbers"

    def __init__(self, ends: tuple[int, ...] = (), size: int = VOCABULARY) -> None:
        self.eos_token_ids, self.size = set(ends), size

    def get_vocab(self) -> dict[str, int]:
        return {str(number): number for number in range(self.size)}


def pair(drafter: Any, verifier: Any, **options: Any) -> SpeculativeModel:
    words = Words()
    return SpeculativeModel(Teacher(drafter, words, "small"), Teacher(verifier, words, "large"), **options)


# --- pure: the rule on synthetic logits


@given(st.integers(0, 2**32 - 1), st.integers(0, 8))
def test_a_block_is_its_leading_matches_and_the_verifiers_own_pick(seed: int, length: int) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(length + 1, 4))
    verdicts = np.array(daari_mlx.teacher.judge.greedy(mx.array(logits))[0]).tolist()
    assert verdicts == logits.argmax(axis=-1).tolist()
    draft = rng.integers(0, 4, length).tolist()
    expected = []
    for drafted, own in zip([*draft, None], verdicts, strict=True):
        expected.append(own)
        if drafted != own:
            break
    assert accept_block(draft, verdicts) == expected
    assert SpeculativeModel.accept_block is accept_block, "one rule, in one place"


# --- drafting and reviewing by hand give what the loop gives


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_draft_review_accept_is_the_verifiers_greedy(name: str) -> None:
    """With an unlike drafter, with a like one, by hand: blocks of any verdicts add up to the verifier's own answer."""
    verifier = build(name)
    for drafter in (build(name, seed=1), verifier):
        both = pair(drafter, verifier, block_size=4)
        text = [1, 5, 9]
        truth = text + plain_tokens(verifier, text, 40)
        while len(text) < 30:
            draft = both.draft(text)
            verdicts = both.review(text, draft)
            assert len(draft) == 4 and len(verdicts) == 5
            text = text + both.accept_block(draft, verdicts)
            assert text == truth[: len(text)]
            if drafter is verifier:
                assert verdicts[:4] == draft


# --- sessions


def test_a_pair_of_the_same_model_accepts_all_and_says_the_same(tiny_teacher_path: Path, tiny_teacher: Any) -> None:
    same = SpeculativeModel(tiny_teacher_path, tiny_teacher_path)
    chat = [{"role": "user", "content": "Your visit with the eye clinic was moved."}]
    ids = same.encode(chat)
    answer = same.generate(chat, max_tokens=54)
    assert answer.tokens == cut(plain_tokens(tiny_teacher[0], ids, 54), same.tokenizer.eos_token_ids)
    assert answer.statistics.acceptance_rate == 1.0
    assert answer.text == same.tokenizer.decode([t for t in answer.tokens if t not in same.tokenizer.eos_token_ids])
    assert answer.finish_reason == ("length" if len(answer.tokens) == 54 else "stop")


def cut(tokens: list[int], ends: set[int]) -> list[int]:
    end = next((place + 1 for place, token in enumerate(tokens) if token in ends), len(tokens))
    return tokens[:end]


def test_nine_tokens_a_pass_where_the_answer_is_long_enough(tiny_teacher: Any) -> None:
    model, tokenizer = tiny_teacher
    same = SpeculativeModel(Teacher(model, tokenizer, "a"), Teacher(model, tokenizer, "b"))
    ids = next(
        p
        for p in ([k, k + 7, k + 11] for k in range(300, 600))
        if not tokenizer.eos_token_ids & set(plain_tokens(model, p, 90))
    )
    answer = same.generate(ids, max_tokens=90)
    assert answer.statistics.acceptance_rate == 1.0
    assert answer.statistics.tokens_per_forward == 9.0


@pytest.mark.parametrize("kept", [True, False])
def test_a_poor_drafter_changes_no_word(tiny_teacher: Any, kept: bool) -> None:
    """Noise in the drafter's weights; also from answer to answer, as the second one meets a used cache."""
    model, tokenizer = tiny_teacher
    poor = noisy(model, 0.02 if kept else 0.5)
    both = SpeculativeModel(Teacher(poor, tokenizer, "poor"), Teacher(model, tokenizer, "good"), block_size=5)
    for prompt in ("Lunch at noon?", "Lunch at noon? Bring", "Win a prize now"):
        ids = both.encode(prompt)
        answer = both.generate(prompt, max_tokens=30)
        assert answer.tokens == cut(plain_tokens(model, ids, 30), tokenizer.eos_token_ids)
        assert 0 <= answer.statistics.acceptance_rate < 1
        assert answer.statistics.drafted > 0


def noisy(model: Any, size: float) -> Any:
    import mlx.nn as nn
    from mlx.utils import tree_map

    twin: nn.Module = type(model)(model.args)
    mx.random.seed(0)
    twin.update(tree_map(lambda w: w + size * w.abs().mean() * mx.random.normal(w.shape), model.parameters()))
    twin.eval()
    return twin


def test_encoding_is_one_entry_for_text_chats_and_ids(tiny_teacher: Any) -> None:
    model, tokenizer = tiny_teacher
    both = SpeculativeModel(Teacher(model, tokenizer, "a"), Teacher(model, tokenizer, "b"))
    assert both.encode([3, 4]) == [3, 4]
    assert both.encode("Lunch?") == tokenizer.encode("Lunch?")
    messages = [{"role": "user", "content": "Lunch?"}]
    assert both.encode(messages) == tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False
    )
    with pytest.raises(DaariError, match="empty"):
        both.encode("")


def test_what_does_not_fit_together_is_refused_at_load(
    tiny_teacher: Any, tiny_teacher_path: Path, tmp_path: Path
) -> None:
    model, tokenizer = tiny_teacher
    good = Teacher(model, tokenizer, "good")
    with pytest.raises(DaariError, match="numbers"):
        SpeculativeModel(Teacher(model, Words(), "other"), good)
    with pytest.raises(DaariError, match="block_size is 0"):
        SpeculativeModel(good, good, block_size=0)
    other = tmp_path / "other"
    shutil.copytree(tiny_teacher_path, other)
    text = (other / "tokenizer.json").read_text(encoding="utf-8")
    (other / "tokenizer.json").write_text(swapped(text), encoding="utf-8")
    with pytest.raises(DaariError, match=r"other has the tokenizer .*other.*tiny_teacher"):
        SpeculativeModel(other, tiny_teacher_path)


def swapped(text: str) -> str:
    """A tokenizer's file with the ids of two words changed over."""
    import json

    found = json.loads(text)
    vocabulary = found["model"]["vocab"]
    first, second = [word for word, number in vocabulary.items() if number > 400][:2]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    return json.dumps(found)
