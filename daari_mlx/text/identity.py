"""Which prompts and rows are the same: hashes of what they say, not of how a template rendered it.

Rendered text differs from day to day where a template prints a clock. Graphs of older versions hold hashes of rendered
prompts, and prompts that come from no row have nothing else, so those are looked up too.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any


@dataclass(frozen=True, slots=True)
class Identity:
    """What a row says, as unsigned 64-bit hashes.

    Attributes:
        prompt: of the messages before the answer, the tools and the template's variables; of the prompt's text where
            there is no template; of the whole of a text row.
        answer: of the row's own answer.
        template: of the chat template; 0 where none renders the row.
    """

    prompt: int
    answer: int
    template: int


def content_hash(*values: Any) -> int:
    """A hash of JSON values, the same for every order of an object's keys: an unsigned 64-bit integer."""
    text = json.dumps(values, sort_keys=True, ensure_ascii=False, default=str)
    return _hash64(text.encode("utf-8", "surrogatepass"))


def prompt_hash(tokens: list[int]) -> int:
    """A hash of a rendered prompt's token ids (as little-endian int32): an unsigned 64-bit integer."""
    return _hash64(struct.pack(f"<{len(tokens)}i", *tokens))


def _hash64(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")


def prompt_key(tokens: list[int], identity: Identity | None) -> int:
    """What a graph keeps of a prompt: the hash of what its row says, of its tokens where it comes from no row."""
    return prompt_hash(tokens) if identity is None else identity.prompt


def is_known(tokens: list[int], key: int, hashes: Collection[int]) -> bool:
    """Whether a prompt is one of those that a graph was compiled from.

    Args:
        tokens: of the rendered prompt.
        key: see :func:`prompt_key`.
        hashes: the graph's: keys, or hashes of rendered prompts where an older version compiled it.
    """
    return key in hashes or prompt_hash(tokens) in hashes


def corpus_hash(rows: Iterable[tuple[int, ...]]) -> str:
    """A hash, 32 hex digits, of what rows say, in order; file names do not enter.

    Args:
        rows: unsigned 64-bit hashes of each.
    """
    digest = blake2b(digest_size=16)
    for row in rows:
        digest.update(struct.pack(f"<{1 + len(row)}Q", len(row), *row))
    return digest.hexdigest()


def tokens_hash(rows: Iterable[tuple[list[int], int]]) -> str:
    """The same over rendered rows, as older versions identified a corpus: (tokens, where the answer starts) of each."""
    digest = blake2b(digest_size=16)
    for tokens, start in rows:
        digest.update(struct.pack(f"<qq{len(tokens)}i", len(tokens), start, *tokens))
    return digest.hexdigest()
