"""Stage 1: JSONL, a folder or stdin -> token sequences + where the answer starts.

A row is a chat ``{"messages": [...], "tools": [...]}``, a completion ``{"prompt": ..., "completion": ...}``
or a text ``{"text": ...}``; one file may mix them. Prompts come out as mlx-lm's commands feed them.
"""

from __future__ import annotations

import copy
import json
import struct
import sys
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Generic, TypeVar

from daari_mlx.errors import DaariError
from daari_mlx.progress import bar

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

T = TypeVar("T")
SHOWN_BAD_ROWS = 5
JSON_NAMES: dict[type, str] = {dict: "an object", list: "a list", str: "a string"}


@dataclass(frozen=True, slots=True)
class Sequence:
    """One prompt with its answer, as token ids."""

    tokens: list[
        int
    ]  # prompt + answer, up to the answer's first EOS: what a template writes after it is cut off
    answer_start: int  # tokens[answer_start:] is the answer; 0 in a text row, which is all answer and not cut
    row: int  # index among the good rows, from 0
    source: str  # "file:line", lines from 1; "stdin:line" for stdin


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt for the teacher to answer, as token ids.

    ``reference`` is the row's own answer: ``tokens + reference`` is what `read_sequences` gives. It is None
    where the row has none, where it is too long, and where the chat template does not render it as what
    follows the prompt.
    """

    tokens: list[int]  # the header of the assistant's turn included
    row: int  # index among the good rows, from 0
    source: str  # "file:line", as in Sequence
    reference: list[int] | None


@dataclass(frozen=True, slots=True)
class Rows(Generic[T]):
    """The good rows in file order, and ``"file:line: reason"`` for each bad row that was skipped."""

    items: list[T]
    skipped: list[str]

    def skipped_note(self) -> str | None:
        """What to tell the user: the number of skipped rows and the first reasons; None without any."""
        return f"skipped {_listed(self.skipped)}" if self.skipped else None


def read_sequences(
    path: str | Path,
    tokenizer: TokenizerWrapper,
    *,
    split: str = "train",
    skip_bad_rows: bool = False,
    max_length: int | None = None,
    limit: int | None = None,
    chat_template_config: dict[str, Any] | None = None,
) -> Rows[Sequence]:
    """Read rows that have an answer.

    Args:
        path: a JSONL file, a folder with ``train.jsonl`` etc. (as for ``mlx_lm.lora``), or ``"-"``: stdin.
        tokenizer: the teacher's, as ``mlx_lm.load`` returns it.
        split: which file of a folder, without ``.jsonl``.
        skip_bad_rows: leave bad rows out and report them in ``Rows.skipped``, instead of raising.
        max_length: the teacher's context in tokens; longer rows are bad rows. None for no bound.
        limit: stop after this many good rows; what follows is not looked at. None for all.
        chat_template_config: further variables for the chat template, e.g. ``{"enable_thinking": False}``.

    Raises:
        DaariError: no such file or split, nothing in it, bad rows (without ``skip_bad_rows``), no good row.
    """
    render = _Renderer(tokenizer, chat_template_config or {})

    def convert(row: dict[str, Any], index: int, source: str) -> Sequence:
        prompt, answer_of = render(row)
        _check_fits(len(prompt), 1, max_length)
        answer = answer_of()
        _check_fits(len(prompt), len(answer), max_length)
        return Sequence(prompt + answer, len(prompt), index, source)

    return _read(path, convert, split, skip_bad_rows, limit)


def read_prompts(
    path: str | Path,
    tokenizer: TokenizerWrapper,
    *,
    split: str = "train",
    skip_bad_rows: bool = False,
    max_length: int | None = None,
    limit: int | None = None,
    chat_template_config: dict[str, Any] | None = None,
) -> Rows[Prompt]:
    """Read rows for the teacher to answer; an answer in the row is optional and becomes the reference.

    Arguments and errors are those of `read_sequences`; a text row is a bad row here, since it has no prompt.
    """
    render = _Renderer(tokenizer, chat_template_config or {})

    def convert(row: dict[str, Any], index: int, source: str) -> Prompt:
        prompt, answer_of = render(row)
        if not prompt:
            raise _BadRow("has no prompt: a text row is all answer; use 'messages' or 'prompt'")
        _check_fits(len(prompt), 1, max_length)
        reference = None
        with suppress(_BadRow):
            answer = answer_of()
            _check_fits(len(prompt), len(answer), max_length)
            reference = answer
        return Prompt(prompt, index, source, reference)

    return _read(path, convert, split, skip_bad_rows, limit)


def prompt_hash(tokens: list[int]) -> int:
    """A content hash of a prompt's token ids (as little-endian int32): an unsigned 64-bit integer."""
    return int.from_bytes(blake2b(struct.pack(f"<{len(tokens)}i", *tokens), digest_size=8).digest(), "little")


def corpus_hash(sequences: Iterable[Sequence]) -> str:
    """A content hash, 32 hex digits, of all tokens and answer starts in order; file names do not enter."""
    digest = blake2b(digest_size=16)
    for s in sequences:
        digest.update(struct.pack(f"<qq{len(s.tokens)}i", len(s.tokens), s.answer_start, *s.tokens))
    return digest.hexdigest()


def _listed(bad: list[str]) -> str:
    lines = [f"{len(bad)} bad row{'s' * (len(bad) > 1)}:", *bad[:SHOWN_BAD_ROWS]]
    more = [f"... and {len(bad) - SHOWN_BAD_ROWS} more"] if len(bad) > SHOWN_BAD_ROWS else []
    return "\n  ".join(lines + more)


def _check_fits(prompt: int, answer: int, max_length: int | None) -> None:
    """Raise `_BadRow` where so many tokens of prompt and of answer are more than the context holds."""
    if max_length is None or prompt + answer <= max_length:
        return
    holds = f"the context holds {max_length}"
    if prompt >= max_length:
        raise _BadRow(f"prompt longer than the context: {prompt} tokens and 1 at least of answer, {holds}")
    what = "prompt + answer" if prompt else "text"
    raise _BadRow(f"{what} longer than the context: {prompt + answer} tokens, {holds}")


def _read(
    path: str | Path,
    convert: Callable[[dict[str, Any], int, str], T],
    split: str,
    skip: bool,
    limit: int | None,
) -> Rows[T]:
    """Run ``convert(row, index, source)`` over the lines; the bad ones are judged together at the end."""
    if limit is not None and limit < 1:
        raise DaariError(f"limit must be at least 1, found {limit}")
    items: list[T] = []
    bad: list[str] = []
    with (
        _opened(path, split) as (name, handle, total),
        bar(total=total, desc=f"reading {Path(name).name}", unit="row") as done,
    ):
        for number, line in enumerate(handle, start=1):
            done.update()
            line = line.removeprefix(BOM_UTF8).rstrip() if number == 1 else line.rstrip()
            if not line:
                continue
            try:
                items.append(convert(_parsed(line), len(items), f"{name}:{number}"))
            except _BadRow as reason:
                bad.append(f"{name}:{number}: {reason}")
            if len(items) == limit:
                break
    if not items and not bad:
        raise DaariError(f"{name} is empty: it needs one JSON object per line")
    if not items or (bad and not skip):
        mend = "Mend them, or leave them out with --skip-bad-rows." if items else "No row is good."
        raise DaariError(f"{name} has {_listed(bad)}\n{mend}")
    return Rows(items, bad)


@contextmanager
def _opened(path: str | Path, split: str) -> Iterator[tuple[str, IO[bytes], int | None]]:
    """The file's name for messages, the open file, and its number of lines (None for a pipe)."""
    if str(path) == "-":
        yield "stdin", sys.stdin.buffer, None
        return
    file = Path(path)
    if file.is_dir():
        there = sorted(found.name for found in file.glob("*.jsonl"))
        file = file / f"{split}.jsonl"
        if file.name not in there:
            has = f"it has {', '.join(there)}" if there else "it has no .jsonl file at all"
            raise DaariError(f"no {file.name} in the folder {path}: {has}. Choose another split or a file.")
    try:
        handle = file.open("rb")
    except OSError as error:
        give = f"Give a .jsonl file, a folder with {split}.jsonl, or - for stdin."
        raise DaariError(f"cannot read {file}: {error.strerror}. {give}") from error
    with handle:
        total = None
        if file.is_file():  # a named pipe can be read only once
            total = sum(1 for _ in handle)
            handle.seek(0)
        yield str(file), handle, total


class _BadRow(Exception):
    """Why a row cannot be used."""


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line.decode())
        if b"\\u" in line:
            json.dumps(row, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except UnicodeDecodeError as error:
        raise _BadRow(f"not UTF-8: byte 0x{line[error.start]:02x} at position {error.start + 1}") from error
    except json.JSONDecodeError as error:
        raise _BadRow(f"invalid JSON at column {error.colno}: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise _BadRow(f"JSON that cannot be read: {error}") from error
    return _typed(row, dict, "the row")


def _typed(value: Any, kind: type[T], what: str, *, filled: bool = True) -> T:
    if not isinstance(value, kind):
        found = "missing or null" if value is None else json.dumps(value)[:40]
        raise _BadRow(f"{what} is {found}, not {JSON_NAMES[kind]}")
    if filled and not value:
        raise _BadRow(f"{what} is empty")
    return value


def _check_messages(messages: Any) -> None:
    """Check what chat templates let pass: most of them print anything."""
    for number, message in enumerate(_typed(messages, list, "'messages'"), start=1):
        _typed(message, dict, f"message {number}")
        role = _typed(message.get("role"), str, f"the role of message {number}")
        content, what = message.get("content"), f"the content of message {number} ({role})"
        if isinstance(content, list):
            if not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in content):
                raise _BadRow(f"{what} has parts that are not {{'type': 'text', 'text': '...'}}")
        elif content is not None or not message.get("tool_calls"):
            _typed(content, str, what, filled=False)


class _Renderer:
    """Row -> token ids, with one tokenizer and its chat template."""

    def __init__(self, tokenizer: Any, config: dict[str, Any]) -> None:
        self.tokenizer, self.config = tokenizer, config

    def __call__(self, row: dict[str, Any]) -> tuple[list[int], Callable[[], list[int]]]:
        """The prompt's ids, none for a text row, and a function for the answer's; it may raise `_BadRow`."""
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
        raise _BadRow(f"unknown keys: {keys}; a row needs 'messages', 'prompt' and 'completion', or 'text'")

    def _chat(self, messages: Any, tools: Any) -> tuple[str, Callable[[], str]]:
        """The prompt's text, and a function that gives the text of prompt + answer."""
        from mlx_lm.server import process_message_content

        if not self.tokenizer.has_chat_template:
            raise _BadRow("the tokenizer has no chat template for 'messages'; use 'prompt' and 'completion'")
        _check_messages(messages)
        try:
            process_message_content(messages)  # parts are joined, the arguments of a call become an object
            calls = [str(call["function"]["name"]) for call in messages[-1].get("tool_calls") or []]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise _BadRow(f"malformed parts or tool calls: {type(error).__name__}: {error}") from error
        answered = messages[-1]["role"] == "assistant"
        prompt = self._template(messages[:-1] if answered else messages, tools, add_generation_prompt=True)

        def whole_of() -> str:
            if not answered:
                raise _BadRow("has no answer: the last message is not from the assistant")
            if not calls:
                _typed(messages[-1]["content"], str, "the answer")
            whole = self._template(messages, tools, add_generation_prompt=False)
            if lost := [name for name in calls if whole.count(name) <= prompt.count(name)]:
                raise _BadRow(f"the chat template leaves out the tool call {lost[0]}")
            return whole

        return prompt, whole_of

    def _template(self, messages: list[dict[str, Any]], tools: Any, *, add_generation_prompt: bool) -> str:
        options = self.config | {"tools": tools, "add_generation_prompt": add_generation_prompt}
        try:  # a copy, since a template in Python may write into the messages
            own = copy.deepcopy(messages)
            return str(self.tokenizer.apply_chat_template(own, tokenize=False, **options))
        except Exception as error:  # a template can raise anything
            reason = " ".join(str(error).split())[:200]
            raise _BadRow(f"the chat template rejects it: {type(error).__name__}: {reason}") from error

    def _ids(
        self, text: str, whole_of: Callable[[], str], *, plain: bool
    ) -> tuple[list[int], Callable[[], list[int]]]:
        ids = self._encode(text, plain) if text else []

        def answer_of() -> list[int]:
            answer = self._after(text, ids, whole_of(), plain)
            eos = self.tokenizer.eos_token_ids
            if plain and self.tokenizer.eos_token_id is not None and not (answer and answer[-1] in eos):
                answer.append(self.tokenizer.eos_token_id)  # as mlx_lm.lora
            end = next((i for i, token in enumerate(answer) if text and token in eos), len(answer))
            if end == 0:
                raise _BadRow("the answer is empty once it is rendered")
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
            raise _BadRow(
                f"the chat template ends the prompt in {text[at : at + 20]!r}, which the answer turns into "
                f"{whole[at : at + 20]!r}; let the teacher answer instead: --answers teacher"
            )
        # One token spans the border, but in use the teacher gets ``ids`` and goes on from there.
        answer = self._encode(whole[len(text) :], plain=False)
        if self.tokenizer.decode(ids + answer) != self.tokenizer.decode(found):
            raise _BadRow("the tokenizer does not give back the answer where it is split from the prompt")
        return answer

    def _encode(self, text: str, plain: bool) -> list[int]:
        """As mlx-lm's stream_generate tokenises plain text, and its server what a chat template gave."""
        bos = self.tokenizer.bos_token
        special = plain and not (bos and text.startswith(bos))
        return list(self.tokenizer.encode(text, add_special_tokens=special))
