"""JSONL, a folder or stdin -> token sequences + where the answer starts.

A row is a chat ``{"messages": [...], "tools": [...]}``, a completion ``{"prompt": ..., "completion": ...}``
or a text ``{"text": ...}``; one file may mix them. Prompts come out as mlx-lm's commands feed them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.given import check_whole
from daari_mlx.ground.progress import bar
from daari_mlx.text.identity import Identity, prompt_hash
from daari_mlx.text.lines import opened
from daari_mlx.text.messages import BadInput
from daari_mlx.text.rows import LORA, Features, RowReader, parse_row

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

T = TypeVar("T")
SHOWN_BAD_ROWS = SHOWN_FIELDS = 5


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
    where the row has none, where it is too long, where the chat template does not render it as what follows
    the prompt, and where the tokenizer cannot split it from the prompt.
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
    """The good rows of a file.

    Attributes:
        items: in the order of the file.
        skipped: ``"file:line: reason"`` for each bad row that was skipped.
        unread: the fields beside the text of text rows, which nothing is learnt from, and in how many rows each is.
    """

    items: list[T]
    skipped: list[str]
    unread: dict[str, int] = field(default_factory=dict)

    def notes(self) -> list[str]:
        """What to tell the user: which rows were skipped, and which field is learnt where there is a choice."""
        return [note for note in (self.skipped_note(), self.learnt_note()) if note is not None]

    def learnt_note(self) -> str | None:
        """That text rows are learnt whole and without their other fields; None where they have no others."""
        if not self.unread:
            return None
        named = ", ".join(f"{name!r} (in {count:,} rows)" for name, count in list(self.unread.items())[:SHOWN_FIELDS])
        return (
            f"text rows are learnt as a whole, and their other fields are not read: {named}. To learn one field as the "
            "answer to another, name both: --prompt-feature and --completion-feature"
        )

    def skipped_note(self) -> str | None:
        """What to tell the user: the number of skipped rows and the first reasons; None without any."""
        return f"skipped {listed(self.skipped)}" if self.skipped else None


def read_sequences(
    path: str | Path,
    tokenizer: TokenizerWrapper,
    *,
    split: str = "train",
    skip_bad_rows: bool = False,
    max_length: int | None = None,
    limit: int | None = None,
    chat_template_config: dict[str, Any] | None = None,
    features: Features = LORA,
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
        features: which fields of a row are what.

    Raises:
        DaariError: no such file or split, nothing in it, bad rows (without ``skip_bad_rows``), no good row.
    """
    read = RowReader(tokenizer, chat_template_config, features)

    def convert(row: dict[str, Any], index: int, source: str) -> tuple[Sequence, tuple[str, ...]]:
        found = read(row)
        check_fits(len(found.prompt), 1, max_length)
        prompt, answer = found.answer()
        check_fits(len(prompt), len(answer), max_length)
        return Sequence(prompt + answer, len(prompt), index, source, found.identity), found.unread

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
    features: Features = LORA,
) -> Rows[Prompt]:
    """Read rows for the teacher to answer; an answer in the row is optional and becomes the reference.

    Arguments and errors are those of `read_sequences`; a text row is a bad row here, since it has no prompt.
    """
    read = RowReader(tokenizer, chat_template_config, features)

    def convert(row: dict[str, Any], index: int, source: str) -> tuple[Prompt, tuple[str, ...]]:
        found = read(row)
        if not found.prompt:
            raise BadInput(
                f"has no prompt: a text row is all answer; use {features.chat!r} or {features.prompt!r}, or name the "
                "field that is the prompt with --prompt-feature; compile learns text as it is with --answers reference"
            )
        check_fits(len(found.prompt), 1, max_length)
        reference = None
        with suppress(BadInput):
            prompt, answer = found.answer()
            check_fits(len(prompt), len(answer), max_length)
            reference = answer if prompt == found.prompt else None
        return Prompt(found.prompt, index, source, reference, found.identity), ()

    return _read(path, convert, split, skip_bad_rows, limit)


def listed(bad: list[str]) -> str:
    """How many bad rows there are, and what is wrong with the first."""
    lines = [f"{len(bad)} bad row{'s' * (len(bad) > 1)}:", *bad[:SHOWN_BAD_ROWS]]
    more = [f"... and {len(bad) - SHOWN_BAD_ROWS} more"] if len(bad) > SHOWN_BAD_ROWS else []
    return "\n  ".join(lines + more)


def check_fits(prompt: int, answer: int, max_length: int | None) -> None:
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
    convert: Callable[[dict[str, Any], int, str], tuple[T, tuple[str, ...]]],
    split: str,
    skip: bool,
    limit: int | None,
) -> Rows[T]:
    """Run ``convert(row, index, source)`` over the lines; the bad ones are judged together at the end.

    Args:
        convert: gives an item, and the fields of its row that were not read.
    """
    if limit is not None:
        check_whole("limit", limit, 1)
    items: list[T] = []
    bad: list[str] = []
    unread: Counter[str] = Counter()
    seen = 0
    with (
        opened(path, split) as lines,
        bar(total=lines.total, desc=f"reading {Path(lines.name).name}", unit="row") as done,
    ):
        for number, line in lines:
            done.update(number - seen)
            seen = number
            try:
                item, left = convert(parse_row(line), len(items), f"{lines.name}:{number}")
                items.append(item)
                unread.update(left)
            except BadInput as error:
                bad.append(f"{lines.name}:{number}: {error.reason}")
            if len(items) == limit:
                break
    if not items and not bad:
        raise DaariError(f"{lines.name} is empty: it needs one JSON object per line")
    if not items or (bad and not skip):
        mend = "Mend them, or leave them out with --skip-bad-rows." if items else "No row is good."
        raise DaariError(f"{lines.name} has {listed(bad)}\n{mend}")
    return Rows(items, bad, dict(unread))
