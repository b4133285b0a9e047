"""Labelling and re-anchoring: the nearest centroid, by one routine."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import HIDDEN, WIDTH, random_nodes
from hypothesis import given
from hypothesis import strategies as st

from daari_mlx.graph import nodes as nodes_module
from daari_mlx.graph.nodes import Nodes, Projection, fit_projection, scale_states

SEEDS = st.integers(0, 100_000)


def states_of(seed: int, count: int, hidden: int = HIDDEN, scale: float = 1.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, hidden), scale=scale).astype(np.float32)


def distances(nodes: Nodes, reduced: np.ndarray) -> np.ndarray:
    """``(n, N)`` Euclidean distances in double precision, from their definition."""
    difference = reduced[:, None, :].astype(np.float64) - nodes.centroids[None].astype(np.float64)
    return np.sqrt((difference**2).sum(axis=-1))


@given(SEEDS, st.integers(1, 40), st.integers(1, 50))
def test_a_label_is_the_nearest_centroid(seed: int, count: int, states: int) -> None:
    nodes = random_nodes(count, seed=seed)
    reduced = states_of(seed + 1, states, WIDTH)
    labels, all_distances = nodes.label(reduced), distances(nodes, reduced)
    assert labels.dtype == np.int32 and labels.shape == (states,)
    np.testing.assert_allclose(all_distances[np.arange(states), labels], all_distances.min(axis=1), atol=1e-5)


@given(SEEDS, st.integers(2, 40))
def test_one_state_and_a_batch_get_the_same_label(seed: int, count: int) -> None:
    """While decoding one state comes at a time; wherever the choice is clear by 1e-4, it is that of compilation."""
    nodes = random_nodes(count, seed=seed)
    states = states_of(seed + 1, 30, scale=5.0)
    reduced = nodes.projection(states)
    labels = nodes.label(reduced)
    nearest = np.sort(distances(nodes, reduced), axis=1)
    clear = nearest[:, 1] - nearest[:, 0] > 1e-4
    assert clear.any()
    for state, label in zip(states[clear], labels[clear], strict=True):
        assert nodes.anchor(state)[0] == label


def test_blocks_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, reduced = random_nodes(20), states_of(1, 300, WIDTH)
    whole = nodes.label(reduced)
    monkeypatch.setattr(nodes_module, "SCORES", 7)
    monkeypatch.setattr(nodes_module, "NODE_BLOCK", 5)
    np.testing.assert_array_equal(nodes.label(reduced), whole)
    assert nodes.label(reduced[:0]).shape == (0,)


def test_half_precision_states_are_widened() -> None:
    """Shards hold float16: the sums must not."""
    nodes = Nodes(random_nodes(2).projection, np.array([[300.0, 0, 0, 0], [0, 0, 0, 300.0]], np.float32))
    reduced = np.array([[300, 0, 0, 299], [299, 0, 0, 300]], np.float16)  # 300² overflows float16
    assert nodes.label(reduced).tolist() == [0, 1]


@given(SEEDS, st.floats(0.1, 1e4))
def test_the_size_of_a_state_does_not_matter(seed: int, factor: float) -> None:
    """Layers' norms differ by orders of magnitude."""
    states = states_of(seed, 5)
    np.testing.assert_allclose(scale_states(states * np.float32(factor)), scale_states(states), rtol=1e-3, atol=1e-5)
    scaled = scale_states(states)
    assert scaled.dtype == np.float32
    np.testing.assert_allclose((scaled**2).mean(axis=1), 1.0, rtol=1e-3)


@given(SEEDS, st.integers(1, 40), st.integers(1, 12))
def test_a_projection_is_orthonormal_and_repeatable(seed: int, count: int, dimensions: int) -> None:
    states = states_of(seed, count)
    projection, again = fit_projection(states, dimensions), fit_projection(states.copy(), dimensions)
    assert projection.basis.tobytes() == again.basis.tobytes() and projection.mean.tobytes() == again.mean.tobytes()
    kept = min(dimensions, HIDDEN)
    assert projection.basis.shape == (HIDDEN, kept) and projection.mean.shape == (HIDDEN,)
    assert projection.basis.dtype == projection.mean.dtype == np.float32
    np.testing.assert_allclose(projection.basis.T @ projection.basis, np.eye(kept), atol=1e-5)


def test_a_projection_keeps_what_varies_most() -> None:
    """The variance kept in each direction is that of the singular values."""
    random = np.random.default_rng(0)
    states = (random.normal(size=(300, HIDDEN)) * np.arange(1, HIDDEN + 1) + random.normal(size=HIDDEN)).astype(
        np.float32
    )
    reduced = fit_projection(states, 3)(states)
    scaled = scale_states(states)
    values = np.linalg.svd(scaled - scaled.mean(axis=0), compute_uv=False)
    np.testing.assert_allclose((reduced**2).sum(axis=0), values[:3] ** 2, rtol=1e-4)
    np.testing.assert_allclose(reduced.mean(axis=0), 0, atol=1e-5)


DEGENERATE = {
    "all equal": np.ones((10, HIDDEN), np.float32),
    "one state": np.arange(HIDDEN, dtype=np.float32)[None],
    "zeros": np.zeros((5, HIDDEN), np.float32),
    "fewer states than dimensions": np.random.default_rng(0).normal(size=(3, HIDDEN)).astype(np.float32),
    "one channel runs away": np.ones((6, HIDDEN), np.float32) * np.array([1e6] + [1] * (HIDDEN - 1), np.float32),
    "tiny": np.full((4, HIDDEN), 1e-20, np.float32),
}


@pytest.mark.parametrize("name", sorted(DEGENERATE))
@pytest.mark.filterwarnings("error")
def test_degenerate_states_stay_finite(name: str) -> None:
    states = DEGENERATE[name]
    projection = fit_projection(states, 6)
    reduced = projection(states)
    assert projection.basis.shape == (HIDDEN, 6)
    assert np.isfinite(projection.basis).all() and np.isfinite(reduced).all()
    nodes = Nodes(projection, reduced[:1])
    assert nodes.label(reduced).tolist() == [0] * len(states)
    assert nodes.anchor(states[0])[0] == 0


def test_equal_centroids_give_the_first() -> None:
    nodes = Nodes(Projection(np.zeros(2, np.float32), np.eye(2, dtype=np.float32)), np.ones((3, 2), np.float32))
    assert nodes.label(np.array([[5, 5], [0, 0]], np.float32)).tolist() == [0, 0]


@pytest.mark.parametrize("count", [1, 5, 300, 5000])
def test_anchors_are_labels(count: int) -> None:
    """A state alone is reduced and compared by quicker products; its node is the one that a corpus gives it."""
    nodes, states = random_nodes(count), states_of(3, 400)
    labels = nodes.label(nodes.projection(states))
    anchors = [nodes.anchor(state) for state in states]
    assert [node for node, _ in anchors] == labels.tolist()
    np.testing.assert_allclose([reduced for _, reduced in anchors], nodes.projection(states), rtol=1e-4, atol=1e-5)


def test_labels_while_decoding_are_those_of_compilation(compiled) -> None:
    """Compilation labels float16 copies of states from whole sequences; decoding, float32 states of single blocks."""
    from mlx_lm.models.cache import make_prompt_cache

    from daari_mlx.decode.limits import Options
    from daari_mlx.decode.loop import generate_step
    from daari_mlx.draft.drafter import Context, Draft
    from daari_mlx.ground.accept import Statistics
    from daari_mlx.teacher.tap import tap_model

    nodes = compiled.graph.nodes
    labels: dict[tuple[int, ...], int] = {}
    for sequence in compiled.sequences[:16]:
        states = compiled.teacher.states(sequence.tokens[:-1], "final", sequence.answer_start - 1)
        reduced = nodes.projection(states).astype(np.float16)
        for position, label in enumerate(nodes.label(reduced).tolist()):
            labels[tuple(sequence.tokens[: sequence.answer_start + position])] = label

    anchors: dict[tuple[int, ...], int] = {}

    class Watching:
        def draft(self, context: Context, limit: int, pending: int) -> Draft:
            if context.state is not None:
                anchors[tuple(context.tokens[:-1])] = nodes.anchor(context.state)[0]
            return Draft()

    model = compiled.teacher.model
    for sequence in compiled.sequences[:16]:
        steps = generate_step(
            sequence.tokens[: sequence.answer_start],
            model,
            make_prompt_cache(model),
            options=Options(max_tokens=len(sequence.tokens) - sequence.answer_start),
            drafter=Watching(),
            tap=tap_model(model)[0],
            statistics=Statistics(),
        )
        assert [s.token for s in steps] == sequence.tokens[sequence.answer_start :]
    common = labels.keys() & anchors.keys()
    assert len(common) > 300
    agreeing = sum(labels[key] == anchors[key] for key in common)
    assert agreeing >= 0.99 * len(common)
