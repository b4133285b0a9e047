"""What mlx_lm.lora and chat templates take, we take; what is no file of rows is told once."""

from __future__ import annotations

import gzip
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.tuner.datasets import ChatDataset, CompletionsDataset, TextDataset, create_dataset
from test_data import CALL, CHATML, GOOD, build, calling, chat, text_of, write
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from daari_mlx.ground.errors import DaariError
from daari_mlx.text.data import read_prompts, read_sequences
from daari_mlx.text.prompt import encode_prompt, token_ids
from daari_mlx.text.rows import Features

READS = [read_sequences, read_prompts]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "rows.jsonl"


# --- tool calls and tools

SAID = {"name": "find_home", "arguments": {"area": "Kyiv", "beds": 2}}
CALLS = {
    "nested": CALL,
    "flat": SAID,
    "flat with an id": {"id": "c1", "type": "function", **SAID},
    "flat, its arguments as text": {**SAID, "arguments": json.dumps(SAID["arguments"])},
}
FLAT = CHATML.replace("call.function | tojson", "{'name': call.name, 'arguments': call.arguments} | tojson")
EITHER = CHATML.replace("call.function | tojson", "(call.function or call) | tojson")
SILENT = CHATML.replace("{{ call.function | tojson }}", "{% if call.function %}{{ call.function | tojson }}{% endif %}")


@pytest.mark.parametrize("template", [CHATML, FLAT, EITHER, SILENT], ids=["nested", "flat", "either", "silent"])
@pytest.mark.parametrize("name", CALLS)
def test_a_call_in_the_last_turn_is_taken_in_every_form(file: Path, name: str, template: str) -> None:
    tokenizer = build(template)
    (sequence,) = read_sequences(write(file, calling([CALLS[name]])), tokenizer).items
    answer = text_of(tokenizer, sequence)[1]
    assert answer.startswith("<call>{") and '"name": "find_home"' in answer and '"area": "Kyiv"' in answer
    (prompt,) = read_prompts(file, tokenizer).items
    assert prompt.tokens + (prompt.reference or []) == sequence.tokens


def test_a_flat_call_agrees_with_mlx_lm_lora(file: Path) -> None:
    tokenizer = build(FLAT)
    row = calling([SAID])
    tokens, offset = ChatDataset([row], tokenizer, mask_prompt=True).process(row)
    (sequence,) = read_sequences(write(file, row), tokenizer).items
    assert sequence.answer_start == offset and sequence.tokens == tokens[: len(sequence.tokens)]


@pytest.mark.parametrize("empty", [None, [], {}, "", "[]", " "])
def test_tools_may_be_json_text_or_none_at_all(file: Path, empty: Any) -> None:
    tokenizer = build()
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    rows = [chat("s", "q", "a", tools=t) for t in (tools, json.dumps(tools), json.dumps(tools, indent=1))]
    for read in READS:
        found = [item.tokens for item in read(write(file, *rows), tokenizer).items]
        assert found[0] == found[1] == found[2]
        without, given = read(write(file, chat("s", "q", "a"), chat("s", "q", "a", tools=empty)), tokenizer).items
        assert without.tokens == given.tokens != found[0]


# --- tokenizers


def ending(*, chat_template: str | None = None, bos: bool = False) -> Any:
    """A tokenizer that appends its end token, as some of Llama's and T5's do."""
    made = build(chat_template)
    single = ("<s> " if bos else "") + "$A <|im_end|>"
    known = [("<|im_end|>", made.eos_token_id), ("<s>", made.bos_token_id)]
    made._tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=single, special_tokens=known
    )
    assert made.encode("a")[-1] == made.eos_token_id
    return made


@pytest.mark.parametrize("bos", [False, True])
def test_a_tokenizer_that_appends_its_end_token(file: Path, bos: bool) -> None:
    """A prompt is what mlx-lm's generate feeds, and the answer ends once."""
    tokenizer = ending(bos=bos)
    rows = [{"prompt": "2 + 2 =", "completion": " 4"}, {"prompt": "a<|im_end|>", "completion": "b"}, {"text": "ham"}]
    completion, ended, text = read_sequences(write(file, *rows), tokenizer).items
    assert completion.prompt == encode_prompt(tokenizer, "2 + 2 =") == tokenizer.encode("2 + 2 =")
    assert text_of(tokenizer, completion)[1] == " 4<|im_end|>"
    assert text_of(tokenizer, ended)[1] == "b<|im_end|>"
    assert text.tokens == TextDataset([rows[2]], tokenizer).process(rows[2])[0]
    assert text.tokens.count(tokenizer.eos_token_id) == 1
    (prompt, *_) = read_prompts(write(file, *rows[:2]), tokenizer).items
    assert prompt.tokens + (prompt.reference or []) == completion.tokens


def test_chats_know_nothing_of_an_appended_end_token(file: Path) -> None:
    tokenizer = ending(chat_template=CHATML)
    tokens, offset = ChatDataset([GOOD], tokenizer, mask_prompt=True).process(GOOD)
    (sequence,) = read_sequences(write(file, GOOD), tokenizer).items
    assert sequence.answer_start == offset and sequence.tokens == tokens[: len(sequence.tokens)]


def sentencepiece(template: str | None = None) -> Any:
    """Words begin with a space, which a text is given where it has none, and the decoder takes it away again."""
    core = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    core.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    signs = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=signs, show_progress=False)
    core.train_from_iterator(["Answer: spam", "Answer: ham", "Question: is it spam or ham?"] * 5, trainer)
    core.pre_tokenizer = None
    fast = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="</s>",
        bos_token="<s>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = template
    return TokenizerWrapper(fast)


BORDERS = [
    ("Answer: ", "spam"),
    ("Answer:", " spam"),
    ("Answer: sp", "am"),
    ("Question:\n", "ham"),
    ("Question", "\nham"),
]


@pytest.mark.parametrize(("question", "answer"), BORDERS)
@pytest.mark.parametrize("templated", [False, True])
def test_a_word_across_the_border_is_split_in_the_tokenizers_own_pieces(
    file: Path, question: str, answer: str, templated: bool
) -> None:
    """The prompt is as in use, so that the teacher is shown where it goes on from."""
    tokenizer = sentencepiece("{% for m in messages %}{{ m.content }}{% endfor %}" if templated else None)
    row = (
        {"messages": chat("", question, answer)["messages"]}
        if templated
        else {"prompt": question, "completion": answer}
    )
    (sequence,) = read_sequences(write(file, row), tokenizer).items
    assert sequence.prompt == tokenizer.encode(question)
    assert tokenizer.decode(sequence.tokens).removesuffix("</s>") == question + answer
    (prompt,) = read_prompts(file, tokenizer).items
    assert prompt.tokens + (prompt.reference or []) == sequence.tokens
    if (question, answer) == BORDERS[0]:
        said = tokenizer.convert_ids_to_tokens(sequence.tokens[sequence.answer_start :])
        assert said[0] == "spam" and "▁spam" in tokenizer.convert_ids_to_tokens(tokenizer.encode(question + answer))


def test_where_no_split_gives_the_text_back_the_row_is_tokenised_whole(file: Path) -> None:
    """As mlx_lm.lora does it: here the tokenizer composes signs, so that one of them spans the border."""
    tokenizer = build(None)
    tokenizer._tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    row = {"prompt": "caf" + "e", "completion": "\u0301 noir"}
    (sequence,) = read_sequences(write(file, row), tokenizer).items
    assert sequence.tokens == [*tokenizer.encode("café noir"), tokenizer.eos_token_id]
    assert text_of(tokenizer, sequence)[0] == "caf", "what prompt and row have in common"
    (prompt,) = read_prompts(file, tokenizer).items
    assert prompt.tokens == tokenizer.encode("cafe") and prompt.reference is None


# --- fields

QUESTIONS = {"instruction": "Win a prize", "output": "spam", "prompt": "not this", "text": "nor this"}


def test_fields_of_other_names_are_taken_as_mlx_lm_lora_takes_them(file: Path) -> None:
    tokenizer = build()
    config = SimpleNamespace(
        mask_prompt=True,
        prompt_feature="instruction",
        completion_feature="output",
        chat_feature="turns",
        text_feature="t",
    )
    features = Features("instruction", "output", "turns", "t")
    kinds = {CompletionsDataset: QUESTIONS, ChatDataset: {"turns": GOOD["messages"]}, TextDataset: {"t": "ham"}}
    for kind, row in kinds.items():
        config.mask_prompt = kind is not TextDataset
        made = create_dataset([row], tokenizer, config)
        assert isinstance(made, kind)
        tokens, offset = made.process(row)
        (sequence,) = read_sequences(write(file, row), tokenizer, features=features).items
        assert sequence.answer_start == offset and sequence.tokens == tokens[: len(sequence.tokens)]
    (prompt,) = read_prompts(write(file, QUESTIONS), tokenizer, features=features).items
    assert "Win a prize" in tokenizer.decode(prompt.tokens) and prompt.reference


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"instruction": 3, "output": "a"}, "'instruction' is 3, not a string"),
        ({"instruction": "a", "output": 3}, "'output' is 3, not a string"),
        (
            {"prompt": "a", "completion": "b"},
            "unknown keys: 'prompt', 'completion'; a row needs 'turns', 'instruction'",
        ),
    ],
)
def test_errors_name_the_fields_that_were_asked_for(file: Path, row: Any, expected: str) -> None:
    with pytest.raises(DaariError, match=expected):
        read_sequences(write(file, row), build(), features=Features("instruction", "output", "turns", "t"))


def test_a_text_beside_a_label_says_which_is_learnt(file: Path) -> None:
    tokenizer = build()
    rows = [{"text": "Win a prize", "label": "spam"}, {"text": "Lunch?", "label": "ham", "id": 3}, {"text": "bare"}]
    found = read_sequences(write(file, *rows), tokenizer)
    (note,) = found.notes()
    assert "text rows are learnt as a whole" in note and "'label' (in 2 rows), 'id' (in 1 rows)" in note
    assert "--prompt-feature and --completion-feature" in note
    assert [tokenizer.decode(s.tokens) for s in found.items] == [r["text"] + "<|im_end|>" for r in rows]
    assert read_sequences(write(file, {"text": "bare"}), tokenizer).notes() == []
    with pytest.raises(DaariError, match=r"name the field that is the prompt with --prompt-feature"):
        read_prompts(write(file, *rows), tokenizer)
    features = Features(prompt="text", completion="label")
    labelled = read_sequences(write(file, *rows[:2]), tokenizer, features=features)
    assert text_of(tokenizer, labelled.items[0])[1] == "spam<|im_end|>" and labelled.notes() == []


def test_skipped_rows_and_unread_fields_are_both_told(file: Path) -> None:
    found = read_sequences(write(file, b"x", {"text": "a", "label": 1}), build(), skip_bad_rows=True)
    assert [note.split()[0] for note in found.notes()] == ["skipped", "text"]


# --- files that hold no rows

ROWS = [GOOD, {"text": "ham"}]
WHOLE = {
    "an array over several lines": (json.dumps(ROWS, indent=2), r"is one JSON array.*jq -c '\.\[\]'"),
    "an array with a row a line": ("[\n" + ",\n".join(map(json.dumps, ROWS)) + "\n]\n", "is one JSON array"),
    "an array that begins with a row": ("[" + ",\n".join(map(json.dumps, ROWS)) + "]\n", "is one JSON array"),
    "an array on one line": (json.dumps(ROWS), "is one JSON array"),
    "an empty array": ("[]\n", "is one JSON array"),
    "objects over several lines": (
        "\n".join(json.dumps(r, indent=2) for r in ROWS),
        r"objects over several lines.*jq -c \.",
    ),
}


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("read", READS)
def test_a_file_that_is_one_json_value_is_told_once(
    file: Path, name: str, skip: bool, read: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    text, expected = WHOLE[name]
    for start in ("", "\ufeff", "\n \n"):
        file.write_text(start + text, encoding="utf-8")
        with pytest.raises(DaariError, match=expected) as caught:
            read(file, build(), skip_bad_rows=skip)
        assert "bad row" not in str(caught.value) and "\n" not in str(caught.value)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text.encode())))
    with pytest.raises(DaariError, match="stdin is"):
        read("-", build(), skip_bad_rows=skip)


def test_a_packed_file_is_told_once(file: Path) -> None:
    file.write_bytes(gzip.compress(json.dumps(GOOD).encode()))
    with pytest.raises(DaariError, match="is a gzip file: give it unpacked"):
        read_sequences(file, build(), skip_bad_rows=True)


def test_an_array_among_rows_is_a_bad_row(file: Path) -> None:
    assert len(read_sequences(write(file, [1], GOOD), build(), skip_bad_rows=True).items) == 1


# --- prompts as ids

IDS = [5, 7, 600]
HOLDERS: dict[str, Any] = {
    "a list": IDS,
    "a tuple": tuple(IDS),
    "a NumPy array": np.array(IDS),
    "a NumPy array of 32 bits": np.array(IDS, np.int32),
    "an unsigned NumPy array": np.array(IDS, np.uint16),
    "a list of NumPy's numbers": list(np.array(IDS)),
    "a list of MLX's numbers": [mx.array(i) for i in IDS],
    "an MLX array": mx.array(IDS),
}


@pytest.mark.parametrize("name", HOLDERS)
def test_token_ids_are_taken_from_whatever_holds_them(name: str) -> None:
    found = encode_prompt(build(), HOLDERS[name])
    assert found == IDS and {type(token) for token in found} == {int}


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        (np.array([IDS]), r"Item 0 of the prompt is a list \(\[5, 7, 600\]\), no token id"),
        (np.array([0.5, 1.0]), r"Item 0 of the prompt is a float \(0\.5\), no token id"),
        (np.array([True]), "Item 0 of the prompt is a bool"),
        (np.array(3), "The prompt is a ndarray of shape"),
        ([5, "a"], r"Item 1 of the prompt is a str \(a\)"),
        ([5, -1], "Item 1 of the prompt is -1: token ids begin at 0"),
        (mx.array([IDS]), "Item 0 of the prompt is a list"),
        ({"input_ids": IDS}, r"The prompt is a dict\. Give .*\['input_ids'\]"),
        (None, "The prompt is None"),
        (7, r"The prompt is a int \(7\)"),
        (b"abc", "The prompt is a bytes"),
        ([], "The prompt is empty"),
        (np.zeros(0, int), "The prompt is empty"),
        ("", "The prompt is empty"),
    ],
)
def test_what_is_no_prompt_is_told(prompt: Any, expected: str) -> None:
    with pytest.raises(DaariError, match=expected):
        encode_prompt(build(), prompt)


def test_ids_may_be_none_where_they_come_before(tmp_path: Path) -> None:
    assert token_ids(np.zeros(0, int)) == []


def test_every_public_function_takes_arrays(compiled: Any) -> None:
    from daari_mlx import SpecEngine, generate, stream_generate
    from daari_mlx.decode.speculative import SpeculativeModel

    teacher = compiled.teacher
    ids = teacher.tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], add_generation_prompt=True)
    expected = generate(teacher.model, teacher.tokenizer, ids, max_tokens=4)
    engine = SpecEngine(teacher.model, compiled.graph, tokenizer=teacher.tokenizer, num_draft_tokens=2)
    pair = SpeculativeModel(teacher, teacher, block_size=2)
    for made in (np.array(ids), np.array(ids, np.uint32), mx.array(ids), tuple(ids)):
        assert generate(teacher.model, teacher.tokenizer, made, max_tokens=4) == expected
        drafted = stream_generate(
            teacher.model, teacher.tokenizer, made, 4, graph=compiled.graph, num_draft_tokens=2, earlier=made[:0]
        )
        assert "".join(r.text for r in drafted) == expected
        assert "".join(r.text for r in engine.stream_tokens(made, max_tokens=4)) == expected
        assert pair.encode(made) == ids and pair.generate(made, 4).text == expected
        assert pair.draft(made) == pair.draft(ids) and pair.review(made, made[:2]) == pair.review(ids, ids[:2])
    batch = np.array([ids, ids])
    from daari_mlx.batch.generate import batch_generate

    assert batch_generate(teacher.model, teacher.tokenizer, batch, max_tokens=4).texts == [expected] * 2
