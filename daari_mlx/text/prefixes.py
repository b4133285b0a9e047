"""Shared prefixes: the first tokens (a system prompt, its tools) that many sequences of a corpus have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

LEAST = 16  # a prefix that is longer by fewer tokens than this spares too little to be worth its copy


def shared_prefixes(heads: list[list[int]], parts: int) -> list[int]:
    """How many first tokens each sequence shares with so many others that they are best computed once.

    A prefix is taken where it spares more than it costs when every part that it occurs in computes it anew. The result
    depends on nothing but the arguments.

    Args:
        heads: for each sequence the tokens that may be shared: those before the first position that is kept.
        parts: how many parts the corpus is cut into.

    Returns:
        For each sequence the length of its prefix; 0 for none.
    """
    order = sorted(range(len(heads)), key=lambda i: heads[i])
    lengths = [0] * len(heads)
    waiting = [(0, len(order), 0)] if order else []  # ranges of `order` and the prefix that all in them have so far
    while waiting:
        start, end, shared = waiting.pop()
        first, last = heads[order[start]], heads[order[end - 1]]
        common = common_length(
            first, last, shared
        )  # the order is by tokens: what its ends share, all between them share
        members = end - start
        best = lengths[order[start]]
        if common - best >= LEAST and members * (common - best) > min(members, parts) * common:
            for i in order[start:end]:
                lengths[i] = common
        waiting += [(a, b, common) for a, b in _branches(heads, order, start, end, common) if b - a > parts]
    return lengths


def common_length(one: Sequence[object], other: Sequence[object], known: int = 0) -> int:
    """How many first items (tokens, characters) are equal, ``known`` of which are known to be."""
    end = min(len(one), len(other))
    return next((i for i in range(known, end) if one[i] != other[i]), end)


def _branches(heads: list[list[int]], order: list[int], start: int, end: int, at: int) -> Iterator[tuple[int, int]]:
    """The ranges with an equal token at position ``at``; heads that end there are left out."""
    for token, group in groupby(order[start:end], key=lambda i: heads[i][at] if at < len(heads[i]) else None):
        size = sum(1 for _ in group)
        if token is not None:
            yield start, start + size
        start += size
