"""Single tokens as text and bytes, and log-probabilities in OpenAI's shape."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from daari_mlx.serve.tickets import Token

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@cache
def _byte_of() -> dict[str, int]:
    """The bytes that the characters of byte-level tokens stand for (GPT-2's table)."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in kept]
    return {chr(b): b for b in kept} | {chr(256 + k): b for k, b in enumerate(others)}


class Spelling:
    """The tokens of one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def bytes(self, token: int) -> bytes:
        """What a token says, even where it is a part of a character."""
        text = str(self._tokenizer.decode([token]))
        if "\ufffd" not in text:
            return text.encode("utf-8", "replace")
        raw = str(self._tokenizer.convert_ids_to_tokens(token))
        if found := _BYTE.fullmatch(raw):
            return bytes([int(found[1], 16)])
        table = _byte_of()
        return bytes(table[c] for c in raw) if all(c in table for c in raw) else text.encode()

    def text(self, token: int) -> str:
        """What a token says, as text."""
        return self.bytes(token).decode("utf-8", "replace")

    def logprob(self, token: Token) -> dict[str, Any]:
        """OpenAI's entry for one token, and its id."""
        return {**self._entry(token.id, token.logprob), "top_logprobs": [self._entry(*found) for found in token.top]}

    def _entry(self, token: int, logprob: float | None) -> dict[str, Any]:
        value = -9999.0 if logprob is None else max(logprob, -9999.0)  # JSON has no infinity; OpenAI's stand-in
        said = self.bytes(token)
        return {"token": said.decode("utf-8", "replace"), "id": token, "logprob": value, "bytes": list(said)}
