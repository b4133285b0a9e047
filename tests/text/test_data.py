"""Rows from files -> token ids: every kind of row, every way in which one can be bad."""

from __future__ import annotations

import io
import json
import os
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlx_lm.server import process_message_content
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.tuner.datasets import ChatDataset, CompletionsDataset, TextDataset
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from daari_mlx.ground.errors import DaariError
from daari_mlx.text import lines
from daari_mlx.text.data import Prompt, Rows, Sequence, read_prompts, read_sequences
from daari_mlx.text.identity import prompt_hash, tokens_hash

TRAINED_ON = ["Classify the message: spam or ham?", '{"label":"ham","risk":2}', "user\n\nassistant\n system"]
CHATML = (
    "{% if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}"
    "{% if m.role not in ['system', 'user', 'assistant', 'tool'] %}"
    "{{ raise_exception('unknown role ' + m.role) }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<call>{{ call.function | tojson }}</call>{% endfor %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NO_CALLS = CHATML.replace("<call>{{ call.function | tojson }}</call>", "")
# As thinking models do it: the prompt opens a thought, and only the last answer shows one.
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n"
    "{% if brief %}\n\n</think>\n\n{% endif %}{% endif %}"
)
DROPS_THOUGHT = THINKING.replace("<think>\n\n</think>\n\n{% endif %}", "{% endif %}")


def build(template: str | None = CHATML, *, metaspace: bool = False, eos: str | None = "<|im_end|>") -> Any:
    core = Tokenizer(models.BPE(byte_fallback=metaspace, unk_token="<unk>" if metaspace else None))
    if metaspace:
        core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
        core.decoder = decoders.Sequence([decoders.Metaspace(prepend_scheme="never")])
    else:
        spaces = pre_tokenizers.Split(Regex(r"\s+"), "isolated")  # so that line ends merge, as Qwen's do
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        core.pre_tokenizer = pre_tokenizers.Sequence([spaces, byte_level])
        core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|im_start|>", "<|im_end|>", "<s>", "<unk>"],
        initial_alphabet=list("abc{}") if metaspace else pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(TRAINED_ON * 3, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=eos,
        bos_token="<s>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = template
    return TokenizerWrapper(fast)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return build()


@pytest.fixture(scope="module")
def plain() -> Any:
    return build(None)


def chat(*contents: Any, **more: Any) -> dict[str, Any]:
    roles = ["system", "user", "assistant"]
    return {"messages": [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)], **more}


def calling(calls: Any) -> dict[str, Any]:
    return {"messages": [*chat("s", "q")["messages"], {"role": "assistant", "tool_calls": calls}]}


GOOD = chat("Classify.", "Win a prize", '{"label":"spam"}')
CALL = {"type": "function", "function": {"name": "find_home", "arguments": '{"area": "Kyiv", "beds": 2}'}}


def write(path: Path, *rows: Any, newline: bytes = b"\n") -> Path:
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    path.write_bytes(b"".join(line + newline for line in lines))
    return path


def reason(path: Path, tokenizer: Any, row: Any, read: Any = read_sequences, **options: Any) -> str:
    """Why ``row`` is bad: the text after file:line in the error."""
    write(path, GOOD if tokenizer.has_chat_template else {"prompt": "a", "completion": "b"}, row)
    with pytest.raises(DaariError) as caught:
        read(path, tokenizer, **options)
    head, line, *_ = str(caught.value).split("\n")
    assert head == f"{path} has 1 bad row:"
    assert line.startswith(f"  {path}:2: ")
    return line.removeprefix(f"  {path}:2: ")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "rows.jsonl"


def text_of(tokenizer: Any, sequence: Sequence) -> tuple[str, str]:
    start = sequence.answer_start
    return tokenizer.decode(sequence.tokens[:start]), tokenizer.decode(sequence.tokens[start:])


# --- kinds of rows


def test_chat_row_is_split_where_the_answer_starts_and_ends_with_eos(file: Path, tokenizer: Any) -> None:
    rows = read_sequences(write(file, GOOD), tokenizer)
    assert rows == Rows([Sequence(rows.items[0].tokens, rows.items[0].answer_start, 0, f"{file}:1")], [])
    assert text_of(tokenizer, rows.items[0]) == (
        "<|im_start|>system\nClassify.<|im_end|>\n<|im_start|>user\nWin a prize<|im_end|>\n<|im_start|>assistant\n",
        '{"label":"spam"}<|im_end|>',
    )
    assert rows.skipped_note() is None
    with pytest.raises(FrozenInstanceError):
        rows.items[0].row = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    "row",
    [
        GOOD,
        chat("", "q", "a", tools=[{"type": "function", "function": {"name": "f"}}]),
        chat("s", "q", "a\n\nb "),
    ],
)
def test_chat_agrees_with_mlx_lm_lora(file: Path, tokenizer: Any, row: dict[str, Any]) -> None:
    tokens, offset = ChatDataset([row], tokenizer, mask_prompt=True).process(row)
    (sequence,) = read_sequences(write(file, row), tokenizer).items
    assert sequence.answer_start == offset
    assert sequence.tokens == tokens[: len(sequence.tokens)]
    assert tokenizer.decode(tokens[len(sequence.tokens) :]) == "\n"


def test_completion_goes_through_the_chat_template_as_in_mlx_lm_lora(file: Path, tokenizer: Any) -> None:
    row = {"prompt": "Win a prize", "completion": "spam", "id": 7}
    tokens, offset = CompletionsDataset([row], tokenizer, "prompt", "completion", True).process(row)
    (sequence,) = read_sequences(write(file, row), tokenizer).items
    assert sequence.answer_start == offset
    assert sequence.tokens == tokens[:-1]


def test_completion_without_a_chat_template_is_concatenated_and_ended(file: Path, plain: Any) -> None:
    (sequence,) = read_sequences(write(file, {"prompt": "2 + 2 =", "completion": " 4"}), plain).items
    assert text_of(plain, sequence) == ("2 + 2 =", " 4<|im_end|>")


def test_text_row_is_all_answer_and_not_cut_at_an_eos(file: Path, tokenizer: Any) -> None:
    row = {"text": "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nho<|im_end|>\n"}
    (sequence,) = read_sequences(write(file, row), tokenizer).items
    assert sequence.answer_start == 0
    assert sequence.tokens == TextDataset([row], tokenizer).process(row)[0]
    assert sequence.tokens.count(tokenizer.eos_token_id) == 3


def test_kinds_may_be_mixed_and_good_rows_are_numbered(file: Path, tokenizer: Any) -> None:
    write(file, GOOD, b"", {"text": "ham"}, b"  ", {"prompt": "p", "completion": "c"})
    rows = read_sequences(file, tokenizer)
    assert [(s.row, s.source) for s in rows.items] == [(0, f"{file}:1"), (1, f"{file}:3"), (2, f"{file}:5")]


def test_a_tokenizer_that_adds_bos_adds_it_once(file: Path) -> None:
    from tokenizers.processors import TemplateProcessing

    adding = build(None)
    adding._tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", adding.bos_token_id)]
    )
    write(file, {"prompt": "q", "completion": "a"}, {"prompt": "<s>q", "completion": "a"}, {"text": "<s>t"})
    for sequence in read_sequences(file, adding).items:
        assert sequence.tokens[0] == adding.bos_token_id
        assert sequence.tokens.count(adding.bos_token_id) == 1


def test_no_eos_token_at_all(file: Path) -> None:
    ids = read_sequences(write(file, {"text": "ham"}), build(None, eos=None)).items[0].tokens
    assert None not in ids


# --- answers


def test_answer_ends_with_its_first_eos(file: Path, tokenizer: Any) -> None:
    (sequence,) = read_sequences(write(file, chat("s", "q<|im_end|>", "one<|im_end|>two")), tokenizer).items
    assert text_of(tokenizer, sequence)[1] == "one<|im_end|>"


def test_any_of_several_eos_ids_ends_the_answer(file: Path) -> None:
    two = build()
    two.add_eos_token("<unk>")
    (sequence,) = read_sequences(write(file, chat("s", "q", "one<unk>two")), two).items
    assert text_of(two, sequence)[1] == "one<unk>"


def test_parts_and_tool_calls_are_read_as_mlx_lm_server_reads_them(file: Path, tokenizer: Any) -> None:
    parts = [{"type": "text", "text": "Find a "}, {"type": "text", "text": "flat"}]
    row: dict[str, Any] = {
        "messages": [
            {"role": "user", "content": parts},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
        ],
        "tools": [{"type": "function", "function": {"name": "find_home", "parameters": {}}}],
    }
    (sequence,) = read_sequences(write(file, row), tokenizer).items
    prompt, answer = text_of(tokenizer, sequence)
    assert answer == '<call>{"name": "find_home", "arguments": {"area": "Kyiv", "beds": 2}}</call><|im_end|>'
    messages = json.loads(json.dumps(row["messages"]))
    process_message_content(messages)
    served = tokenizer.apply_chat_template(messages[:-1], tools=row["tools"], add_generation_prompt=True)
    assert sequence.tokens[: sequence.answer_start] == served
    assert "Find a flat" in prompt


def test_a_token_across_the_border_is_split_there(file: Path) -> None:
    thinking = build(THINKING)
    row = chat("s", "q", "yes")
    whole = thinking.apply_chat_template(row["messages"])
    prompt = thinking.apply_chat_template(row["messages"][:2], add_generation_prompt=True)
    assert whole[: len(prompt)] != prompt, "the test needs a merge across the border"
    (sequence,) = read_sequences(write(file, row), thinking).items
    assert sequence.tokens[: sequence.answer_start] == prompt
    assert text_of(thinking, sequence)[1] == "\n</think>\n\nyes<|im_end|>"


def test_the_chat_template_gets_its_variables(file: Path) -> None:
    thinking = build(THINKING)
    (sequence,) = read_sequences(
        write(file, chat("s", "q", "yes")), thinking, chat_template_config={"brief": True}
    ).items
    assert text_of(thinking, sequence)[1] == "yes<|im_end|>"


def test_a_template_in_python_that_writes_into_the_messages(file: Path) -> None:
    def template(messages: list[dict[str, Any]], add_generation_prompt: bool = False, **_: Any) -> str:
        for message in messages:
            message["content"] = f"[{message['content']}]"
        end = "\nA:" if add_generation_prompt else ""
        return "\n".join(("A:" if m["role"] == "assistant" else "Q:") + m["content"] for m in messages) + end

    wrapped = TokenizerWrapper(build(None)._tokenizer, chat_template=template)
    (sequence,) = read_sequences(write(file, chat("s", "q", "a")), wrapped).items
    assert text_of(wrapped, sequence) == ("Q:[s]\nQ:[q]\nA:", "[a]")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    answer=st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda text: "<" not in text),
    question=st.text(st.characters(exclude_categories=["Cs"])),
)
def test_any_answer_comes_back(file: Path, tokenizer: Any, plain: Any, answer: str, question: str) -> None:
    row = chat("s", question, answer)
    write(file, row, {"prompt": question or "?", "completion": answer})
    for one in read_sequences(file, tokenizer).items:
        assert text_of(tokenizer, one)[1] == answer + "<|im_end|>"
    first = read_sequences(file, tokenizer).items[0]
    whole = tokenizer.apply_chat_template(row["messages"], tokenize=False)
    assert "".join(text_of(tokenizer, first)) + "\n" == whole
    write(file, {"prompt": question or "?", "completion": answer})
    assert text_of(plain, read_sequences(file, plain).items[0]) == (question or "?", answer + "<|im_end|>")


# --- prompts


def test_prompts_and_their_references_are_the_two_halves_of_a_sequence(file: Path, tokenizer: Any) -> None:
    write(file, GOOD, {"prompt": "p", "completion": "c"}, chat("s", "q\n", "\n\na"))
    sequences, prompts = read_sequences(file, tokenizer).items, read_prompts(file, tokenizer).items
    assert [p.tokens + (p.reference or []) for p in prompts] == [s.tokens for s in sequences]
    assert [(len(p.tokens), p.row, p.source) for p in prompts] == [(s.answer_start, s.row, s.source) for s in sequences]


@pytest.mark.parametrize(
    "row", [chat("s", "q"), {"prompt": "q"}, chat("s", "q", ""), {"prompt": "q", "completion": None}]
)
def test_prompts_need_no_answer(file: Path, tokenizer: Any, row: dict[str, Any]) -> None:
    (prompt,) = read_prompts(write(file, row), tokenizer).items
    assert tokenizer.decode(prompt.tokens).endswith("q<|im_end|>\n<|im_start|>assistant\n")
    assert prompt.reference is None


def test_a_prompt_whose_answer_the_template_cannot_continue_is_good(file: Path) -> None:
    (prompt,) = read_prompts(write(file, GOOD), build(DROPS_THOUGHT)).items
    assert prompt.reference is None


def test_a_reference_past_the_context_is_left_out(file: Path, tokenizer: Any) -> None:
    (whole,) = read_sequences(write(file, GOOD), tokenizer).items
    (fits,) = read_prompts(file, tokenizer, max_length=len(whole.tokens)).items
    (short,) = read_prompts(file, tokenizer, max_length=len(whole.tokens) - 1).items
    assert fits.reference == whole.tokens[whole.answer_start :]
    assert short == Prompt(fits.tokens, 0, f"{file}:1", None)


def test_a_text_row_has_no_prompt(file: Path, tokenizer: Any) -> None:
    assert reason(file, tokenizer, {"text": "t"}, read_prompts).startswith("has no prompt")


# --- bad rows

BAD = {
    "truncated JSON": (b'{"messages": [{"role"', "invalid JSON at column 22: Expecting ':' delimiter"),
    "comma": (
        b'{"text": "a",, }',
        "invalid JSON at column 14: Expecting property name enclosed in double quotes",
    ),
    "deep": (b"[" * 100_000, "JSON that cannot be read: maximum recursion depth exceeded"),
    "long number": (b"9" * 5000, "JSON that cannot be read: Exceeds the limit"),
    "latin-1": ('{"text": "é"}'.encode("latin-1"), "not UTF-8: byte 0xe9 at position 11"),
    "utf-16": ('{"text": "e"}'.encode("utf-16"), "not UTF-8: byte 0xff at position 1"),
    "half a pair": (b'{"text": "\\ud83d"}', "JSON that cannot be read: 'utf-8' codec can't encode character"),
    "array": ([1], "the row is [1], not an object"),
    "number": (3, "the row is 3, not an object"),
    "boolean": (True, "the row is true, not an object"),
    "null": (None, "the row is missing or null, not an object"),
    "no keys": ({}, "the row is empty"),
    "other keys": (
        {"instruction": "a", "output": "b"},
        "unknown keys: 'instruction', 'output'; a row needs 'mess",
    ),
    "completion alone": ({"completion": "b"}, "unknown keys: 'completion'; a row needs"),
    "no messages": ({"messages": []}, "'messages' is empty"),
    "one message": ({"messages": {"role": "user"}}, '\'messages\' is {"role": "user"}, not a list'),
    "bare strings": ({"messages": ["hi"]}, 'message 1 is "hi", not an object'),
    "no role": ({"messages": [{"content": "hi"}]}, "the role of message 1 is missing or null, not a string"),
    "unknown role": (
        {"messages": [{"role": "elf", "content": "hi"}]},
        "the chat template rejects the messages: TemplateError: unk",
    ),
    "number as content": (chat("s", 7, "a"), "the content of message 2 (user) is 7, not a string"),
    "null as content": (
        chat("s", None, "a"),
        "the content of message 2 (user) is missing or null, not a string",
    ),
    "parts": (
        chat("s", ["a"], "a"),
        "the content of message 2 (user) has parts that are not {'type': 'text'",
    ),
    "image": (
        chat("s", [{"type": "image_url", "image_url": "u"}], "a"),
        "the content of message 2 (user) has parts",
    ),
    "odd part": (
        chat("s", [{"type": "x", "text": "t"}], "a"),
        "the content of message 2 (user) has parts that are not {'type': 'text'",
    ),
    "no answer": (chat("s", "q"), "has no answer: the last message is not from the assistant"),
    "null answer": (
        chat("s", "q", None),
        "the content of message 3 (assistant) is missing or null, not a string",
    ),
    "empty answer": (chat("s", "q", ""), "the answer is empty"),
    "eos as answer": (chat("s", "q", "<|im_end|>"), "the answer is empty once it is rendered"),
    "answer alone": (
        {"messages": [{"role": "assistant", "content": "a"}]},
        "the chat begins with the answer: there is no prompt",
    ),
    "empty prompt": ({"prompt": "", "completion": "c"}, "'prompt' is empty"),
    "prompt as list": ({"prompt": ["p"], "completion": "c"}, "'prompt' is [\"p\"], not a string"),
    "no completion": ({"prompt": "p"}, "has no answer"),
    "null completion": ({"prompt": "p", "completion": None}, "has no answer"),
    "empty completion": ({"prompt": "p", "completion": ""}, "the answer is empty"),
    "number completion": (
        {"prompt": "p", "completion": 4},
        "'completion' is 4, not a string",
    ),
    "empty text": ({"text": ""}, "'text' is empty"),
    "null text": ({"text": None}, "'text' is missing or null, not a string"),
    "tools that are no JSON": (chat("s", "q", "a", tools="f"), "'tools' is text that is no JSON (Expecting value"),
    "one tool": (chat("s", "q", "a", tools={"name": "f"}), '\'tools\' is {"name": "f"}, not a list'),
    "a tool's name": (chat("s", "q", "a", tools=["f"]), "tool 1 of 'tools' is \"f\", not an object"),
    "calls": (calling(3), "'tool_calls' of message 3 (assistant) is 3, not a list"),
    "call without a name": (
        calling([{"function": {"arguments": 1}}]),
        "the name of tool call 1 of message 3 (assistant) is missing",
    ),
    "call that is none": (calling(["f"]), 'tool call 1 of message 3 (assistant) is "f", not an object'),
    "deep tools": (
        chat("s", "q", "a", tools=json.loads("[" * 300 + "]" * 300)),
        "messages or tools are nested more than 100 levels deep",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_row_is_named_with_its_reason(file: Path, tokenizer: Any, name: str) -> None:
    row, expected = BAD[name]
    assert reason(file, tokenizer, row).startswith(expected)


@pytest.mark.parametrize("name", BAD)
def test_a_bad_row_can_be_skipped(file: Path, tokenizer: Any, name: str) -> None:
    write(file, GOOD, BAD[name][0], GOOD)
    rows = read_sequences(file, tokenizer, skip_bad_rows=True)
    assert [(s.row, s.source) for s in rows.items] == [(0, f"{file}:1"), (1, f"{file}:3")]
    assert rows.skipped[0].startswith(f"{file}:2: {BAD[name][1]}")
    assert (rows.skipped_note() or "").startswith(f"skipped 1 bad row:\n  {file}:2: ")


def test_a_chat_row_needs_a_chat_template(file: Path, plain: Any) -> None:
    assert reason(file, plain, GOOD).startswith("the tokenizer has no chat template for 'messages'")


def test_an_answer_that_changes_the_prompt_is_a_bad_row(file: Path) -> None:
    write(file, GOOD)
    with pytest.raises(DaariError, match=r"ends the prompt in '<think>\\n', which the answer turns into '\{\"label"):
        read_sequences(file, build(DROPS_THOUGHT))


def test_a_tool_call_that_the_template_leaves_out_is_a_bad_row(file: Path) -> None:
    answer = {"role": "assistant", "content": "ok", "tool_calls": [CALL]}
    row = {
        "messages": [*chat("s", "q")["messages"], answer],
        "tools": [CALL],
    }  # so that its name is in the prompt
    assert reason(file, build(NO_CALLS), row) == "the chat template leaves out the tool call find_home"


def test_a_tokenizer_that_begins_texts_with_a_space_is_split_at_the_border(file: Path) -> None:
    spaced = build("{% for m in messages %}{{ m.content }}{% endfor %}", metaspace=True)
    for question, answer in (("ab", " ab"), ("mes", "sage:"), ("message: ", "spam")):
        row = {"messages": chat("", question, answer)["messages"]}
        (sequence,) = read_sequences(write(file, row), spaced).items
        assert sequence.prompt == spaced.encode(question), "as in use"
        assert spaced.decode(sequence.tokens).strip() == question + answer


def test_length_is_checked_to_the_token(file: Path, tokenizer: Any) -> None:
    (one,) = read_sequences(write(file, GOOD), tokenizer).items
    full, start = len(one.tokens), one.answer_start
    assert read_sequences(file, tokenizer, max_length=full).items == [one]
    with pytest.raises(DaariError, match=f"prompt . answer longer than the context: {full} tokens, .* {full - 1}\n"):
        read_sequences(file, tokenizer, max_length=full - 1)
    for read in (read_sequences, read_prompts):
        with pytest.raises(DaariError, match=f"prompt longer than the context: {start} tokens .* holds {start}\n"):
            read(file, tokenizer, max_length=start)
    assert len(read_prompts(file, tokenizer, max_length=start + 1).items[0].tokens) == start
    write(file, {"text": "ham" * 9})
    with pytest.raises(DaariError, match=r"text longer than the context: .* holds 4\n"):
        read_sequences(file, tokenizer, max_length=4)


def test_many_bad_rows_make_one_error_with_the_first_five(file: Path, tokenizer: Any) -> None:
    write(file, *[3] * 7, GOOD)
    with pytest.raises(DaariError) as caught:
        read_sequences(file, tokenizer)
    lines = str(caught.value).split("\n")
    assert lines[0] == f"{file} has 7 bad rows:"
    assert [line.split(": ")[0] for line in lines[1:6]] == [f"  {file}:{n}" for n in range(1, 6)]
    assert lines[6:] == ["  ... and 2 more", "Mend them, or leave them out with --skip-bad-rows."]


def test_nothing_left_is_an_error_even_when_skipping(file: Path, tokenizer: Any) -> None:
    with pytest.raises(DaariError, match=r"has 2 bad rows:(.|\n)*No row is good"):
        read_sequences(write(file, 3, 4), tokenizer, skip_bad_rows=True)


LEAVES = st.none() | st.booleans() | st.integers() | st.sampled_from(["", "user", "assistant", "text", "\ud83d", "{"])
KEYS = st.sampled_from(
    [
        "messages",
        "tools",
        "prompt",
        "completion",
        "text",
        "role",
        "content",
        "tool_calls",
        "function",
        "name",
        "arguments",
        "type",
    ]
)
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=12,
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "elf"]), "content": JSON}, optional={"tool_calls": JSON}
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(row=JSON | st.fixed_dictionaries({"messages": st.lists(MESSAGE, max_size=3)}, optional={"tools": JSON}))
def test_no_row_is_bad_enough_for_a_traceback(file: Path, tokenizer: Any, plain: Any, row: Any) -> None:
    write(file, row, {"prompt": "p", "completion": "c"})
    for one in (tokenizer, plain):
        for read in (read_sequences, read_prompts):
            rows = read(file, one, skip_bad_rows=True)
            assert len(rows.items) + len(rows.skipped) == 2


# --- files


def test_bom_crlf_and_a_last_line_without_an_end(file: Path, tokenizer: Any) -> None:
    body = json.dumps(GOOD, ensure_ascii=False).encode()
    file.write_bytes(b"\xef\xbb\xbf" + body + b"\r\n\r\n" + body)
    rows = read_sequences(file, tokenizer)
    assert [s.source for s in rows.items] == [f"{file}:1", f"{file}:3"]
    assert rows.items[0].tokens == rows.items[1].tokens


def test_line_separators_inside_a_string_do_not_end_a_row(file: Path, tokenizer: Any) -> None:
    row = json.dumps(chat("s", "q", "a\u2028b\x85c\r"), ensure_ascii=False).encode()
    assert text_of(tokenizer, read_sequences(write(file, row), tokenizer).items[0])[1] == "a\u2028b\x85c\r<|im_end|>"


def test_a_folder_has_splits(tmp_path: Path, tokenizer: Any) -> None:
    write(tmp_path / "train.jsonl", GOOD)
    write(tmp_path / "test.jsonl", GOOD, GOOD)
    assert len(read_sequences(tmp_path, tokenizer).items) == 1
    assert len(read_prompts(str(tmp_path), tokenizer, split="test").items) == 2
    with pytest.raises(DaariError, match=r"no valid.jsonl in the folder .*: it has test.jsonl, train.jsonl"):
        read_sequences(tmp_path, tokenizer, split="valid")


def test_a_folder_without_jsonl(tmp_path: Path, tokenizer: Any) -> None:
    (tmp_path / "train.csv").touch()
    with pytest.raises(DaariError, match=r"it has no \.jsonl file at all"):
        read_sequences(tmp_path, tokenizer)


@pytest.mark.parametrize("content", [b"", b"\n\r\n  \n", b"\xef\xbb\xbf"])
def test_an_empty_file(file: Path, tokenizer: Any, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(DaariError, match="is empty"):
        read_sequences(file, tokenizer)


def test_a_missing_file(file: Path, tokenizer: Any) -> None:
    with pytest.raises(DaariError, match=r"There is no data at .*rows.jsonl\. Give a .jsonl file"):
        read_sequences(file, tokenizer)


def test_stdin(monkeypatch: pytest.MonkeyPatch, tokenizer: Any) -> None:
    def feed(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))

    feed(json.dumps(GOOD).encode() + b"\nx\n")
    rows = read_sequences("-", tokenizer, skip_bad_rows=True)
    assert rows.items[0].source == "stdin:1"
    assert rows.skipped == ["stdin:2: invalid JSON at column 1: Expecting value"]
    feed(b"")
    with pytest.raises(DaariError, match="stdin is empty"):
        read_sequences("-", tokenizer)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_named_pipe_may_never_say_anything_and_is_refused_with_what_to_give(tmp_path: Path, tokenizer: Any) -> None:
    os.mkfifo(tmp_path / "train.jsonl")
    for path in (tmp_path, tmp_path / "train.jsonl"):
        with pytest.raises(DaariError, match=r"train.jsonl cannot be read: it is a named pipe\. .* - for stdin"):
            read_sequences(path, tokenizer)


@pytest.mark.parametrize("newline", [b"", b"\n"])
def test_a_line_without_end_fills_no_memory(
    newline: bytes, file: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MAX_LINE", 1 << 20)
    file.write_bytes(json.dumps(GOOD).encode() + b"\n" + b" " * (1 << 20) + b"x" + newline)
    with pytest.raises(DaariError, match=r"rows.jsonl:2 has more than 1 MB: a row is one JSON object on a line"):
        read_sequences(file, tokenizer)


def test_limit_stops_reading(file: Path, tokenizer: Any) -> None:
    write(file, GOOD, GOOD, b"never looked at")
    assert len(read_sequences(file, tokenizer, limit=2).items) == 2
    with pytest.raises(DaariError, match="limit is 0: give at least 1"):
        read_sequences(file, tokenizer, limit=0)


# --- hashes


def test_prompt_hash_is_pinned_and_tells_prompts_apart() -> None:
    assert prompt_hash([]) == 0xB4B2797457A0A6E4  # `b2sum -l 64` of no bytes, read from its last byte on
    assert prompt_hash([1, 2, 3]) == 0x9E3D6A5F74569CD6
    assert len({prompt_hash(tokens) for tokens in ([1], [1, 0], [0, 1], [256], [])}) == 5
    assert all(0 <= prompt_hash([n]) < 2**64 for n in range(100))


def test_the_hash_of_older_versions_is_pinned_and_sees_tokens_borders_and_order() -> None:
    a, b = ([1, 2, 3], 1), ([4], 0)
    base = tokens_hash([a, b])
    assert base == tokens_hash(iter([a, b])) == "0cba004e610338d68b53697d00ffc906"
    others = [[b, a], [a], [([1, 2, 3], 2), b], [([1, 2], 1), ([3, 4], 0)]]
    assert base not in map(tokens_hash, others)


# --- real files

SHARED = Path(os.environ.get("DAARI_SHARED", Path(__file__).parents[3] / "shared"))


@pytest.mark.parametrize("name", ["sgd_toolcall", "sms_spam", "snips", "spec_bench", "wikisql", "wnut17"])
def test_real_rows_agree_with_mlx_lm_lora(tokenizer: Any, name: str) -> None:
    folder = SHARED / "data" / name
    if not folder.is_dir():
        pytest.skip(f"no {folder}: set DAARI_SHARED")
    unanswered = name == "spec_bench"  # some of its rows are questions only
    rows = read_sequences(folder, tokenizer, limit=60, skip_bad_rows=unanswered)
    assert len(rows.items) == 60
    assert unanswered == any("has no answer" in line for line in rows.skipped)
    lines = (folder / "train.jsonl").read_text(encoding="utf-8").splitlines()
    for sequence in rows.items:
        row = json.loads(lines[int(sequence.source.rpartition(":")[2]) - 1])
        tokens, offset = ChatDataset([row], tokenizer, mask_prompt=True).process(row)
        assert sequence.answer_start == offset
        assert sequence.tokens == tokens[: len(sequence.tokens)]
        assert text_of(tokenizer, sequence)[1] == row["messages"][-1]["content"] + "<|im_end|>"
    assert len(read_prompts(folder, tokenizer, split="test", limit=60).items) == 60
