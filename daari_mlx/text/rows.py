"""One row of a data file: from its line to the token ids of prompt and answer, or why it is a bad row."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Any

from daari_mlx.text.identity import Identity, content_hash
from daari_mlx.text.messages import BadInput, Messages, called, canonical, read_messages, typed
from daari_mlx.text.prefixes import common_length
from daari_mlx.text.template import ChatTemplate

LINE = "\n"  # stands before a text that is not the beginning
CLOCK = 16  # characters of a moving clock that two renderings may have in common by chance


@dataclass(frozen=True, slots=True)
class Features:
    """Which fields of a row are what, as mlx_lm.lora's ``prompt_feature``, ``completion_feature`` and so on name them.

    Attributes:
        prompt, completion: of a completion.
        chat: of the messages of a chat.
        text: of a text.
    """

    prompt: str = "prompt"
    completion: str = "completion"
    chat: str = "messages"
    text: str = "text"


LORA = Features()


@dataclass(frozen=True, slots=True)
class Row:
    """A row that has been read.

    Attributes:
        prompt: token ids of its prompt; none for a text row.
        answer: gives the ids of its answer, and those of the prompt where a token of the row spans both and the
            tokenizer cannot split it; it may raise `BadInput`.
        identity: what it says.
        unread: fields of a text row that nothing is learnt from.
    """

    prompt: list[int]
    answer: Callable[[], tuple[list[int], list[int]]]
    identity: Identity
    unread: tuple[str, ...] = ()


def parse_row(line: bytes) -> dict[str, Any]:
    """The JSON object of one line; raises `BadInput`."""
    try:
        row = strict_json(line.decode())
        if b"\\u" in line:
            json.dumps(row, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except UnicodeDecodeError as error:
        raise BadInput(f"not UTF-8: byte 0x{line[error.start]:02x} at position {error.start + 1}") from error
    except json.JSONDecodeError as error:
        raise BadInput(f"invalid JSON at column {error.colno}: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise BadInput(f"JSON that cannot be read: {error}") from error
    return typed(row, dict, "the row")


def strict_json(text: str) -> Any:
    """What JSON says; numbers that other readers refuse, NaN and what no float holds, are refused here too.

    Raises:
        ValueError, RecursionError: it is none.
    """
    return json.loads(text, parse_constant=_no_number, parse_float=_finite)


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no JSON, though some programs write it; give a number or null")


def _finite(text: str) -> float:
    number = float(text)
    return number if isfinite(number) else _no_number(text)


class RowReader:
    """Row -> token ids, with one tokenizer and its chat template.

    Args:
        tokenizer: the teacher's.
        config: further variables for the template; see :class:`daari_mlx.text.template.ChatTemplate`.
        features: which fields of a row are what.
    """

    def __init__(self, tokenizer: Any, config: dict[str, Any] | None, features: Features = LORA) -> None:
        self.features = features
        self.template = ChatTemplate(tokenizer, config)
        self.tokenizer = self.template.tokenizer
        self._source = content_hash(self.template.source)

    def __call__(self, row: dict[str, Any]) -> Row:
        """The row's prompt and answer; raises `BadInput`."""
        its = self.features
        # The order is mlx_lm.lora's; a prompt alone is a row too, for the teacher to answer.
        if its.prompt in row and (its.completion in row or not {its.chat, its.text} & row.keys()):
            return self._completion(row)
        if its.chat in row:
            return self._chat(row[its.chat], row.get("tools"))
        if its.text in row:
            text = typed(row[its.text], str, repr(its.text))
            unread = tuple(name for name in row if name != its.text)
            return self._row("", lambda: text, Identity(content_hash("text", text), 0, 0), plain=True, unread=unread)
        keys = ", ".join(map(repr, list(row)[:5]))
        raise BadInput(
            f"unknown keys: {keys}; a row needs {its.chat!r}, {its.prompt!r} and {its.completion!r}, or {its.text!r}; "
            "name other fields with --prompt-feature, --completion-feature, --chat-feature, --text-feature"
        )

    def _completion(self, row: dict[str, Any]) -> Row:
        its, tools = self.features, row.get("tools")
        prompt, completion = typed(row[its.prompt], str, repr(its.prompt)), row.get(its.completion)
        if self.tokenizer.has_chat_template:
            turns = [{"role": "user", "content": prompt}]
            if completion is not None:
                said = typed(completion, str, repr(its.completion), filled=False)
                turns.append({"role": "assistant", "content": said})
            return self._chat(turns, tools)
        if tools:
            raise BadInput("the tokenizer has no chat template, which alone could show 'tools'; leave them out")
        identity = Identity(content_hash("prompt", prompt), content_hash(completion), 0)
        return self._row(prompt, lambda: prompt + typed(completion, str, repr(its.completion)), identity, plain=True)

    def _chat(self, given: Any, tools: Any) -> Row:
        messages = read_messages(given)
        calls = called(messages[-1])
        answered = messages[-1]["role"] == "assistant"
        asked = messages[:-1] if answered else messages
        if not asked:
            raise BadInput("the chat begins with the answer: there is no prompt")
        prompt = self.template.prompt(asked, tools)
        shown = self.template.tools_of(tools)
        config = {name: value for name, value in self.template.config.items() if name != "tools"}
        identity = Identity(
            content_hash("messages", canonical(asked), shown, config),
            content_hash(canonical(messages[len(asked) :])),
            self._source,
        )

        def whole_of() -> str:
            if not answered:
                raise BadInput("has no answer: the last message is not from the assistant; --answers teacher gives one")
            if not calls:
                typed(messages[-1]["content"], str, "the answer")
            whole = prompt + self._said(prompt, asked, messages, tools)
            if lost := [name for name in calls if whole.count(name) <= prompt.count(name)]:
                raise BadInput(f"the chat template leaves out the tool call {lost[0]}")
            return whole

        return self._row(prompt, whole_of, identity, plain=False)

    def _said(self, prompt: str, asked: Messages, messages: Messages, tools: Any) -> str:
        """What the template writes behind the prompt for the answer.

        Where the template prints a clock, the prompt may have changed meanwhile; a second rendering shows where.
        """
        whole = self.template.whole(messages, tools)
        if whole.startswith(prompt):
            return whole[len(prompt) :]
        again = self.template.prompt(asked, tools)
        if prompt != again:
            before, behind = common_length(prompt, again), common_length(prompt[::-1], again[::-1])
            for length in range(behind, max(0, behind - CLOCK), -1):
                at = whole.find(prompt[-length:], before)
                if at >= 0 and whole.startswith(prompt[:before]):
                    return whole[at + length :]
        at = common_length(prompt, whole)
        raise BadInput(
            f"the chat template ends the prompt in {prompt[at : at + 20]!r}, which the answer turns into "
            f"{whole[at : at + 20]!r}; let the teacher answer instead: --answers teacher"
        )

    def _row(
        self, text: str, whole_of: Callable[[], str], identity: Identity, *, plain: bool, unread: tuple[str, ...] = ()
    ) -> Row:
        ids = self._encode(text, plain) if text else []

        def answer_of() -> tuple[list[int], list[int]]:
            prompt, answer = self._split(text, ids, whole_of(), plain)
            eos = self.tokenizer.eos_token_ids
            if plain and self.tokenizer.eos_token_id is not None and not (answer and answer[-1] in eos):
                answer.append(self.tokenizer.eos_token_id)  # as mlx_lm.lora
            end = next((i for i, token in enumerate(answer) if text and token in eos), len(answer))
            if end == 0:
                raise BadInput("the answer is empty once it is rendered")
            return prompt, answer[: end + 1]

        return Row(ids, answer_of, identity, unread)

    def _split(self, text: str, ids: list[int], whole: str, plain: bool) -> tuple[list[int], list[int]]:
        """The ids of the prompt, and those that follow them in the whole row.

        In use the teacher gets ``ids`` and goes on from there, so where a token of the row spans both, the answer is
        tokenised by itself. Where that gives other text (tokenizers that begin every text with a space), the row is
        tokenised whole, as mlx_lm.lora does, and what it has in common with ``ids`` is the prompt: the answer then
        begins within the prompt's last word.
        """
        found, head = self._encode(whole, plain), self._without_end(ids, text)
        if found[: len(head)] == head:
            return ids, found[len(head) :]
        said = whole[len(text) :]
        for answer in (self._encode(said, plain=False), self._inside(said)):
            if self.tokenizer.decode(head + answer) == self.tokenizer.decode(found):
                return ids, answer
        shared = common_length(head, found)
        return found[:shared], found[shared:]

    def _without_end(self, ids: list[int], text: str) -> list[int]:
        """The ids without an end token that the tokenizer appends to every text; in use the prompt keeps it."""
        end = self.tokenizer.eos_token_id
        appended = ids[-1:] == [end] and not text.endswith(str(self.tokenizer.eos_token))
        return ids[:-1] if appended else ids

    def _inside(self, text: str) -> list[int]:
        """The ids of a text that does not stand at the beginning, where tokenizers may add a space."""
        before = self.template.ids(LINE)
        ids = self.template.ids(LINE + text)
        return ids[len(before) :] if ids[: len(before)] == before else ids

    def _encode(self, text: str, plain: bool) -> list[int]:
        """As mlx-lm's stream_generate tokenises plain text, and its server what a chat template gave."""
        bos = self.tokenizer.bos_token
        if plain and not (bos and text.startswith(bos)):
            return list(self.tokenizer.encode(text, add_special_tokens=True, verbose=False))
        return self.template.ids(text)
