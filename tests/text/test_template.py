"""One rendering: the same messages have the same ids through every way in, and the same mistakes the same words."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mlx_lm.server import process_message_content
from mlx_lm.tokenizer_utils import TokenizerWrapper
from test_data import CHATML, build, write

from daari_mlx.chat.session import Session
from daari_mlx.cli import prompts
from daari_mlx.decode.engine import SpecEngine
from daari_mlx.decode.speculative import SpeculativeModel
from daari_mlx.ground.errors import DaariError
from daari_mlx.text.data import read_prompts, read_sequences
from daari_mlx.text.template import OWN_NAMES, ChatTemplate

AREA = {"area": "Kyiv", "beds": 2}
TOOLS = [{"type": "function", "function": {"name": "find_home", "parameters": {"type": "object"}}}]
ASKED = {"role": "user", "content": "Find a flat"}
FOUND = {"role": "tool", "content": "two"}


def call(arguments: Any, *, flat: bool = False, **more: Any) -> dict[str, Any]:
    said = {"name": "find_home", "arguments": arguments}
    made = said | more if flat else {"type": "function", "function": said} | more
    return {"role": "assistant", "content": None, "tool_calls": [made]}


def parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


@dataclasses.dataclass
class Said:
    """A message as a client of an API may hold it."""

    role: str
    content: Any


TABLE: dict[str, list[Any]] = {
    "a question": [ASKED],
    "a system prompt": [{"role": "system", "content": "Be brief."}, ASKED],
    "parts": [{"role": "system", "content": parts("Be ", "brief.")}, {"role": "user", "content": parts("Find a flat")}],
    "no parts": [{"role": "system", "content": []}, ASKED],
    "a history": [ASKED, {"role": "assistant", "content": "Where?"}, {"role": "user", "content": parts("In Kyiv")}],
    "an object": [ASKED, call(AREA), FOUND],
    "an object as text": [ASKED, call(json.dumps(AREA)), FOUND],
    "a flat call": [ASKED, call(AREA, flat=True), FOUND],
    "a flat call, as text": [ASKED, call(json.dumps(AREA), flat=True, id="c1"), FOUND],
    "no arguments": [ASKED, call(None), FOUND],
    "empty arguments": [ASKED, call(""), FOUND],
    "arguments that are no JSON": [ASKED, call("Kyiv"), FOUND],
    "calls as text": [ASKED, call(AREA) | {"tool_calls": json.dumps(call(AREA)["tool_calls"])}, FOUND],
    "two calls": [ASKED, call(AREA) | {"tool_calls": call(AREA)["tool_calls"] + call("{}")["tool_calls"]}, FOUND],
    "what a tool found as an object": [ASKED, call(AREA), {"role": "tool", "content": {"homes": [1, 2]}}],
    "what a tool found as a list": [ASKED, call(AREA), {"role": "tool", "content": [{"home": 1}]}],
    "a thought and no words": [ASKED, {"role": "assistant", "content": None, "reasoning_content": "hm"}, ASKED],
}
FLAT = CHATML.replace("call.function | tojson", "{'name': call.name, 'arguments': call.arguments} | tojson")
AS_TEXT = CHATML.replace("call.function | tojson", "call.function.name + ': ' + call.function.arguments")
TEMPLATES = {"nested": CHATML, "flat": FLAT, "as text": AS_TEXT}


def in_python(messages: list[dict[str, Any]], add_generation_prompt: bool = False, **_: Any) -> str:
    """As mlx-lm's own template of DeepSeek reads calls; it writes into the messages."""
    text = ""
    for message in messages:
        for said in message.pop("tool_calls", None) or []:
            arguments = json.loads(said["function"]["arguments"] or "{}")
            message["content"] += said["function"]["name"] + repr(sorted(arguments.items()))
        text += f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n"
    return text + "<|im_start|>assistant\n" * add_generation_prompt


def through_prompts(tokenizer: Any, messages: list[Any], tools: Any, config: Any, file: Path) -> list[int]:
    row = {"messages": messages, "tools": tools}
    return read_prompts(write(file, row), tokenizer, chat_template_config=config).items[0].tokens


def through_sequences(tokenizer: Any, messages: list[Any], tools: Any, config: Any, file: Path) -> list[int]:
    row = {"messages": [*messages, {"role": "assistant", "content": "yes"}], "tools": tools}
    return read_sequences(write(file, row), tokenizer, chat_template_config=config).items[0].prompt


def engine_of(tokenizer: Any) -> SpecEngine:
    """An engine whose answers are the ids that it was asked."""
    engine = object.__new__(SpecEngine)
    engine.tokenizer = tokenizer
    engine.stream_tokens = lambda ids, **options: iter([ids])  # type: ignore[method-assign,assignment,return-value]
    return engine


def through_engine(tokenizer: Any, messages: list[Any], tools: Any, config: Any, file: Path) -> list[int]:
    (ids,) = engine_of(tokenizer).stream_chat(messages, tools=tools, chat_template_config=config)
    return ids  # type: ignore[return-value]


def through_chat(tokenizer: Any, messages: list[Any], tools: Any, config: Any, file: Path) -> list[int]:
    session = Session(engine_of(tokenizer), {"chat_template_config": config}, context_length=10**6)
    session.conversation = SimpleNamespace(messages=messages)  # type: ignore[assignment]
    (ids,) = session.answer(lambda done, total: None, lambda: False)
    assert session.tokens() == len(ids)  # type: ignore[arg-type]
    return ids  # type: ignore[return-value]


def through_pair(tokenizer: Any, messages: list[Any], tools: Any, config: Any, file: Path) -> list[int]:
    pair = object.__new__(SpeculativeModel)
    pair.tokenizer = tokenizer
    return pair.encode(messages)


def through_generate(tokenizer: Any, messages: list[Any], tools: Any, config: Any, file: Path) -> list[int]:
    texts = {m["role"]: m["content"] for m in messages}
    return prompts.encode(tokenizer, texts["user"], system_prompt=texts.get("system"), chat_template_config=config)


WAYS: dict[str, Callable[..., list[int]]] = {
    "read_prompts": through_prompts,
    "read_sequences": through_sequences,
    "SpecEngine": through_engine,
    "chat": through_chat,
    "SpeculativeModel": through_pair,
    "generate": through_generate,
}
WITHOUT_TOOLS = {"chat", "SpeculativeModel", "generate"}


def ways_for(messages: list[Any], tools: Any) -> list[str]:
    named = [name for name in WAYS if not tools or name not in WITHOUT_TOOLS]
    asked = [m for m in messages if set(m) == {"role", "content"} and isinstance(m["content"], str)]
    simple = asked == messages and [m["role"] for m in messages] in (["user"], ["system", "user"])
    return [name for name in named if simple or name != "generate"]


@pytest.mark.parametrize("template", [*TEMPLATES, "in Python"])
@pytest.mark.parametrize("name", TABLE)
def test_the_same_messages_have_the_same_ids_everywhere(tmp_path: Path, name: str, template: str) -> None:
    tokenizer = build(TEMPLATES.get(template, CHATML))
    if template == "in Python":
        tokenizer = TokenizerWrapper(tokenizer._tokenizer, chat_template=in_python)
        if name == "arguments that are no JSON":
            pytest.skip("this template reads JSON only")
    messages = TABLE[name]
    given = copy.deepcopy(messages)
    for tools in (None, TOOLS, json.dumps(TOOLS)):
        ways = ways_for(messages, tools)
        found = {way: WAYS[way](tokenizer, messages, tools, None, tmp_path / "rows") for way in ways}
        assert len(found) > 1
        assert len({tuple(ids) for ids in found.values()}) == 1, {k: tokenizer.decode(v) for k, v in found.items()}
        assert messages == given, "what the caller gave is the caller's"
        text = tokenizer.decode(next(iter(found.values())))
        assert all("find_home" in text for m in messages if m.get("tool_calls"))


@pytest.mark.parametrize("name", ["a question", "a system prompt", "parts", "a history", "an object as text"])
def test_they_are_those_of_mlx_lms_server(tmp_path: Path, name: str) -> None:
    tokenizer = build()
    served = copy.deepcopy(TABLE[name])
    process_message_content(served)
    expected = tokenizer.apply_chat_template(served, tools=TOOLS, add_generation_prompt=True)
    assert through_engine(tokenizer, TABLE[name], TOOLS, None, tmp_path) == expected


def test_objects_of_a_client_are_messages_too(tmp_path: Path) -> None:
    tokenizer = build()
    objects = [Said("system", "Be brief."), Said("user", parts("Find ", "a flat"))]
    expected = through_prompts(tokenizer, TABLE["a system prompt"], None, None, tmp_path / "rows")
    for way in ("SpecEngine", "chat"):
        assert WAYS[way](tokenizer, objects, None, None, tmp_path) == expected


def test_a_bare_tokenizer_renders_as_mlx_lms_wrapper_does(tmp_path: Path) -> None:
    """The wrapper tells the template whether the model thinks."""
    wrapped = build(CHATML + "{% if enable_thinking is false %}-{% endif %}")
    for way in ("SpecEngine", "chat", "SpeculativeModel"):
        ids = [WAYS[way](tokenizer, [ASKED], None, None, tmp_path) for tokenizer in (wrapped, wrapped._tokenizer)]
        assert ids[0] == ids[1] and wrapped.decode(ids[0]).endswith("-")


# --- mistakes

MISTAKES: dict[str, tuple[list[Any], str]] = {
    "the template's own error": (
        [{"role": "elf", "content": "hi"}],
        "the chat template rejects the messages: TemplateError",
    ),
    "none": ([], "'messages' is empty"),
    "no role": ([{"content": "hi"}], "the role of message 1 is missing"),
    "no content": ([{"role": "user"}], "the content of message 1 (user) is missing or null, not a string"),
    "a number": ([{"role": "user", "content": 7}], "the content of message 1 (user) is 7, not a string"),
    "an image": (
        [{"role": "user", "content": [{"type": "image_url", "image_url": "u"}]}],
        "the content of message 1 (user) has parts that are not {'type': 'text'",
    ),
    "no message": (["hi"], 'message 1 is "hi", not an object'),
    "a nameless call": (
        [ASKED, {"role": "assistant", "tool_calls": [{"function": {"arguments": {}}}]}, FOUND],
        "the name of tool call 1 of message 2 (assistant) is missing",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
@pytest.mark.parametrize("way", ["read_prompts", "SpecEngine", "chat"])
def test_a_mistake_is_told_in_the_same_words_everywhere(tmp_path: Path, name: str, way: str) -> None:
    messages, expected = MISTAKES[name]
    with pytest.raises(DaariError) as caught:
        WAYS[way](build(), messages, None, None, tmp_path / "rows")
    assert expected.lower() in str(caught.value).lower()


@pytest.mark.parametrize("way", WAYS)
def test_whatever_a_template_raises_is_an_error_of_ours(tmp_path: Path, way: str) -> None:
    tokenizer = build("{{ raise_exception('only on Sundays') }}")
    with pytest.raises(DaariError, match=r"chat template rejects the messages: TemplateError: only on Sundays"):
        WAYS[way](tokenizer, [ASKED], None, None, tmp_path / "rows")


@pytest.mark.parametrize("way", ["read_prompts", "SpecEngine", "chat"])
def test_a_tokenizer_without_a_template_says_so_everywhere(tmp_path: Path, way: str) -> None:
    with pytest.raises(DaariError, match=r"(?i)the tokenizer has no chat template"):
        WAYS[way](build(None), [ASKED], None, None, tmp_path / "rows")


# --- variables of the template

WITH_CONFIG = ["read_prompts", "read_sequences", "SpecEngine", "chat", "generate"]


@pytest.mark.parametrize("name", OWN_NAMES)
@pytest.mark.parametrize("way", WITH_CONFIG)
def test_a_name_that_is_no_variable_is_refused_by_name(tmp_path: Path, way: str, name: str) -> None:
    with pytest.raises(DaariError, match=f"chat_template_config has '{name}'"):
        WAYS[way](build(), [ASKED], None, {name: True}, tmp_path / "rows")


def test_every_name_that_transformers_and_mlx_lm_take_is_honoured_or_refused() -> None:
    import inspect

    taken = set(inspect.signature(build()._tokenizer.apply_chat_template).parameters) - {"kwargs"}
    assert taken - set(OWN_NAMES) == {"tools", "documents", "chat_template"}


@pytest.mark.parametrize("config", ["enable_thinking", ["enable_thinking"], {1: 2}])
def test_a_config_that_is_no_dict_is_refused(config: Any) -> None:
    with pytest.raises(DaariError, match="chat_template_config is"):
        ChatTemplate(build(), config)


@pytest.mark.parametrize("way", WITH_CONFIG)
def test_tools_documents_and_another_template_in_the_config_are_honoured(tmp_path: Path, way: str) -> None:
    tokenizer = build(CHATML + "{% for d in documents or [] %}{{ d.title }}{% endfor %}")
    file = tmp_path / "rows"
    plain = through_prompts(tokenizer, [ASKED], None, None, file)
    with_tools = WAYS[way](tokenizer, [ASKED], None, {"tools": TOOLS}, file)
    assert with_tools == through_prompts(tokenizer, [ASKED], TOOLS, None, file) != plain
    other = WAYS[way](
        tokenizer, [ASKED], None, {"chat_template": "{% for m in messages %}{{ m.content }}!{% endfor %}"}, file
    )
    assert tokenizer.decode(other).startswith("Find a flat!")
    if way != "read_sequences":  # what stands behind the header is no prompt of a whole chat
        told = WAYS[way](tokenizer, [ASKED], None, {"documents": [{"title": "news"}]}, file)
        assert tokenizer.decode(told).endswith("news")


@pytest.mark.parametrize("way", ["read_prompts", "read_sequences", "SpecEngine"])
def test_tools_given_twice_are_refused(tmp_path: Path, way: str) -> None:
    with pytest.raises(DaariError, match="'tools' are given twice"):
        WAYS[way](build(), [ASKED], TOOLS, {"tools": TOOLS}, tmp_path / "rows")


def test_a_config_that_no_template_reads_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DaariError, match="chat_template_config has 'brief', and this tokenizer has no chat template"):
        read_prompts(write(tmp_path / "rows", {"prompt": "a"}), build(None), chat_template_config={"brief": True})
    for ignore, tokenizer in ((True, build()), (False, build(None))):
        with pytest.raises(DaariError, match="--chat-template-config needs a chat template"):
            prompts.encode(tokenizer, "a", ignore_chat_template=ignore, chat_template_config={"brief": True})


def test_a_begun_answer_goes_on_where_the_template_left_it() -> None:
    tokenizer = build()
    ids = prompts.encode(tokenizer, "Find a flat", prefill_response="In ")
    turns = [ASKED, {"role": "assistant", "content": "In "}]
    assert ids == tokenizer.apply_chat_template(turns, continue_final_message=True)
    assert tokenizer.decode(ids).endswith("<|im_start|>assistant\nIn ")


def test_a_saved_cache_needs_a_template_that_prints_the_prompt() -> None:
    tokenizer = build()
    whole = prompts.encode(tokenizer, "Find a flat")
    rest = prompts.encode(tokenizer, "Find a flat", cached=True)
    assert tokenizer.decode(whole) == "<|im_start|>user\n" + tokenizer.decode(rest)
    with pytest.raises(DaariError, match="leaves the prompt out"):
        prompts.encode(build("<|im_start|>"), "Find a flat", cached=True)
