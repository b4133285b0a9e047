"""One conversation: its system prompt, what was said since, and what answering took."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from daari_mlx.ground.accept import Statistics

if TYPE_CHECKING:
    from daari_mlx.decode.responses import GenerationResponse

Message = dict[str, Any]


@dataclass(slots=True)
class Tally:
    """What all answers of a conversation took, stopped ones included.

    Attributes:
        answers: how many there were.
        prompt_tokens: tokens prefilled for them; what the cache held already is not among these.
        seconds: time spent decoding, prefill not included.
        statistics: the sum of their counts; ``drafting_off`` is that of the newest answer.
    """

    answers: int = 0
    prompt_tokens: int = 0
    seconds: float = 0.0
    statistics: Statistics = field(default_factory=Statistics)

    def add(self, last: GenerationResponse) -> None:
        """Count one answer; ``last`` is its last response."""
        self.answers += 1
        self.prompt_tokens += last.prompt_tokens
        self.seconds += last.generation_tokens / last.generation_tps if last.generation_tps > 0 else 0.0
        self.statistics.add(last.statistics)
        self.statistics.drafting_off = last.drafting_off

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of decoding, as mlx-lm measures it; 0.0 where there was none."""
        return self.statistics.tokens / self.seconds if self.seconds else 0.0


@dataclass(slots=True)
class Conversation:
    """What was said.

    Attributes:
        system: the system prompt, or None.
        turns: user and assistant messages in turn, the user's first.
        tally: what the answers took.
    """

    system: str | None = None
    turns: list[Message] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)

    @property
    def messages(self) -> list[Message]:
        """All messages, the system prompt first."""
        return [*self._first(), *self.turns]

    def _first(self) -> list[Message]:
        return [] if self.system is None else [{"role": "system", "content": self.system}]

    def forget(self) -> None:
        """Start anew; the system prompt stays."""
        self.turns, self.tally = [], Tally()

    def rows(self) -> list[dict[str, list[Message]]]:
        """The conversation as rows that ``compile --data`` reads.

        One row an answer, with all that was said before it: of a row only the last message is learnt. The last row is
        the whole conversation. An empty answer teaches nothing and gets no row.
        """
        return [
            {"messages": [*self._first(), *self.turns[: end + 1]]}
            for end, message in enumerate(self.turns)
            if message["role"] == "assistant" and message["content"].strip()
        ]
