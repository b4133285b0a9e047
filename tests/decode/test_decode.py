"""`stream_generate` against mlx-lm's own: the same text, tokens and figures, however the answer was drafted."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
from graphs import Compiled, Scripted
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.tokenizer_utils import TokenizerWrapper
from zoo import Oracle, build

from daari_mlx import generate, stream_generate
from daari_mlx.decode import responses
from daari_mlx.decode.responses import GenerationResponse
from daari_mlx.draft.drafter import Context, Draft
from daari_mlx.ground.errors import DaariError
from daari_mlx.teacher.fingerprint import fingerprint
from daari_mlx.text.prompt import encode_prompt

FIELDS = ("text", "token", "finish_reason", "generation_tokens", "prompt_tokens")
PROMPT = [1, 40, 41, 42]
EOS = 2
LONG = 1  # of the unseen prompts, one with an answer of more than 20 tokens


def told(responses: Iterator[Any]) -> list[tuple[Any, ...]]:
    """What plain's responses and ours have in common."""
    return [tuple(getattr(r, name) for name in FIELDS) for r in responses]


@pytest.fixture(scope="module")
def unseen(compiled: Compiled) -> list[list[int]]:
    """Prompts that the graph was not compiled from."""
    from make_sms_corpus import make_rows

    template = compiled.teacher.tokenizer.apply_chat_template
    rows = make_rows(8, seed=77)
    return [template(row["messages"][1:-1], add_generation_prompt=True, return_dict=False) for row in rows]


@pytest.fixture(scope="module")
def plain(compiled: Compiled, unseen: list[list[int]]) -> list[list[tuple[Any, ...]]]:
    """What plain tells of each of those."""
    model, tokenizer = compiled.teacher.model, compiled.teacher.tokenizer
    return [told(mlx_lm.stream_generate(model, tokenizer, prompt, max_tokens=60)) for prompt in unseen]


class Splits:
    """Drafts the truth in blocks of given lengths, the token after each block wrong, so that rounds end there."""

    def __init__(self, truth: list[int], lengths: list[int]) -> None:
        self.truth, self.lengths = truth, lengths

    def draft(self, context: Context, limit: int, pending: int = 0) -> Draft:
        length = self.lengths.pop(0) if self.lengths else 1
        start = len(context.tokens)
        right = self.truth[start : start + min(length, limit)]
        wrong = [639] if len(right) == length < limit else []
        return Draft(right + wrong, [0.5] * (len(right) + len(wrong)))


class Named:
    """Drafts the truth, and says of every token another source: the place where it stands."""

    layer = None

    def __init__(self, truth: list[int]) -> None:
        self.truth = truth

    def draft(self, context: Context, limit: int, pending: int = 0) -> Draft:
        start = len(context.tokens)
        tokens = self.truth[start : start + min(5, limit)]
        return Draft(tokens, [0.5] * len(tokens), [str(start + k) for k in range(len(tokens))])


def test_each_token_says_the_source_that_drafted_it(compiled: Compiled, unseen: list[list[int]]) -> None:
    model, tokenizer = compiled.teacher.model, compiled.teacher.tokenizer
    truth = unseen[0] + [r.token for r in mlx_lm.stream_generate(model, tokenizer, unseen[0], max_tokens=40)]
    found = list(stream_generate(model, tokenizer, unseen[0], max_tokens=40, drafter=Named(truth)))
    drafted = [(str(len(unseen[0]) + k), r.source) for k, r in enumerate(found) if r.from_draft]
    assert len(drafted) > 10 and all(place == source for place, source in drafted)


# --- the same answers


@pytest.mark.parametrize("drafted", [0, 1, 3, 8, 32, "auto"])
def test_answers_equal_plain(
    compiled: Compiled, unseen: list[list[int]], plain: list[list[tuple[Any, ...]]], drafted: Any
) -> None:
    model, tokenizer = compiled.teacher.model, compiled.teacher.tokenizer
    accepted = forwards = tokens = 0
    for prompt, expected in list(zip(unseen, plain, strict=True))[: 4 if drafted in (0, 1, 3) else None]:
        ours = list(stream_generate(model, tokenizer, prompt, 60, graph=compiled.graph, num_draft_tokens=drafted))
        assert told(ours) == expected
        statistics = ours[-1].statistics
        assert statistics.tokens == len(expected) == sum(statistics.sources.values())
        assert sum(r.from_draft for r in ours) == statistics.accepted == sum(r.source is not None for r in ours)
        assert ours[-1].tokens_per_forward == statistics.tokens_per_forward
        accepted, forwards, tokens = accepted + statistics.accepted, forwards + statistics.forwards, tokens + len(ours)
    assert (accepted > 0) == (drafted not in (0, "auto")) or drafted == "auto"
    if drafted in (8, 32):
        assert tokens > 1.5 * forwards, "the graph has learnt something"


def test_a_graph_may_be_given_by_its_folder(compiled: Compiled, unseen: list[list[int]]) -> None:
    model, tokenizer = compiled.teacher.model, compiled.teacher.tokenizer
    plain = mlx_lm.generate(model, tokenizer, unseen[0], max_tokens=30)
    for graph in (compiled.path, str(compiled.path)):
        assert generate(model, tokenizer, unseen[0], graph=graph, num_draft_tokens=4, max_tokens=30) == plain


def test_a_bare_tokenizer_and_every_kind_of_prompt(compiled: Compiled) -> None:
    model, tokenizer = compiled.teacher.model, compiled.teacher.tokenizer
    text = "<|im_start|>user\nYour parcel is late 🙂<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer.encode(text)
    expected = told(mlx_lm.stream_generate(model, tokenizer, text, max_tokens=25))
    for prompt in (text, ids, mx.array(ids), tuple(ids), np.array(ids).tolist()):
        for given in (tokenizer, tokenizer._tokenizer):
            ours = stream_generate(model, given, prompt, 25, graph=compiled.graph, num_draft_tokens=4)
            assert told(ours) == expected


@pytest.mark.parametrize("name", ["gemma3_text", "mamba2", "lfm2"])
def test_every_kind_of_cache(name: str, tiny_teacher: tuple[Any, Any]) -> None:
    bare = copy.deepcopy(tiny_teacher[1]._tokenizer)
    bare.eos_token = None  # random weights say any token, the end token too
    model, tokenizer = build(name), TokenizerWrapper(bare, eos_token_ids={639})
    plain = list(mlx_lm.stream_generate(model, tokenizer, PROMPT, max_tokens=50))
    oracle = Oracle(PROMPT + [r.token for r in plain], block=4)
    ours = list(stream_generate(model, tokenizer, PROMPT, 50, drafter=oracle))
    assert told(ours) == told(plain) and ours[-1].statistics.accepted > 10


def test_verbose_prints_the_text_and_the_figures(compiled: Compiled, capsys: pytest.CaptureFixture[str]) -> None:
    prompt = compiled.sequences[0].tokens[: compiled.sequences[0].answer_start]
    model, tokenizer = compiled.teacher.model, compiled.teacher.tokenizer
    text = generate(model, tokenizer, prompt, verbose=True, max_tokens=5, graph=compiled.graph, num_draft_tokens=2)
    printed = capsys.readouterr().out
    assert printed.startswith(text) and "tokens per forward" in printed and "Generation: 5 tokens" in printed


# --- text, whatever a round cuts

TEXTS = {
    "emoji": "ok 👍🏽👩‍👩‍👧‍👦 🇮🇳🇯🇵 done 🙂",
    "CJK": "你好,世界。東京タワー 한국어 텍스트",
    "Kannada": "ನಮಸ್ಕಾರ, ಹೇಗಿದ್ದೀರಿ? ಸಂದೇಶ ಬಂತು",
    "Hebrew": "שלום עולם, מה שלומך? ‏(כן)",
    "spaces": "two  spaces \n\n\tand a tab  . , ! n't  ",
    "JSON": '{"label":"ham","evidence":"Ünï – “quoted”"}',
}


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_streamed_text_is_the_decoded_text_at_every_split(name: str, tiny_teacher: tuple[Any, Any]) -> None:
    tokenizer = tiny_teacher[1]
    answer = tokenizer.encode(TEXTS[name], add_special_tokens=False)
    truth = [*PROMPT, *answer, EOS]
    model = Scripted(truth)
    plain = told(mlx_lm.stream_generate(model, tokenizer, PROMPT, max_tokens=len(answer) + 5))
    assert "".join(t[0] for t in plain) == tokenizer.decode(answer) == TEXTS[name]
    splits = [[n] * len(answer) for n in range(8)] + [[cut, len(answer)] for cut in range(len(answer))]
    for lengths in splits:
        ours = list(stream_generate(model, tokenizer, PROMPT, len(answer) + 5, drafter=Splits(truth, lengths)))
        assert told(ours) == plain
        assert ours[-1].finish_reason == "stop" and [r.token for r in ours] == [*answer, EOS]


# --- where an answer ends


@pytest.mark.parametrize("ends", [{EOS}, {EOS, 77}, {77, 88, 99}])
@pytest.mark.parametrize("length", [1, 2, 5, 12])
def test_nothing_comes_after_an_end_token(tiny_teacher: tuple[Any, Any], ends: set[int], length: int) -> None:
    """The draft goes far beyond the first of several end tokens, and the teacher would agree with all of it."""
    answer = [50, 51, 52, 53, 54, 55, 77, 60, 61, 99, EOS, 88, 62, 63, 64, 65]
    truth, first = PROMPT + answer, min(answer.index(t) for t in ends)
    model, tokenizer = Scripted(truth), TokenizerWrapper(tiny_teacher[1]._tokenizer, eos_token_ids=ends)
    cache = make_prompt_cache(model)
    plain = told(mlx_lm.stream_generate(model, tokenizer, PROMPT, max_tokens=16))
    oracle = Oracle(truth, block=length, right=1.0)
    ours = list(stream_generate(model, tokenizer, PROMPT, 16, drafter=oracle, prompt_cache=cache))
    assert told(ours) == plain and [r.token for r in ours] == answer[: first + 1]
    statistics = ours[-1].statistics
    assert statistics.tokens == first + 1 == sum(statistics.sources.values())
    assert ours[-1].finish_reason == "stop"
    assert cache[0].offset == len(PROMPT) + first + 1, "the end token too, as in plain"


@pytest.mark.parametrize("maximum", range(1, 21))
def test_max_tokens_is_exact(compiled: Compiled, unseen: list[list[int]], maximum: int) -> None:
    model, tokenizer = compiled.teacher.model, compiled.teacher.tokenizer
    prompt = unseen[LONG]
    plain = told(mlx_lm.stream_generate(model, tokenizer, prompt, max_tokens=maximum))
    ours = told(stream_generate(model, tokenizer, prompt, maximum, graph=compiled.graph, num_draft_tokens=8))
    assert ours == plain and len(ours) == maximum and ours[-1][2] == "length"


def test_an_end_token_at_the_budget_is_a_stop(tiny_teacher: tuple[Any, Any]) -> None:
    truth = [*PROMPT, 50, 51, 52, EOS, 53]
    for drafter in (None, Oracle(truth, block=8, right=1.0)):
        ours = told(stream_generate(Scripted(truth), tiny_teacher[1], PROMPT, 4, drafter=drafter))
        assert ours == told(mlx_lm.stream_generate(Scripted(truth), tiny_teacher[1], PROMPT, max_tokens=4))
        assert ours[-1][2] == "stop" and len(ours) == 4


def test_no_limit_runs_to_the_end_token(tiny_teacher: tuple[Any, Any]) -> None:
    answer = np.random.default_rng(0).integers(30, 600, 300).tolist()
    truth = [*PROMPT, *answer, EOS]
    ours = list(
        stream_generate(Scripted(truth), tiny_teacher[1], PROMPT, -1, drafter=Oracle(truth, block=9, right=0.95))
    )
    assert [r.token for r in ours] == [*answer, EOS] and ours[-1].finish_reason == "stop"


# --- what is refused, and why nothing was drafted


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"prompt": []}, "prompt is empty"),
        ({"num_draft_tokens": -1}, "num_draft_tokens is -1"),
        ({"num_draft_tokens": "many"}, "num_draft_tokens is 'many'"),
        ({"num_draft_tokens": 1.5}, "num_draft_tokens is 1.5"),
        ({"drafter": object()}, "give one of them"),
        ({"graph": "no/such/folder"}, "no graph at no/such/folder"),
    ],
)
def test_what_cannot_be_is_refused(compiled: Compiled, options: dict[str, Any], words: str) -> None:
    given = {"prompt": PROMPT, "graph": compiled.graph, "num_draft_tokens": 2, **options}
    with pytest.raises(DaariError, match=words):
        list(stream_generate(compiled.teacher.model, compiled.teacher.tokenizer, **given))
    assert issubclass(DaariError, ValueError), "as mlx-lm raises for max_tokens"


def test_a_graph_of_another_teacher_is_refused(compiled: Compiled) -> None:
    with pytest.raises(DaariError, match="another teacher"):
        list(stream_generate(build("llama"), compiled.teacher.tokenizer, PROMPT, graph=compiled.graph))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"graph": None}, "no graph was given"),
        ({"num_draft_tokens": 0}, "num_draft_tokens is 0"),
        ({}, None),
    ],
)
def test_why_nothing_was_drafted_is_told(
    compiled: Compiled, unseen: list[list[int]], options: dict[str, Any], reason: str | None
) -> None:
    model, tokenizer = compiled.teacher.model, compiled.teacher.tokenizer
    given = {"graph": compiled.graph, "num_draft_tokens": 6, "max_tokens": 40, **options}
    ours = list(stream_generate(model, tokenizer, unseen[1], **given))
    plain = mlx_lm.stream_generate(model, tokenizer, unseen[1], max_tokens=40)
    assert told(ours) == told(plain)
    off = ours[-1].drafting_off
    assert off is None if reason is None else reason in str(off)
    assert (ours[-1].statistics.drafted == 0) == (reason is not None)


@pytest.mark.parametrize("size", [8, 20, 200])
def test_a_cache_of_limited_size_is_decoded_plainly_and_says_so(tiny_teacher: tuple[Any, Any], size: int) -> None:
    model, tokenizer = build("qwen3"), tiny_teacher[1]
    plain = list(mlx_lm.stream_generate(model, tokenizer, PROMPT, max_tokens=60, max_kv_size=size))
    oracle = Oracle(PROMPT + [r.token for r in plain], block=4)
    ours = list(stream_generate(model, tokenizer, PROMPT, 60, drafter=oracle, max_kv_size=size))
    assert told(ours) == told(plain) and len(ours) > 30
    assert "max_kv_size" in str(ours[-1].drafting_off) and ours[-1].statistics.drafted == 0


def test_text_prompts_are_encoded_as_plain_does(tiny_teacher: tuple[Any, Any]) -> None:
    tokenizer = tiny_teacher[1]
    assert encode_prompt(tokenizer, tokenizer.bos_token + "x").count(tokenizer.bos_token_id) == 1
    assert encode_prompt(tokenizer, "x") == tokenizer.encode("x")


def test_a_response_has_all_that_plains_has(compiled: Compiled) -> None:
    last = list(stream_generate(compiled.teacher.model, compiled.teacher.tokenizer, PROMPT, 3))[-1]
    assert isinstance(last, mlx_lm.generate.__globals__["GenerationResponse"]) and isinstance(last, GenerationResponse)
    assert last.prompt_tps > 0 and last.generation_tps > 0 and last.peak_memory > 0
    assert last.logprobs.shape == (640,) and fingerprint(compiled.teacher.model, compiled.teacher.tokenizer)


@pytest.mark.parametrize("prompt", [PROMPT, PROMPT[:1]])
@pytest.mark.parametrize("lengths", [None, [30], [4, 30], [1] * 30])
def test_tokens_per_second_count_the_time_of_every_forward(
    compiled: Compiled, monkeypatch: pytest.MonkeyPatch, prompt: list[int], lengths: list[int] | None
) -> None:
    """Also that of the first: it may give the whole answer at once."""
    now = 0.0

    class Slow(Scripted):
        def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
            nonlocal now
            now += 10.0
            return super().__call__(inputs, cache)

    monkeypatch.setattr(responses.time, "perf_counter", lambda: now)
    truth = [*prompt, *range(50, 62), EOS]
    drafter = None if lengths is None else Splits(truth, list(lengths))
    *_, last = stream_generate(Slow(truth), compiled.teacher.tokenizer, prompt, 20, drafter=drafter)
    assert last.generation_tokens == 13
    ahead = lengths is None  # plain has started one more forward while the last token is told
    assert last.generation_tps == pytest.approx(13 / (10 * (last.statistics.forwards + ahead)))


def test_special_and_thinking_tokens_are_told_as_plain_tells_them(compiled: Compiled) -> None:
    """At every place in a draft: the text, the token and the end are plain's."""
    tokenizer = compiled.teacher.tokenizer
    ends = set(tokenizer.eos_token_ids)
    special = [t for t in {*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()} if t not in ends]
    assert special, "the tiny teacher's tokenizer has some"
    answer = [40, *special, 41, 42, *reversed(special), 43]
    truth = PROMPT + answer
    model = Scripted(truth)
    plain = told(mlx_lm.stream_generate(model, tokenizer, PROMPT, max_tokens=len(answer)))
    for lengths in ([1] * 30, [3, 2] * 9, [len(answer)]):
        drafter = Splits(truth, list(lengths))
        assert told(stream_generate(model, tokenizer, PROMPT, len(answer), drafter=drafter)) == plain
