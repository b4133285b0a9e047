"""From tokens to what answers are made of: text, reasoning, tool calls, by mlx-lm's state machine and parsers."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from typing import Any, Literal

from mlx_lm.generate import TextStateMachine, make_text_state_machine

from daari_mlx.serve.tickets import Figures, News, Token

Kind = Literal["text", "reasoning", "call"]


@dataclass(slots=True)
class Call:
    """A tool call; ``arguments`` is JSON text."""

    name: str
    arguments: str
    id: str = field(default_factory=lambda: f"call_{uuid.uuid4().hex[:24]}")


@dataclass(slots=True)
class Piece:
    """A run of one kind.

    Attributes:
        sources: who drafted each token, and the text that it showed; joined it is ``text``.
    """

    kind: Kind
    text: str = ""
    sources: list[tuple[str | None, str]] = field(default_factory=list)
    call: Call | None = None


@dataclass(slots=True)
class Chunk:
    """What a round adds to an answer.

    Attributes:
        pieces: in order; none where everything is held back.
        tokens: all of the round's, the end token included.
        finish_reason: ``"stop"``, ``"length"`` or ``"tool_calls"`` at the end.
        reasoning_tokens: tokens of reasoning so far.
    """

    index: int
    pieces: list[Piece]
    tokens: list[Token]
    finish_reason: str | None
    figures: Figures
    reasoning_tokens: int


class Reader:
    """Reads one answer.

    Args:
        tokenizer: mlx-lm's wrapper.
        tools: what may be called, for parsers that look at it.
        state: where the answer begins: ``"normal"`` or ``"reasoning"``; None for bare text.
        forced: the answer, behind its reasoning, is a JSON object with a call's name and arguments.
    """

    def __init__(self, tokenizer: Any, tools: Any = None, state: str | None = "normal", forced: bool = False) -> None:
        self._parse, self._tools, self._forced = tokenizer.tool_parser, tools, forced
        self._marks = tokenizer.tool_call_start or "", tokenizer.tool_call_end or ""
        self._bare = state is None
        self._machine = None if state is None else make_text_state_machine(tokenizer).make_state(state)
        self._state = state or "normal"
        self._tool_text, self._tool_sources = "", list[tuple[str | None, str]]()
        self._calls = 0
        self._reasoning_tokens = 0
        self._pieces: list[Piece] = []

    def read(self, news: News) -> Chunk:
        """What the news add."""
        self._pieces = []
        for token in news.tokens:
            self._reasoning_tokens += self._state == "reasoning"
            shown = False
            for state, text in self._split(token.text):
                shown = self._add(state, text, token.source) or shown
            if not shown:
                self._count(token.source)
        reason = news.finish_reason
        if news.ended:
            self._end()
            if reason == "stop" and self._calls:
                reason = "tool_calls"
        return Chunk(news.index, self._pieces, news.tokens, reason, news.figures, self._reasoning_tokens)

    def _split(self, text: str) -> list[tuple[str, str]]:
        if self._bare:
            return [("normal", text)]
        self._machine, segments = TextStateMachine.split(self._machine, text)
        return [(state or "normal", part) for state, part in segments]

    def _add(self, state: str, text: str, source: str | None) -> bool:
        """Add text of one state; whether a token's source was told with it."""
        if self._state == "tool" and state != "tool":
            self._call(self._tool_text)
        self._state = state
        if state == "tool" or (self._forced and state == "normal"):
            self._tool_text += text
            return False
        if not text:
            return False
        piece = self._piece("reasoning" if state == "reasoning" else "text")
        piece.text += text
        piece.sources.append((source, text))
        return True

    def _count(self, source: str | None) -> None:
        """A token that showed nothing belongs to the newest piece, or to the one that comes."""
        if self._state == "tool" or (self._forced and self._state == "normal"):
            self._tool_sources.append((source, ""))
        else:
            self._piece("reasoning" if self._state == "reasoning" else "text").sources.append((source, ""))

    def _piece(self, kind: Kind) -> Piece:
        if not self._pieces or self._pieces[-1].kind != kind:
            self._pieces.append(Piece(kind))
        return self._pieces[-1]

    def _end(self) -> None:
        """Text that was held back comes; a call that is open ends here."""
        if not self._bare:
            self._machine, held, _ = TextStateMachine.flush(self._machine)
            self._add(self._state, held, None)
        if self._tool_text and (self._forced or self._state == "tool"):
            self._call(self._tool_text)

    def _call(self, text: str) -> None:
        """Calls that a text holds; a text that is none is shown as it was said."""
        sources, self._tool_text, self._tool_sources = self._tool_sources, "", []
        try:
            found = json.loads(text) if self._forced else self._parse(text, self._tools)
            calls = [_made(call) for call in (found if isinstance(found, list) else [found])]
        except Exception:  # a parser of mlx-lm raises what it likes
            start, end = ("", "") if self._forced else self._marks
            piece = self._piece("text")
            piece.text += f"{start}{text}{end}"
            piece.sources += sources[:-1]
            piece.sources.append((sources[-1][0] if sources else None, f"{start}{text}{end}"))
            return
        self._calls += len(calls)
        self._pieces += [Piece("call", call=call) for call in calls]
        if calls:
            self._pieces[-1].sources = sources


def _made(call: Any) -> Call:
    arguments = call.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    json.loads(text)  # clients read it
    made = Call(str(call["name"]), text)
    made.id = call.get("id") or made.id
    return made


def initial_state(tokenizer: Any, prompt: list[int]) -> str:
    """Where an answer to a prompt begins, as mlx-lm's server tells it."""
    state = "normal"
    if tokenizer.has_thinking and tokenizer.rfind_think_start(prompt) > tokenizer.rfind_think_end(prompt):
        state = "reasoning"
    return tokenizer.response_initial_state or state
