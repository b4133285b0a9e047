"""What the graph promised on held-out answers, and what of it came true.

The whole path that the sources propose is kept from every place of an answer, so that the rounds of a live run can be
gone through afterwards under any T(m): see :mod:`daari_mlx.measure.forecast`.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daari_mlx.cost.length import MAX_DRAFT
from daari_mlx.graph.arbiter import MAX_ODDS, Arbiter
from daari_mlx.graph.corpus import Corpus
from daari_mlx.graph.graph import Graph
from daari_mlx.graph.source import NO_NODE
from daari_mlx.graph.sources import Sources
from daari_mlx.ground.accept import count_accepted
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.progress import bar
from daari_mlx.ground.types import FloatArray

DRAFT_TOKENS = 30_000  # that are proposed and judged while compiling, about: it takes a second
ANSWERS = 400  # held-out answers that are gone through while compiling, at the most
PLACES = 256  # tokens of an answer, from its head, ahead of which a path is proposed
CHARACTERS = 40_000  # of a record, at the most
ODDS_STEP = MAX_ODDS / 120  # log-odds between two promises of a record
MAX_RECORD = 4 << 20  # bytes of a record unpacked
BINS = 10  # rows of a reliability table


@dataclass(frozen=True, slots=True)
class Promise:
    """A path that was proposed at one place of an answer.

    Attributes:
        probabilities: that each of its tokens is right, given that all before it are.
        right: how many of its first tokens were.
    """

    probabilities: tuple[float, ...]
    right: int


@dataclass(frozen=True)
class HeldOut:
    """One held-out answer.

    Attributes:
        before: tokens of its prompt.
        promises: what was proposed ahead of each of its tokens.
    """

    before: int
    promises: tuple[Promise, ...]


@dataclass(frozen=True)
class Bin:
    """The draft tokens that were promised with about the same probability.

    Attributes:
        low, high: of the probability, ``high`` not included but for 1.
        tokens: how many; each had only right ones before it on its path.
        promised: the mean of their probabilities; 0 where there are none.
        right: how many of them were right.
    """

    low: float
    high: float
    tokens: int
    promised: float
    right: int


@dataclass(frozen=True)
class Outlook:
    """Held-out answers and what was promised on them."""

    answers: tuple[HeldOut, ...]

    @property
    def tokens(self) -> int:
        """Tokens of all answers ahead of which a path was proposed."""
        return sum(len(answer.promises) for answer in self.answers)

    def promises(self) -> Iterable[Promise]:
        """Of all answers."""
        return chain.from_iterable(answer.promises for answer in self.answers)

    def reliability(self) -> list[Bin]:
        """Promised and true shares by tenths of the promised probability."""
        judged = [
            (probability, place < promise.right)
            for promise in self.promises()
            for place, probability in enumerate(promise.probabilities[: promise.right + 1])
        ]
        promised = np.array([p for p, _ in judged])
        right = np.array([r for _, r in judged], bool)
        row = np.minimum((promised * BINS).astype(int), BINS - 1)
        counts = np.bincount(row, minlength=BINS)
        sums, kept = np.bincount(row, promised, BINS), np.bincount(row, right, BINS)
        return [
            Bin(k / BINS, (k + 1) / BINS, int(counts[k]), float(sums[k] / max(counts[k], 1)), int(kept[k]))
            for k in range(BINS)
        ]

    def as_record(self) -> dict[str, Any]:
        """The same as JSON values of at most ``CHARACTERS`` characters; answers are left out where it would be more."""
        answers = self.answers
        while len(packed := _pack(answers)) > CHARACTERS and len(answers) > 1:
            answers = answers[::2]
        kept = Outlook(answers)
        drafted = sum(len(promise.probabilities) for promise in kept.promises())
        return {"answers": len(answers), "tokens": kept.tokens, "draft_tokens": drafted, "promises": packed}

    @classmethod
    def of_record(cls, record: Any) -> Outlook:
        """Read what :meth:`as_record` gave; probabilities are rounded to ``ODDS_STEP``.

        Raises:
            DaariError: it is damaged.
        """
        try:
            return cls(_unpack(record))
        except (TypeError, ValueError, KeyError, zlib.error) as error:
            raise DaariError(
                f"The record of held-out answers in compile_stats.json is damaged ({error}): compile the graph anew, "
                "or fetch it again."
            ) from error


def _pack(answers: Sequence[HeldOut]) -> str:
    promises = [promise for answer in answers for promise in answer.promises]
    chances = np.array([p for promise in promises for p in promise.probabilities])
    odds = np.round(np.log(chances / (1 - chances)) / ODDS_STEP)
    parts = [
        np.array([answer.before for answer in answers], "<i4"),
        np.array([len(answer.promises) for answer in answers], "<i4"),
        np.array([len(promise.probabilities) for promise in promises], np.uint8),
        np.array([promise.right for promise in promises], np.uint8),
        odds.astype(np.int8),
    ]
    return base64.urlsafe_b64encode(zlib.compress(b"".join(part.tobytes() for part in parts), 9)).decode()


def _unpack(record: dict[str, Any]) -> tuple[HeldOut, ...]:
    answers, tokens, drafted = sizes = [record[name] for name in ("answers", "tokens", "draft_tokens")]
    if not all(type(size) is int and 0 <= size <= MAX_RECORD for size in sizes) or answers == 0:
        raise ValueError(f"it counts {answers!r} answers, {tokens!r} tokens, {drafted!r} draft tokens")
    expected = 8 * answers + 2 * tokens + drafted
    if expected > MAX_RECORD:
        raise ValueError(f"it would take {expected:,} bytes")
    unpacker = zlib.decompressobj()
    data = unpacker.decompress(base64.b64decode(record["promises"], b"-_", validate=True), expected + 1)
    if len(data) != expected or not unpacker.eof:
        raise ValueError("its promises are not as many as it says")
    before, places = np.frombuffer(data, "<i4", 2 * answers).reshape(2, answers)
    lengths, right = np.frombuffer(data, np.uint8, 2 * tokens, 8 * answers).reshape(2, tokens)
    odds = np.frombuffer(data, np.int8, drafted, 8 * answers + 2 * tokens) * ODDS_STEP
    if (before < 0).any() or (places < 1).any() or places.sum(dtype=np.int64) != tokens:
        raise ValueError("its answers do not have the tokens that it says")
    if lengths.sum(dtype=np.int64) != drafted or (right > lengths).any() or (lengths > MAX_DRAFT).any():
        raise ValueError("its paths do not have the tokens that it says")
    chances = (1 / (1 + np.exp(-odds))).tolist()
    ends = np.cumsum(lengths, dtype=np.int64).tolist()
    promises = [
        Promise(tuple(chances[end - length : end]), kept)
        for end, length, kept in zip(ends, lengths.tolist(), right.tolist(), strict=True)
    ]
    behind = np.cumsum(places).tolist()
    return tuple(
        HeldOut(context, tuple(promises[end - count : end]))
        for context, count, end in zip(before.tolist(), places.tolist(), behind, strict=True)
    )


def propose_along(
    graph: Graph,
    tokens: list[int],
    start: int,
    anchors: Sequence[int],
    states: Sequence[FloatArray | None],
    ends: Collection[int],
) -> HeldOut:
    """Let a graph propose a path at every place of an answer, each time from what was said up to there.

    Args:
        graph: that does not know the answer.
        tokens: prompt and answer.
        start: where the answer begins.
        anchors: for each of its tokens, the node of the state that the token before it was chosen from; ``NO_NODE``
            where no forward has shown one.
        states: those states, reduced, ``(D,)`` float32 each; None where only the node is known.
        ends: tokens that end an answer: nothing is proposed behind them.
    """
    sources, promises = Sources(graph, graph.arbiter.names), []
    for place, (anchor, state) in enumerate(zip(anchors[:PLACES], states[:PLACES], strict=True), start):
        if anchor == NO_NODE:
            promises.append(Promise((), 0))
            continue
        moment = sources.start(tokens, anchor, place, state)
        found = graph.arbiter.propose(sources.all, moment, MAX_DRAFT, ends)
        right = count_accepted(found.tokens, tokens[place : place + MAX_DRAFT])
        promises.append(Promise(tuple(found.probabilities), right))
    return HeldOut(start, tuple(promises))


def outlook_of(
    graphs: Sequence[Graph], arbiter: Arbiter, corpus: Corpus, parts: Sequence[NDArray[np.int64]], tried: int
) -> Outlook:
    """What graphs promise on the parts of their corpus that they do not know.

    Args:
        graphs: of the same nodes, one for each part.
        arbiter: who was fitted on the first ``tried`` sequences of every part; others are taken before those.
        corpus: the labelled corpus.
        parts: the sequences that each graph does not know.
    """
    ends, heard = _ends(corpus), []
    with bar(total=DRAFT_TOKENS, desc="held-out answers", unit="tok") as progress:
        for graph, part in zip(graphs, parts, strict=True):
            left = DRAFT_TOKENS // len(graphs)
            knowing = replace(graph, arbiter=arbiter)
            chosen = np.concatenate([part[tried:], part[:tried]])[: ANSWERS // len(graphs)]
            for answer in _answers(corpus.take(chosen)):
                if left <= 0:
                    break
                found = propose_along(knowing, *answer, ends)
                drafted = sum(len(promise.probabilities) for promise in found.promises)
                left -= drafted
                progress.update(min(drafted, left + drafted))
                heard.append(found)
    return Outlook(tuple(heard))


def _ends(corpus: Corpus) -> frozenset[int]:
    """The tokens that sequences end with and that occur nowhere else in an answer."""
    follows, answers = corpus.follows(), corpus.answers()
    return frozenset(np.setdiff1d(corpus.tokens[~follows], corpus.tokens[follows & answers]).tolist())


def _answers(corpus: Corpus) -> Iterable[tuple[list[int], int, list[int], list[FloatArray | None]]]:
    """Tokens, start, anchors and states of each sequence that has an answer, for :func:`propose_along`."""
    row = prompt = 0
    for rows, before, lead in zip(corpus.rows.tolist(), corpus.before_rows.tolist(), corpus.lead.tolist(), strict=True):
        tokens = corpus.before[prompt : prompt + before].tolist() + corpus.tokens[row : row + rows].tolist()
        anchors = [NO_NODE, *corpus.labels[row : row + rows].tolist()]
        if rows > lead:
            known = list(corpus.states[row : min(row + rows, len(corpus.states))])
            states = [None, *known, *[None] * (rows - len(known))]
            yield tokens, before + lead, anchors[lead:-1], states[lead:-1]
        row, prompt = row + rows, prompt + before
