"""Stage 1: JSONL, a folder or stdin -> token sequences + where the answer starts.

A row is a chat ``{"messages": [...], "tools": [...]}``, a completion ``{"prompt": ..., "completion": ...}``
or a text ``{"text": ...}``; one file may mix them. Prompts come out as mlx-lm's commands feed them.
"""

from __future__ import annotations

import os
import sys
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Generic, TypeVar

from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.given import check_name, check_whole
from daari_mlx.ground.progress import bar
from daari_mlx.ground.regular import FOLDER, check_regular, open_regular, what_is
from daari_mlx.text.identity import Identity, prompt_hash
from daari_mlx.text.messages import BadInput
from daari_mlx.text.rows import RowReader, parse_row

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

T = TypeVar("T")
SHOWN_BAD_ROWS = 5
MAX_LINE = 64 << 20  # bytes
INSTEAD = "Give a .jsonl file, a folder with such files, or - for stdin: what comes by a pipe goes there."


@dataclass(frozen=True, slots=True)
class Sequence:
    """One prompt with its answer, as token ids."""

    tokens: list[int]  # prompt + answer, up to the answer's first EOS: what a template writes after it is cut off
    answer_start: int  # tokens[answer_start:] is the answer; 0 in a text row, which is all answer and not cut
    row: int  # index among the good rows, from 0
    source: str  # "file:line", lines from 1; "stdin:line" for stdin
    identity: Identity | None = field(default=None, compare=False)  # what its row says; None without a row

    @property
    def prompt(self) -> list[int]:
        """The tokens before the answer."""
        return self.tokens[: self.answer_start]

    @property
    def said(self) -> tuple[int, ...]:
        """Hashes of what it says, whatever a clock in the template prints; of its tokens where it comes from no row."""
        known = self.identity
        if known is None:
            return self.answer_start, prompt_hash(self.tokens)
        return known.prompt, known.answer, known.template


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
    identity: Identity | None = field(default=None, compare=False)  # as in Sequence

    @property
    def said(self) -> tuple[int, ...]:
        """Hashes of what it says, as in Sequence; its own answer does not enter."""
        known = self.identity
        return (prompt_hash(self.tokens),) if known is None else (known.prompt, known.template)


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
        chat_template_config: further variables for the chat template, e.g. ``{"enable_thinking": False}``; see
            :func:`daari_mlx.text.template.check_config`.

    Raises:
        DaariError: no such file or split, nothing in it, bad rows (without ``skip_bad_rows``), no good row.
    """
    read = RowReader(tokenizer, chat_template_config)

    def convert(row: dict[str, Any], index: int, source: str) -> Sequence:
        found = read(row)
        _check_fits(len(found.prompt), 1, max_length)
        prompt, answer = found.answer()
        _check_fits(len(prompt), len(answer), max_length)
        return Sequence(prompt + answer, len(prompt), index, source, found.identity)

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
    read = RowReader(tokenizer, chat_template_config)

    def convert(row: dict[str, Any], index: int, source: str) -> Prompt:
        found = read(row)
        if not found.prompt:
            raise BadInput("has no prompt: a text row is all answer; use 'messages' or 'prompt'")
        _check_fits(len(found.prompt), 1, max_length)
        reference = None
        with suppress(BadInput):
            prompt, answer = found.answer()
            _check_fits(len(prompt), len(answer), max_length)
            reference = answer if prompt == found.prompt else None
        return Prompt(found.prompt, index, source, reference, found.identity)

    return _read(path, convert, split, skip_bad_rows, limit)


def _listed(bad: list[str]) -> str:
    lines = [f"{len(bad)} bad row{'s' * (len(bad) > 1)}:", *bad[:SHOWN_BAD_ROWS]]
    more = [f"... and {len(bad) - SHOWN_BAD_ROWS} more"] if len(bad) > SHOWN_BAD_ROWS else []
    return "\n  ".join(lines + more)


def _check_fits(prompt: int, answer: int, max_length: int | None) -> None:
    """Raise `BadInput` where so many tokens of prompt and of answer are more than the context holds."""
    if max_length is None or prompt + answer <= max_length:
        return
    holds = f"the context holds {max_length}"
    if prompt >= max_length:
        raise BadInput(f"prompt longer than the context: {prompt} tokens and 1 at least of answer, {holds}")
    what = "prompt + answer" if prompt else "text"
    raise BadInput(f"{what} longer than the context: {prompt + answer} tokens, {holds}")


def _read(
    path: str | Path,
    convert: Callable[[dict[str, Any], int, str], T],
    split: str,
    skip: bool,
    limit: int | None,
) -> Rows[T]:
    """Run ``convert(row, index, source)`` over the lines; the bad ones are judged together at the end."""
    if limit is not None:
        check_whole("limit", limit, 1)
    items: list[T] = []
    bad: list[str] = []
    with (
        _opened(path, split) as (name, handle, total),
        bar(total=total, desc=f"reading {Path(name).name}", unit="row") as done,
    ):
        for number, line in enumerate(lines_of(handle, name), start=1):
            done.update()
            line = line.removeprefix(BOM_UTF8).rstrip() if number == 1 else line.rstrip()
            if not line:
                continue
            try:
                items.append(convert(parse_row(line), len(items), f"{name}:{number}"))
            except BadInput as error:
                bad.append(f"{name}:{number}: {error.reason}")
            if len(items) == limit:
                break
    if not items and not bad:
        raise DaariError(f"{name} is empty: it needs one JSON object per line")
    if not items or (bad and not skip):
        mend = "Mend them, or leave them out with --skip-bad-rows." if items else "No row is good."
        raise DaariError(f"{name} has {_listed(bad)}\n{mend}")
    return Rows(items, bad)


def check_data(path: str | Path, split: str) -> None:
    """What can be told of data without a tokenizer, so that it is told before a model is loaded.

    Raises:
        DaariError: there is no such file or split, or what is there is no regular file.
    """
    if str(path) != "-":
        check_regular(_file(path, split), "data", instead=INSTEAD)


def _file(path: str | Path, split: str) -> Path:
    """The file itself, or that of a split in a folder."""
    check_name(path, "data")
    file = Path(path)
    if what_is(file) == FOLDER:
        there = sorted(name for name in os.listdir(file) if name.endswith(".jsonl"))
        file = file / f"{split}.jsonl"
        if file.name not in there:
            has = f"it has {', '.join(there)}" if there else "it has no .jsonl file at all"
            raise DaariError(f"no {file.name} in the folder {path}: {has}. Choose another split or a file.")
    return file


@contextmanager
def _opened(path: str | Path, split: str) -> Iterator[tuple[str, IO[bytes], int | None]]:
    """The file's name for messages, the open file, and its number of lines (None for stdin)."""
    if str(path) == "-":
        yield "stdin", sys.stdin.buffer, None
        return
    file = _file(path, split)
    with open_regular(file, "data", instead=INSTEAD) as handle:
        total = sum(1 for _ in lines_of(handle, str(file)))
        handle.seek(0)
        yield str(file), handle, total


def lines_of(handle: IO[bytes], name: str) -> Iterator[bytes]:
    """The lines of a file, of which none may fill the memory.

    Raises:
        DaariError: a line has more than ``MAX_LINE`` bytes.
    """
    number = 0
    while line := handle.readline(MAX_LINE + 1):
        number += 1
        if len(line) > MAX_LINE:
            raise DaariError(
                f"{name}:{number} has more than {MAX_LINE >> 20} MB: a row is one JSON object on a line of its own."
            )
        yield line
