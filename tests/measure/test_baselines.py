"""Baselines: each does by tables what its definition says, and what a public implementation does where there is one."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from graphs import random_graph
from hypothesis import given
from hypothesis import strategies as st
from suffix_decoding import DEPTH, SuffixDecoding
from test_replay import stream_of, streams_of

from daari_mlx.cost.length import Cost
from daari_mlx.draft.drafter import Context
from daari_mlx.graph.arbiter import Arbiter
from daari_mlx.graph.cells import KINDS
from daari_mlx.graph.source import CELL_BITS
from daari_mlx.ground.errors import DaariError
from daari_mlx.measure.baselines import DRAFTERS, RecycledTokens, RecyclingDrafter, StepChances, hearing
from daari_mlx.measure.replay import replay
from daari_mlx.measure.suffix import LONGEST, History, SuffixDrafter

FLAT = Cost((1, 64), (1.0, 1.0))
ids = st.integers(0, 3)
texts = st.lists(st.lists(ids, min_size=1, max_size=25), min_size=1, max_size=6)


# --- longest suffix


@given(texts, st.lists(ids, min_size=1, max_size=12))
def test_endings_are_all_places_behind_a_match(said: list[list[int]], context: list[int]) -> None:
    history, flat = History(), []
    for text in said:
        history.extend(text)
        history.close()
        flat += [*text, -1]
    found = [places.tolist() for places in history.endings(context, LONGEST)]
    for length in range(1, min(len(context), LONGEST) + 1):
        wanted = [e for e in range(length, len(flat) + 1) if flat[e - length : e] == context[-length:]]
        assert (found[length - 1] if length <= len(found) else []) == wanted


def counted(texts: list[list[int]], match: list[int]) -> int:
    return sum(text[k : k + len(match)] == match for text in texts for k in range(len(text) - len(match) + 1))


def by_definition(
    texts: list[list[int]], context: list[int], limit: int, factor: float, least: float
) -> tuple[float, int, set[tuple[int, ...]]]:
    """The best score, its match's length, and every draft with it (equal counts may go either way)."""
    best: tuple[float, int, set[tuple[int, ...]]] = (0.0, 0, set())
    for length in range(1, len(context)):
        match = context[-length:]
        if not counted(texts, match):
            break
        most = min(limit, int(length * factor + 1e-6), DEPTH - length)
        paths = {((), 1.0, 0.0)}
        done: set[tuple[tuple[int, ...], float]] = set()
        while paths:
            path, chance, score = paths.pop()
            counts = Counter({t: counted(texts, [*match, *path, t]) for t in range(4)})
            top = max(counts.values())
            after = chance * top / counted(texts, [*match, *path])
            if len(path) == most or top == 0 or after < least:
                done.add((path, score))
                continue
            paths |= {((*path, t), after, score + after) for t in range(4) if counts[t] == top}
        for path, score in done:
            if score > best[0] + 1e-9:
                best = score, length, {path}
            elif score >= best[0] - 1e-9:
                best = best[0], length, best[2] | {path}
    return best


@given(texts, st.lists(ids, min_size=2, max_size=14), st.sampled_from([(1.0, 0.1), (4.0, 0.5), (2.0, 0.3)]))
def test_published_drafts_are_those_of_counting(
    answers: list[list[int]], prompt: list[int], setting: tuple[float, float]
) -> None:
    factor, least = setting
    drafter = SuffixDecoding(answers, factor, least)
    draft = drafter.draft(Context(prompt, None), 3)
    own = by_definition([prompt], prompt[-DEPTH:], 3, factor, least)
    corpus = by_definition(answers, prompt[-DEPTH:], 3, factor, least)
    best = max(own[0], corpus[0])
    score = float(np.cumprod(draft.probabilities).sum())
    assert score <= best + 1e-6
    if score == pytest.approx(best):
        assert tuple(draft.tokens) in own[2] | corpus[2] | {()}
    else:  # of equally common tokens it may have taken one whose path is worth less
        assert len(draft.tokens) <= 3


def test_published_drafts_are_those_of_arctic_inference() -> None:
    suffix_decoding = pytest.importorskip("arctic_inference.suffix_decoding", reason="it is not installed")
    random = np.random.default_rng(0)
    answers = [random.integers(0, 5, random.integers(2, 30)).tolist() for _ in range(40)]
    for factor, least in ((1.0, 0.1), (4.0, 0.5)):
        ours, theirs = SuffixDecoding(answers, factor, least), suffix_decoding.SuffixDecodingCache(DEPTH)
        for number, answer in enumerate(answers):
            theirs.start_request(number, [0])
            theirs.add_active_response(number, answer)
            theirs.stop_request(number)
        rounds = drafted = differing = 0  # equally common tokens may go either way, which is rare
        for number in range(len(answers), len(answers) + 20):
            tokens = random.integers(0, 5, 40).tolist()
            theirs.start_request(number, tokens)
            for _ in range(30):
                found = theirs.speculate(
                    number, tokens[-DEPTH:], max_spec_tokens=16, max_spec_factor=factor, min_token_prob=least
                )
                draft = ours.draft(Context(tokens, None), 16)
                rounds += 1
                if draft.tokens == found.token_ids:
                    assert np.cumprod(draft.probabilities).tolist() == pytest.approx(found.probs, abs=1e-6)
                else:
                    differing += 1
                drafted += len(draft.tokens)
                new = random.integers(0, 5, 2).tolist()
                theirs.add_active_response(number, new)
                tokens += new
            theirs.add_active_response(number, [0])
            theirs.stop_request(number)
            tokens.append(0)
        assert drafted > 0 and differing <= rounds / 100


@given(texts, st.lists(ids, min_size=1, max_size=20))
def test_the_longest_match_goes_on_as_most_of_its_places_do(answers: list[list[int]], prompt: list[int]) -> None:
    draft = SuffixDrafter(answers, FLAT).draft(Context(prompt, None), 1)
    own = [[*prompt]]
    for length in range(min(len(prompt), LONGEST), 0, -1):
        match = prompt[-length:]
        for said in (answers, own):  # of equally long matches the corpus's
            counts = Counter({t: counted(said, [*match, t]) for t in range(4)})
            if max(counts.values()):
                assert draft.tokens[0] in [t for t in counts if counts[t] == max(counts.values())]
                assert 0 < draft.probabilities[0] < 1
                return
    assert draft.tokens == []


def test_matches_are_believed_as_far_as_they_came_true_and_answers_join_the_corpus() -> None:
    dear = Cost((1, 64), (1.0, 20.0))
    drafter, context, lengths = SuffixDrafter([], dear), Context([1, 2, 3, 1, 2], None), []
    for number in range(60):
        lengths.append(len(drafter.draft(context, 8).tokens))
        context.tokens += [100 + number, 1, 2]
    assert lengths[0] > 0 and lengths[-1] == 0, "matches never came true"
    learning = SuffixDrafter([], FLAT)
    first = Context([9, 8], None)
    learning.draft(first, 4)
    first.tokens += [5, 6, 7]
    assert learning.draft(Context([4, 4, 8], None), 4).tokens == [5, 6, 7]


# --- Token Recycling


def test_recycled_tokens_are_the_likeliest_of_the_last_row_there() -> None:
    stream = stream_of([1, 2, 3, 2, 9, 2], 2)  # the teacher's likeliest behind a token is what it said
    table = RecycledTokens()
    drafter = RecyclingDrafter(stream, table, StepChances(), FLAT, ())
    context = Context([1, 2], None)
    assert drafter.draft(context, 4).tokens == [], "nothing has followed 2 yet"
    context.tokens += [3, 2]
    assert drafter.draft(context, 4).tokens == [3, 2, 3, 2]
    assert table.after[2] == stream.top[1].tolist()[:8]
    context.tokens += [9, 2]
    assert drafter.draft(context, 4).tokens == [9, 2, 9, 2], "the newest row counts"
    assert RecyclingDrafter(stream, table, StepChances(), FLAT, (9,)).draft(context, 4).tokens == [9]


# --- parts of the graph


def test_one_source_alone_has_its_counted_chance() -> None:
    odds = np.linspace(-3, 3, KINDS, dtype=np.float32)
    graph = random_graph(3)
    heard = Arbiter(("edge", "copy"), (odds, odds * 2), np.full((9, 3), 0.3, np.float32))
    from dataclasses import replace

    alone = hearing(replace(graph, arbiter=heard), "edge").arbiter
    for cell in range(KINDS):
        ((token, total, name),) = alone.weigh((4 << CELL_BITS | cell,))
        assert (token, name) == (4, "edge") and total == pytest.approx(float(odds[cell]), rel=1e-5)
    with pytest.raises(DaariError, match="no source 'near'"):
        hearing(graph, "near")


def test_every_drafter_runs_on_a_graph() -> None:
    graph, streams = random_graph(1), streams_of(([1, 2, 3, 4, 1, 2, 3, 4, 5], 3), ([1, 2, 1, 2, 1, 2], 2))
    wide = [
        type(s)(s.tokens, s.start, {"final": np.repeat(s.states["final"], 4, axis=1)}, s.top) for s in streams.items
    ]
    streams = type(streams)(tuple(wide), -1, None, (), {})
    for name, make in DRAFTERS.items():
        found = replay(streams, make(graph, FLAT, ()), most=8)
        assert found.tokens == 10, name
