"""The tiny teacher: small, loads as any other, any text round-trips, and most answers are JSON that ends."""

from __future__ import annotations

import json

import make_tiny_teacher
import pytest

N_ANSWERS = 24


@pytest.fixture(scope="module")
def answers(tiny_teacher) -> list[tuple[list[dict], str, list[int]]]:
    """(messages of a row never trained on, the greedy answer, its ids with the end token) for some rows."""
    from mlx_lm import stream_generate

    model, tokenizer = tiny_teacher
    _, rows = make_tiny_teacher.split_rows()
    made = []
    for row in rows[:N_ANSWERS]:
        prompt = tokenizer.apply_chat_template(row["messages"][:-1], add_generation_prompt=True)
        pieces = list(stream_generate(model=model, tokenizer=tokenizer, prompt=prompt, max_tokens=120))
        made.append((row["messages"], "".join(p.text for p in pieces), [p.token for p in pieces]))
    return made


def parsed(text: str) -> dict | None:
    try:
        return json.loads(text)
    except ValueError:
        return None


def test_it_takes_less_than_a_megabyte_and_holds_nothing_else(tiny_teacher_path):
    files = {path.name: path.stat().st_size for path in tiny_teacher_path.iterdir()}
    assert set(files) == {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert sum(files.values()) <= 1_000_000


def test_it_loads_as_a_float32_llama_with_grouped_heads_and_a_tied_head(tiny_teacher, tiny_teacher_path):
    import mlx.core as mx
    from mlx.utils import tree_flatten

    model, tokenizer = tiny_teacher
    assert model.model_type == "llama"
    assert {array.dtype for _, array in tree_flatten(model.parameters())} == {mx.float32}
    assert "lm_head.weight" not in dict(tree_flatten(model.parameters()))
    config = json.loads((tiny_teacher_path / "config.json").read_text())
    assert config == make_tiny_teacher.CONFIG
    assert 1 < config["num_key_value_heads"] < config["num_attention_heads"]
    assert tokenizer.eos_token_ids == {config["eos_token_id"]}
    assert tokenizer.vocab_size == config["vocab_size"]


@pytest.mark.parametrize(
    "text",
    [
        "party 🎉 family 👩‍👩‍👧 flag 🇮🇳 👍🏽",
        "你好，世界 ありがとう 감사합니다",
        "ಕನ್ನಡ ಭಾಷೆ ಕ್ಷಮಿಸಿ",
        "שלום עולם",
        "0123 12,345.67 ² ½",
        "tab\t  spaces \n\n\u200f\u0000 end",
        "".join(map(chr, range(0x20, 0x250))),
    ],
)
def test_any_text_round_trips(tiny_teacher, text):
    _, tokenizer = tiny_teacher
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_every_byte_is_a_token(tiny_teacher):
    from tokenizers.pre_tokenizers import ByteLevel

    _, tokenizer = tiny_teacher
    assert set(ByteLevel.alphabet()) <= set(tokenizer.get_vocab())


def test_most_answers_are_json_with_the_four_keys(answers):
    valid = [text for _, text, _ in answers if set(parsed(text) or ()) == {"label", "category", "risk", "evidence"}]
    assert len(valid) >= 0.95 * N_ANSWERS


def test_answers_end_with_the_end_token(answers, tiny_teacher):
    _, tokenizer = tiny_teacher
    ended = [ids for _, _, ids in answers if ids[-1] in tokenizer.eos_token_ids]
    assert len(ended) >= 0.95 * N_ANSWERS
    assert all(not set(ids[:-1]) & tokenizer.eos_token_ids for ids in ended)


def test_answers_decide_and_quote(answers):
    """What drafters are measured on: the category is the right one, the quote is of this message."""
    found = [(messages, parsed(text) or {}) for messages, text, _ in answers]
    right = [answer.get("category") == json.loads(messages[-1]["content"])["category"] for messages, answer in found]
    quoted = [answer["evidence"] in messages[-2]["content"] for messages, answer in found if answer.get("evidence")]
    assert sum(right) >= 0.9 * N_ANSWERS
    assert sum(quoted) >= 0.25 * len(quoted)  # it is too small to copy every number
    assert len({answer.get("category") for _, answer in found}) >= 8


@pytest.mark.parametrize("system", [make_tiny_teacher.SHORT_SYSTEM, None])
def test_a_short_system_prompt_or_none_also_gives_json(tiny_teacher, system):
    from mlx_lm import generate

    model, tokenizer = tiny_teacher
    chat = [
        {
            "role": "user",
            "content": "Banyan Bank: your account is locked. Verify your PIN now at http://my-pay.example/ab12",
        }
    ]
    if system:
        chat.insert(0, {"role": "system", "content": system})
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True)
    answer = parsed(generate(model=model, tokenizer=tokenizer, prompt=prompt, max_tokens=120))
    assert answer and answer["label"] == "spam"


def test_the_chat_template_takes_system_user_assistant_and_tools(tiny_teacher):
    _, tokenizer = tiny_teacher
    tool = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Where is parcel AB12?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"function": {"name": "look_up", "arguments": {"id": 1}}}],
        },
        {"role": "tool", "content": "at gate 4"},
    ]
    plain = tokenizer.decode(tokenizer.apply_chat_template(chat[:2], add_generation_prompt=True))
    assert plain == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhere is parcel AB12?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    text = tokenizer.decode(tokenizer.apply_chat_template(chat, tools=[tool], add_generation_prompt=True))
    assert text.startswith("<|im_start|>system\nBe brief.\n<tools>\n{") and '"look_up"' in text.split("</tools>")[0]
    assert '<tool_call>\n{"name": "look_up", "arguments": {"id": 1}}\n</tool_call><|im_end|>' in text
    assert text.endswith("<|im_start|>tool\nat gate 4<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.has_tool_calling


def test_the_template_marks_are_single_tokens(tiny_teacher):
    _, tokenizer = tiny_teacher
    assert tokenizer.encode("<|endoftext|><|im_start|><|im_end|>") == [0, 1, 2]
