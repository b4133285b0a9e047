"""Anchored paths against a walk down a trie of everything that followed."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
from graphs import Said, corpus_of, naive_kind
from hypothesis import given
from hypothesis import strategies as st

from daari_mlx.compile.tables import build_paths
from daari_mlx.graph.codepoints import BREAK
from daari_mlx.graph.paths import END, REACH, Paths, no_paths

VOCABULARY = 7


@st.composite
def sequences(draw: st.DrawFn) -> list[Said]:
    """Labelled sequences of few tokens and nodes, some longer than a path reaches."""
    made = []
    for _ in range(draw(st.integers(1, 8))):
        length = draw(st.integers(1, 8) | st.integers(REACH - 1, REACH + 4))
        most = draw(st.integers(0, 2))
        tokens = draw(st.lists(st.integers(0, most), min_size=length, max_size=length))
        labels = draw(st.lists(st.integers(0, 2), min_size=length, max_size=length))
        made.append(Said([], tokens, labels))
    return made


def built(said: list[Said], vocabulary: int = VOCABULARY) -> tuple[Paths, list[int]]:
    corpus = corpus_of(said)
    text, places = corpus.text()
    return build_paths(corpus, text, places, vocabulary), text.tolist()


def naive_path(following: list[list[int]]) -> list[tuple[int, int]]:
    """Token by token what most of those continuations go on with that went along so far, and its kind."""
    path: list[tuple[int, int]] = []
    for step in range(REACH):
        said = Counter(f[step] if step < len(f) else BREAK for f in following)
        token, seen = min(said.items(), key=lambda item: (-item[1], item[0]))
        if token == BREAK:
            break
        path.append((token, naive_kind(seen / len(following), len(following))))
        following = [f for f in following if step < len(f) and f[step] == token]
    return path


def naive_paths(said: list[Said], vocabulary: int = VOCABULARY) -> dict[int, list[tuple[int, int]]]:
    following: dict[int, list[list[int]]] = defaultdict(list)
    for s in said:
        for row, (token, label) in enumerate(zip(s.tokens, s.labels, strict=True)):
            following[label * vocabulary + token].append(s.tokens[row + 1 :])
    return {key: naive_path(rows) for key, rows in following.items()}


def read(paths: Paths, text: list[int], row: int) -> list[tuple[int, int]]:
    """A path as its place in the text tells it."""
    place, steps = paths.places[row], paths.steps[row]
    reach = steps.index(END) if END in steps else REACH
    return [(text[place + 1 + step], steps[step]) for step in range(reach)]


@given(sequences())
def test_paths_are_what_mostly_followed(said: list[Said]) -> None:
    paths, text = built(said)
    expected = naive_paths(said)
    assert paths.key.tolist() == sorted(expected)
    assert paths.key.dtype == np.int64 and paths.place.dtype == np.int32 and paths.kinds.dtype == np.uint8
    assert paths.kinds.shape == (len(expected), REACH)
    for key, path in expected.items():
        row = paths.find[key]
        assert read(paths, text, row) == path
        assert text[paths.places[row]] == key % VOCABULARY
        assert set(paths.steps[row][len(path) :]) <= {END}
        assert BREAK not in [token for token, _ in path]


def test_of_equally_common_tokens_the_smaller_goes_on() -> None:
    paths, text = built([Said([], [1, 5], [0, 0]), Said([], [1, 3, 6], [0, 0, 0]), Said([], [1, 3, 4], [0, 0, 0])])
    assert [t for t, _ in read(paths, text, paths.find[1])] == [3, 4]
    tied, text = built([Said([], [1, 5], [0, 0]), Said([], [1, 3], [0, 0])])
    assert read(tied, text, tied.find[1]) == [(3, naive_kind(0.5, 2))]


def test_a_path_ends_where_most_sequences_did() -> None:
    paths, text = built([Said([], [1], [0]), Said([], [1], [0]), Said([], [1, 3], [0, 0])])
    assert read(paths, text, paths.find[1]) == []
    tied, text = built([Said([], [1], [0]), Said([], [1, 3], [0, 0])])
    assert read(tied, text, tied.find[1]) == [], "an end is as good as any token"


def test_paths_of_large_ids_are_kept_apart() -> None:
    large = 0x10FFFE
    paths, text = built([Said([], [large, 0, large], [2000, 2000, 0]), Said([], [0, large], [2001, 0])], large + 1)
    assert paths.key.tolist() == sorted([2000 * (large + 1) + large, 2000 * (large + 1), large, 2001 * (large + 1)])
    assert [t for t, _ in read(paths, text, paths.find[2000 * (large + 1) + large])] == [0, large]


def test_no_paths() -> None:
    assert no_paths().find == {} and no_paths().steps == [] and no_paths().places == []
