"""Where thinking ends and an answer begins: the think blocks of reasoning models, read off their tokens."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mlx_lm.tokenizer_utils import TokenizerWrapper

from daari_mlx.ground.errors import DaariError

MARKS = (  # of models whose marks mlx-lm's tokenizers do not tell
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
)
GAPS = ("\n", "\n\n", " ", "\n\n\n")  # what stands between a think block and the answer
MOST_GAPS = 2  # tokens of it
_OPEN = re.compile(r"[<\[◁]\|?(?!/|end)[\w:]*(think|thought|reason)\w*(:start)?\|?[>\]▷]\s*$", re.IGNORECASE)


@dataclass(frozen=True)
class Place:
    """Where an answer stands.

    Attributes:
        lead: how many of its tokens stand before what a schema holds: a think block, and the white space behind it.
        thinking: whether a think block is open: anything may come but the end of the answer.
        also: tokens that may come besides those that the schema allows.
    """

    lead: int
    thinking: bool = False
    also: tuple[int, ...] = ()


@dataclass(frozen=True)
class Thinking:
    """The marks around the thinking of one model.

    Attributes:
        start, end: the tokens that open and close a think block; ``end`` is empty where the model does not think.
        gaps: the tokens of white space that may stand between a think block and the answer.
        barriers: special tokens besides the marks: a think block before one of them is an earlier turn's, or quoted.
    """

    start: tuple[int, ...] = ()
    end: tuple[int, ...] = ()
    gaps: tuple[int, ...] = ()
    barriers: frozenset[int] = frozenset()

    def opening(self, prompt: list[int]) -> Opening:
        """How an answer to these tokens begins: within a think block, behind one, or the model may open one."""
        tail = prompt[1 + max((at for at, token in enumerate(prompt) if token in self.barriers), default=-1) :]
        opened, closed = _last(tail, self.start), _last(tail, self.end)
        return Opening(self, within=opened > closed, may_open=opened < 0 and closed < 0)


@dataclass(frozen=True)
class Opening:
    """How one answer begins.

    Attributes:
        thinking: the model's marks.
        within: the prompt left a think block open.
        may_open: there is none yet, and the model may open one with its first token.
    """

    thinking: Thinking
    within: bool
    may_open: bool

    def place(self, answer: list[int]) -> Place:
        """Where an answer stands behind these tokens of it."""
        marks = self.thinking
        within = self.within or (self.may_open and answer[:1] == list(marks.start[:1]))
        if not marks.end or not within:
            asked = self.may_open and not answer
            return Place(0, also=marks.start[:1] if asked else ())
        closed = _first(answer, marks.end)
        if closed < 0:
            return Place(len(answer), thinking=True)
        lead = start = closed + len(marks.end)
        while lead < min(len(answer), start + MOST_GAPS) and answer[lead] in marks.gaps:
            lead += 1
        return Place(lead, also=marks.gaps if lead == len(answer) < start + MOST_GAPS else ())


def thinking_of(tokenizer: TokenizerWrapper) -> Thinking:
    """The marks of a tokenizer's model, as mlx-lm knows them, or of :data:`MARKS`.

    Raises:
        DaariError: its answers stand between marks of their own, so that nobody can tell where they begin.
    """
    if tokenizer.structural_markers:
        raise DaariError(
            f"This model writes its answers between {' and '.join(tokenizer.structural_markers[:2])}, which a JSON "
            "schema has no place for: leave the schema out."
        )
    start, end = tokenizer.think_start_tokens, tokenizer.think_end_tokens
    vocabulary = tokenizer.get_vocab()
    for opens, closes in () if end else MARKS:
        words = [*re.findall(r"[<\[][^>\]]*[>\]]", opens + closes)]
        if all(word in vocabulary for word in words):
            start, end = (tuple(tokenizer.encode(mark, add_special_tokens=False)) for mark in (opens, closes))
            break
    if not end:
        return Thinking()
    gaps = [tokenizer.encode(gap, add_special_tokens=False) for gap in GAPS]
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    barriers = (special | set(tokenizer.all_special_ids) | set(tokenizer.eos_token_ids)) - {*start, *end}
    return Thinking(tuple(start), tuple(end), tuple(gap[0] for gap in gaps if len(gap) == 1), frozenset(barriers))


def refuse_unknown_block(text: str, opening: Opening) -> None:
    """Raise :class:`DaariError` where a prompt's text ends in a mark that opens a think block and is none we know."""
    if opening.may_open and (found := _OPEN.search(text)):
        raise DaariError(
            f"The prompt ends in {found[0].strip()!r}, which is no think mark that this tokenizer has tokens for, so "
            "that it cannot be known where thinking ends and the JSON begins: turn thinking off in the chat template, "
            "or leave the schema out."
        )


def _first(tokens: list[int], mark: tuple[int, ...]) -> int:
    """Where ``mark`` first stands in ``tokens``; -1 where it does not."""
    at = -1
    while True:
        try:
            at = tokens.index(mark[0], at + 1)
        except ValueError:
            return -1
        if tuple(tokens[at : at + len(mark)]) == mark:
            return at


def _last(tokens: list[int], mark: tuple[int, ...]) -> int:
    """Where ``mark`` last stands in ``tokens``; -1 where it does not."""
    places = range(len(tokens) - len(mark), -1, -1) if mark else range(0)
    return next((at for at in places if tuple(tokens[at : at + len(mark)]) == mark), -1)
