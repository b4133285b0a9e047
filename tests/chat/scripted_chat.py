"""An engine for chats that says what the test says; run as a program, a chat at a terminal whose engine tells what it
was asked."""

from __future__ import annotations

import fcntl
import json
import sys
import termios
import time
from dataclasses import dataclass, field

from daari_mlx.ground.accept import Statistics


@dataclass
class Response:
    text: str
    prompt_tokens: int = 7
    generation_tokens: int = 1
    generation_tps: float = 10.0
    tokens_per_forward: float = 2.0
    acceptance_rate: float = 0.5
    drafting_off: str | None = None
    finish_reason: str | None = None
    token: int = 5
    source: str | None = None
    statistics: Statistics = field(default_factory=Statistics)


class Detokenizer:
    """Token n is the n-th word said."""

    def __init__(self, words: list[str]) -> None:
        self.words, self.text = words, ""

    def reset(self) -> None:
        self.text = ""

    def add_token(self, token: int) -> None:
        self.text += self.words[token]

    def finalize(self) -> None:
        pass


class Tokenizer:
    """A word is a token; its template takes any message."""

    eos_token_ids = frozenset([-1])

    def __init__(self, has_chat_template: bool = True) -> None:
        self.has_chat_template = has_chat_template
        self.words: list[str] = []

    @property
    def detokenizer(self) -> Detokenizer:
        return Detokenizer(self.words)

    def apply_chat_template(self, messages, *, add_generation_prompt, tokenize, **_config):
        assert add_generation_prompt and not tokenize
        return " ".join(f"{m['role']} {m['content']}" for m in messages)

    def encode(self, text, *, add_special_tokens, verbose):
        assert not add_special_tokens and not verbose
        return text.split()


class Scripted:
    """An engine that says what the test says; a callable in its script is run in place of a token."""

    def __init__(self, *script, has_chat_template: bool = True) -> None:
        self.script = script
        self.tokenizer = Tokenizer(has_chat_template)
        self.asked: list[list[dict]] = []
        self.resets = 0
        self.closed = 0

    def reset(self) -> None:
        self.resets += 1

    def stream_chat(self, messages, *, prompt_progress_callback=None, **options):
        self.asked.append([dict(m) for m in messages])
        self.options = options
        return self.stream(prompt_progress_callback)

    def stream(self, progress):
        try:
            for number, said in enumerate(self.script):
                if callable(said):
                    said(progress)
                elif isinstance(said, Response):
                    yield said
                else:
                    yield Response(said, generation_tokens=number + 1)
        finally:
            self.closed += 1


class Echo(Scripted):
    """Says which message this is and what it was, as JSON but behind "raw", in drafted words; "slowly" has no end."""

    def stream(self, progress):
        messages = self.asked[-1]
        content = messages[-1]["content"]
        said = content if content.startswith("raw ") else json.dumps(content, ensure_ascii=False)
        words = [f"{len(messages)}:", *said.split(" "), "."]
        self.tokenizer.words[:] = [f" {word}" for word in words]
        progress(0, len(words))
        for number, word in enumerate(self.tokenizer.words):
            statistics = Statistics(tokens=number + 1, forwards=1, sources={"copy": number, "teacher": 1})
            yield Response(
                word, token=number, source="copy" if number else None, statistics=statistics, finish_reason=None
            )
        going_on = {"slowly": 10**6, "briefly": 50}.get(content, 0)
        for _ in range(going_on):
            time.sleep(0.02)
            self.tokenizer.words.append(" on")
            yield Response(" on", token=len(self.tokenizer.words) - 1)


if __name__ == "__main__":
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # Ctrl-C at this terminal interrupts this process
    from daari_mlx.chat.loop import chat

    chat(Echo(), drafter="graph", **json.loads(sys.argv[1]))
