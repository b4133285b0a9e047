"""One row of a data file: from its line to the token ids of prompt and answer, or why it is a bad row."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    pass

T = TypeVar("T")
JSON_NAMES: dict[type, str] = {dict: "an object", list: "a list", str: "a string"}


class BadRow(Exception):
    """Why a row cannot be used."""


def parse_row(line: bytes) -> dict[str, Any]:
    """The JSON object of one line; raises `BadRow`."""
    try:
        row = json.loads(line.decode())
        if b"\\u" in line:
            json.dumps(row, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except UnicodeDecodeError as error:
        raise BadRow(f"not UTF-8: byte 0x{line[error.start]:02x} at position {error.start + 1}") from error
    except json.JSONDecodeError as error:
        raise BadRow(f"invalid JSON at column {error.colno}: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise BadRow(f"JSON that cannot be read: {error}") from error
    return _typed(row, dict, "the row")


def _typed(value: Any, kind: type[T], what: str, *, filled: bool = True) -> T:
    if not isinstance(value, kind):
        found = "missing or null" if value is None else json.dumps(value)[:40]
        raise BadRow(f"{what} is {found}, not {JSON_NAMES[kind]}")
    if filled and not value:
        raise BadRow(f"{what} is empty")
    return value


def _check_messages(messages: Any) -> None:
    """Check what chat templates let pass: most of them print anything."""
    for number, message in enumerate(_typed(messages, list, "'messages'"), start=1):
        _typed(message, dict, f"message {number}")
        role = _typed(message.get("role"), str, f"the role of message {number}")
        content, what = message.get("content"), f"the content of message {number} ({role})"
        if isinstance(content, list):
            if not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in content):
                raise BadRow(f"{what} has parts that are not {{'type': 'text', 'text': '...'}}")
        elif content is not None or not message.get("tool_calls"):
            _typed(content, str, what, filled=False)


class Renderer:
    """Row -> token ids, with one tokenizer and its chat template."""

    def __init__(self, tokenizer: Any, config: dict[str, Any]) -> None:
        self.tokenizer, self.config = tokenizer, config

    def __call__(self, row: dict[str, Any]) -> tuple[list[int], Callable[[], list[int]]]:
        """The prompt's ids, none for a text row, and a function for the answer's; it may raise `BadRow`."""
        # The order is mlx_lm.lora's; a prompt alone is a row too, for the teacher to answer.
        if "prompt" in row and ("completion" in row or not {"messages", "text"} & row.keys()):
            prompt, completion = _typed(row["prompt"], str, "'prompt'"), row.get("completion")
            if not self.tokenizer.has_chat_template:
                return self._ids(prompt, lambda: prompt + _typed(completion, str, "'completion'"), plain=True)
            turns = [{"role": "user", "content": prompt}, {"role": "assistant", "content": completion}]
            row = {"messages": turns[: 1 if completion is None else 2], "tools": row.get("tools")}
        if "messages" in row:
            return self._ids(*self._chat(row["messages"], row.get("tools")), plain=False)
        if "text" in row:
            text = _typed(row["text"], str, "'text'")
            return self._ids("", lambda: text, plain=True)
        keys = ", ".join(map(repr, list(row)[:5]))
        raise BadRow(f"unknown keys: {keys}; a row needs 'messages', 'prompt' and 'completion', or 'text'")

    def _chat(self, messages: Any, tools: Any) -> tuple[str, Callable[[], str]]:
        """The prompt's text, and a function that gives the text of prompt + answer."""
        from mlx_lm.server import process_message_content

        if not self.tokenizer.has_chat_template:
            raise BadRow("the tokenizer has no chat template for 'messages'; use 'prompt' and 'completion'")
        _check_messages(messages)
        try:
            process_message_content(messages)  # parts are joined, the arguments of a call become an object
            calls = [str(call["function"]["name"]) for call in messages[-1].get("tool_calls") or []]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise BadRow(f"malformed parts or tool calls: {type(error).__name__}: {error}") from error
        answered = messages[-1]["role"] == "assistant"
        prompt = self._template(messages[:-1] if answered else messages, tools, add_generation_prompt=True)

        def whole_of() -> str:
            if not answered:
                raise BadRow("has no answer: the last message is not from the assistant")
            if not calls:
                _typed(messages[-1]["content"], str, "the answer")
            whole = self._template(messages, tools, add_generation_prompt=False)
            if lost := [name for name in calls if whole.count(name) <= prompt.count(name)]:
                raise BadRow(f"the chat template leaves out the tool call {lost[0]}")
            return whole

        return prompt, whole_of

    def _template(self, messages: list[dict[str, Any]], tools: Any, *, add_generation_prompt: bool) -> str:
        options = self.config | {"tools": tools, "add_generation_prompt": add_generation_prompt}
        try:  # a copy, since a template in Python may write into the messages
            own = copy.deepcopy(messages)
            return str(self.tokenizer.apply_chat_template(own, tokenize=False, **options))
        except Exception as error:  # a template can raise anything
            reason = " ".join(str(error).split())[:200]
            raise BadRow(f"the chat template rejects it: {type(error).__name__}: {reason}") from error

    def _ids(self, text: str, whole_of: Callable[[], str], *, plain: bool) -> tuple[list[int], Callable[[], list[int]]]:
        ids = self._encode(text, plain) if text else []

        def answer_of() -> list[int]:
            answer = self._after(text, ids, whole_of(), plain)
            eos = self.tokenizer.eos_token_ids
            if plain and self.tokenizer.eos_token_id is not None and not (answer and answer[-1] in eos):
                answer.append(self.tokenizer.eos_token_id)  # as mlx_lm.lora
            end = next((i for i, token in enumerate(answer) if text and token in eos), len(answer))
            if end == 0:
                raise BadRow("the answer is empty once it is rendered")
            return answer[: end + 1]

        return ids, answer_of

    def _after(self, text: str, ids: list[int], whole: str, plain: bool) -> list[int]:
        """The ids that follow the prompt's ``ids`` in the whole row."""
        found = self._encode(whole, plain)
        if found[: len(ids)] == ids:
            return found[len(ids) :]
        if not whole.startswith(text):
            pairs = enumerate(zip(text, whole, strict=False))
            at = next((i for i, (before, after) in pairs if before != after), len(whole))
            raise BadRow(
                f"the chat template ends the prompt in {text[at : at + 20]!r}, which the answer turns into "
                f"{whole[at : at + 20]!r}; let the teacher answer instead: --answers teacher"
            )
        # One token spans the border, but in use the teacher gets ``ids`` and goes on from there.
        answer = self._encode(whole[len(text) :], plain=False)
        if self.tokenizer.decode(ids + answer) != self.tokenizer.decode(found):
            raise BadRow("the tokenizer does not give back the answer where it is split from the prompt")
        return answer

    def _encode(self, text: str, plain: bool) -> list[int]:
        """As mlx-lm's stream_generate tokenises plain text, and its server what a chat template gave."""
        bos = self.tokenizer.bos_token
        special = plain and not (bos and text.startswith(bos))
        return list(self.tokenizer.encode(text, add_special_tokens=special))
