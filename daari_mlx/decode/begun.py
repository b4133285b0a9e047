"""Where an answer begins: with the first new token, or already in the prompt, which then ends with its beginning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from daari_mlx.ground.errors import DaariError

if TYPE_CHECKING:
    from llguidance import LLTokenizer

Begun = int | str  # so many of the prompt's last tokens, or the text that it ends with


@runtime_checkable
class PerAnswer(Protocol):
    """A logits processor whose work depends on where the answer begins: it gives one for each answer."""

    def for_answer(self, prompt: list[int], *, earlier: Sequence[int] = (), begun: Begun = 0) -> Any:
        """The logits processor of the answer to ``prompt``; see :class:`daari_mlx.decode.grammar.GrammarProcessor`."""


def processors_for(
    processors: list[Any] | None, prompt: list[int], earlier: Sequence[int] | None, begun: Begun
) -> list[Any] | None:
    """The processors of one answer, where they are made for one; the others as they are.

    Args:
        processors: mlx-lm's, :class:`PerAnswer` among them.
        prompt: token ids; what processors are shown begins with them.
        earlier: what stands before them in the cache, where it is known.
        begun: how much of the end of both is the beginning of the answer.

    Raises:
        DaariError: ``begun`` is no number from 0 on and no text; what the processors refuse.
    """
    if not isinstance(begun, str) and (isinstance(begun, bool) or not isinstance(begun, int) or begun < 0):
        raise DaariError(f"begun is {begun!r}: give the text with which the prompt begins the answer, or its tokens.")
    if processors is None:
        return None
    return [
        one.for_answer(prompt, earlier=earlier or (), begun=begun) if isinstance(one, PerAnswer) else one
        for one in processors
    ]


def split_begun(vocabulary: LLTokenizer, tokens: list[int], begun: Begun) -> tuple[list[int], list[int]]:
    """What stands before an answer, and the tokens of it that ``tokens`` end with.

    White space around a text does not count, since templates take it off. Where the text begins within a token, the
    rest of that token is spelt anew.

    Raises:
        DaariError: the tokens do not end so.
    """
    if isinstance(begun, int):
        if begun > len(tokens):
            raise DaariError(f"begun is {begun}, but only {len(tokens)} tokens of the prompt are known: give earlier=.")
        return tokens[: len(tokens) - begun], tokens[len(tokens) - begun :]
    text = begun.lstrip()
    for wanted in dict.fromkeys((text.encode(), text.rstrip().encode())):
        at, found = len(tokens), b""
        while at and len(found) < len(wanted):
            at -= 1
            found = vocabulary.decode_bytes(tokens[at:])
        if found.endswith(wanted):
            over = len(found) - len(wanted)
            first = vocabulary.decode_bytes(tokens[at : at + 1])
            if over:
                return tokens[:at], [*vocabulary.tokenize_bytes(first[over:]), *tokens[at + 1 :]]
            return tokens[:at], tokens[at:]
    raise DaariError(
        f"begun is {begun!r}, but the prompt does not end with it: give the text as the chat template renders it."
    )
