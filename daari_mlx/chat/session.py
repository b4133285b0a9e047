"""A chat without a terminal: one conversation, one engine, and what may be asked of both."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from daari_mlx.chat.conversation import Conversation, Message
from daari_mlx.ground.errors import DaariError
from daari_mlx.text.template import ChatTemplate

if TYPE_CHECKING:
    from daari_mlx.decode.responses import GenerationResponse

MAX_TOKENS = 256  # where the options name none, as for stream_generate
MARK = "daari-mlx"  # a word that a chat template passes on, to see whether it does
NO_TEMPLATE = "This tokenizer has no chat template, so its model cannot chat: use daari-mlx generate."


class Engine(Protocol):
    """What a chat needs of :class:`daari_mlx.SpecEngine`."""

    @property
    def tokenizer(self) -> Any:
        """The teacher's."""

    def reset(self) -> None:
        """Forget the conversation."""

    def stream_chat(self, messages: list[Message], **options: Any) -> Iterator[GenerationResponse]:
        """Stream the answer to the last message."""


class StoppedBeforeAnswer(Exception):
    """The user stopped while the prompt was still being read."""


@dataclass(slots=True)
class Session:
    """A chat under way.

    Attributes:
        engine: answers; its cache is kept from turn to turn.
        options: those of :meth:`daari_mlx.SpecEngine.stream_chat`.
        conversation: what was said.
        context_length: the most tokens the teacher holds; None where that is not known.
        drafter: who drafts: ``"graph"``, ``"model"``, ``"lookup"`` or ``"none"``.
        drafts: whether drafted tokens are shaded.
        interactive: whether a person sits at a terminal.
    """

    engine: Engine
    options: dict[str, Any]
    conversation: Conversation = field(default_factory=Conversation)
    context_length: int | None = None
    drafter: str = "none"
    drafts: bool = False
    interactive: bool = False

    def reset(self) -> None:
        """Forget the conversation; the system prompt stays."""
        self.engine.reset()
        self.conversation.forget()

    def set_system(self, text: str | None) -> None:
        """Take another system prompt, None for none, and start anew.

        Raises:
            DaariError: the chat template has no place for one; the conversation goes on as it was.
        """
        if text is not None:
            self.check_system()
        self.conversation.system = text
        self.reset()

    def check_system(self) -> None:
        """See that the chat template takes a system prompt: some raise at one, some leave it out without a word.

        Raises:
            DaariError: it does not.
        """
        probe = [{"role": "system", "content": MARK}, {"role": "user", "content": "?"}]
        if MARK not in self._template().prompt(probe):
            raise DaariError(
                "This teacher's chat template leaves system prompts out, so that the teacher would not see it: "
                "say it in your first message instead."
            )

    def tokens(self) -> int:
        """How many tokens the conversation has, the header of the next answer included."""
        return len(self._template().prompt_ids(self.conversation.messages))

    def _template(self) -> ChatTemplate:
        return ChatTemplate(self.engine.tokenizer, self.options.get("chat_template_config"))

    def answer(
        self, progress: Callable[[int, int], None], is_stopped: Callable[[], bool]
    ) -> Generator[GenerationResponse, None, None]:
        """Stream the answer to the newest message; it ends where the teacher's context does.

        Args:
            progress: told of prefill as (prompt tokens done, prompt tokens).
            is_stopped: asked between two steps of prefill whether the user wants no answer any more.

        Raises:
            DaariError: the conversation is longer than the context, or the template rejects it.
            StoppedBeforeAnswer: see ``is_stopped``.
        """

        def between(done: int, total: int) -> None:
            progress(done, total)
            if is_stopped() and done < total:
                raise StoppedBeforeAnswer

        options = {**self.options, **self._within_context()}
        # a generator is closed along with this one
        yield from self.engine.stream_chat(self.conversation.messages, prompt_progress_callback=between, **options)

    def _within_context(self) -> dict[str, int]:
        """``max_tokens`` where fewer fit; plain decoding would go on past the context, into noise."""
        if self.context_length is None:
            return {}
        used = self.tokens()
        if used >= self.context_length:
            raise DaariError(
                f"With this message the conversation has {used:,} tokens, and the teacher's context holds "
                f"{self.context_length:,}: send a shorter one, or forget the conversation with /reset."
            )
        room, asked = self.context_length - used, self.options.get("max_tokens", MAX_TOKENS)
        return {"max_tokens": room} if asked == -1 or asked > room else {}

    def why_cut(self, last: GenerationResponse) -> str | None:
        """Why an answer broke off, in words; None where it came to its end.

        Args:
            last: its last response.
        """
        if last.finish_reason != "length":
            return None
        asked = self.options.get("max_tokens", MAX_TOKENS)
        if last.generation_tokens == asked:
            return f"cut by --max-tokens {asked}"
        return f"cut: the teacher's context of {self.context_length:,} tokens is full"
