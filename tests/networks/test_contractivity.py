"""The bound of Lemma 1 and Proposition 1 (Di Sarli et al. 2022), against hand-computed cases and against networks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("scipy")

from scipy.sparse import csr_array

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.networks.contractivity import (
    contractivity_bound,
    lipschitz_bound,
    matrix_norms,
    recurrent_norms,
    update_gate_range,
)
from reservoir_hw.networks.gated_weights import GatedWeights, draw_gated_weights


def step(weights: GatedWeights, u: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Eq. 6, as it is written."""
    r, z = weights.gates(u, x)
    h = np.tanh(u @ weights.state.W_in.T + (r * x) @ weights.state.recurrent().T + weights.state.bias)
    return z * x + (1 - z) * h


def test_a_case_computed_by_hand():
    # W = [[0, 0.1], [-0.2, 0]]: singular values 0.2 and 0.1, eigenvalues ±i√0.02.
    # W^r = [[0.3, 0.4], [0, 0]]: one singular value 0.5, eigenvalues 0.3 and 0. W^z = 0.05 on the diagonal.
    weights = GatedWeights.from_arrays({
        "state.W": [[0.0, 0.1], [-0.2, 0.0]], "state.W_in": [[1.0], [1.0]],
        "reset.W": [[0.3, 0.4], [0.0, 0.0]], "reset.W_in": [[0.0], [0.0]],
        "update.W": [[0.05, 0.0], [0.0, 0.05]], "update.W_in": [[0.0], [0.0]],
    })  # fmt: skip
    norms = recurrent_norms(weights)
    assert norms["state"].spectral_norm == pytest.approx(0.2)
    assert norms["state"].spectral_radius == pytest.approx(0.02**0.5)
    assert norms["state"].frobenius_norm == pytest.approx(0.05**0.5)
    assert norms["reset"].spectral_norm == pytest.approx(0.5)
    assert norms["reset"].spectral_radius == pytest.approx(0.3)
    assert norms["update"].spectral_norm == pytest.approx(0.05)
    bound = contractivity_bound(0.2, 0.5, 0.05, z_max=0.55)
    assert bound.state_term == pytest.approx(0.3)
    assert bound.update_term == pytest.approx(0.1)
    assert bound.total == pytest.approx(0.95)
    assert bound.contractive
    assert not bound.may_be_non_contractive
    # 0.2 · 1.125 + 0.025 + 0.55, and with z >= 0.4 only 0.6 of the first term.
    assert lipschitz_bound(0.2, 0.5, 0.05, z_max=0.55) == pytest.approx(0.8)
    assert lipschitz_bound(0.2, 0.5, 0.05, z_max=0.55, z_min=0.4) == pytest.approx(0.71)
    # σ(±0.05) bounds the update gate of a network without inputs to it.
    assert update_gate_range(weights, 1.0) == pytest.approx((1 / (1 + np.exp(0.05)), 1 / (1 + np.exp(-0.05))))


def test_the_printed_bound_is_spectral_and_not_of_the_radius():
    # Nilpotent: the radius 0 would promise a network that forgets at once, the norm does not.
    W = np.array([[0.0, 3.0], [0.0, 0.0]])
    norms = matrix_norms(W)
    assert norms.spectral_radius == 0.0
    assert norms.spectral_norm == norms.frobenius_norm == 3.0
    assert contractivity_bound(norms.spectral_norm, 0.0, 0.0, 0.5).may_be_non_contractive
    assert matrix_norms(np.zeros((3, 3))) == matrix_norms(csr_array((3, 3)))


def test_at_a_sum_of_one_neither_statement_says_anything():
    bound = contractivity_bound(0.25, 0.0, 0.125, z_max=0.5)
    assert bound.total == 1.0
    assert not bound.contractive
    assert not bound.may_be_non_contractive


def test_table_4_prints_frobenius_norms():
    # 3230 nodes, uniform entries, radius 5.30: printed 297.92, near √3230 · 5.30; the spectral norm is near 2 · 5.30.
    nodes = 400
    norms = recurrent_norms(
        draw_gated_weights(
            nodes, 2, seed=0, spectral_radius=5.30, reset_spectral_radius=0.28, update_spectral_radius=0.06
        )
    )
    for name, radius in (("state", 5.30), ("reset", 0.28), ("update", 0.06)):
        assert norms[name].spectral_radius == pytest.approx(radius, rel=1e-6)
        assert norms[name].frobenius_norm == pytest.approx(nodes**0.5 * radius, rel=0.06)
        assert norms[name].spectral_norm == pytest.approx(2 * radius, rel=0.06)
    for printed_radius, printed_norm in ((1.35, 76.38), (5.30, 297.92), (0.28, 15.70)):
        assert printed_norm == pytest.approx(3230**0.5 * printed_radius, rel=0.02)


@pytest.mark.parametrize("options", [{}, {"connections_per_node": 8}])
def test_norms_of_large_matrices(options: dict[str, Any]):
    W = draw_gated_weights(1100, 1, seed=1, **options).reset.recurrent()
    dense = W.toarray() if isinstance(W, csr_array) else W
    assert isinstance(W, csr_array) is bool(options)
    norms = matrix_norms(W)
    assert norms.spectral_norm == pytest.approx(np.linalg.norm(dense, 2), rel=1e-9)
    assert norms.frobenius_norm == pytest.approx(np.linalg.norm(dense), rel=1e-9)
    assert norms.spectral_radius == pytest.approx(0.9, rel=1e-3)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("connectivity", [1.0, 0.2])
def test_no_network_violates_the_bounds(seed: int, connectivity: float):
    rng = np.random.default_rng([seed, int(10 * connectivity)])
    radii = rng.uniform(0, 3, 3)
    weights = draw_gated_weights(
        20, 2, seed=seed, connectivity=connectivity, spectral_radius=radii[0], reset_spectral_radius=radii[1],
        update_spectral_radius=radii[2], input_scaling=rng.uniform(0, 2), reset_input_scaling=rng.uniform(0, 2),
        update_input_scaling=rng.uniform(0, 2), bias_scaling=0.5, reset_bias=rng.normal(), update_bias=rng.normal(),
    )  # fmt: skip
    norms = [n.spectral_norm for n in recurrent_norms(weights).values()]
    z_min, z_max = update_gate_range(weights, 1.0)
    sharp = lipschitz_bound(*norms, z_max=z_max, z_min=z_min)
    assert sharp <= contractivity_bound(*norms, z_max=z_max).total
    u = rng.uniform(-1, 1, (500, 2))
    here = rng.uniform(-1, 1, (500, 20))
    for distance in (1e-6, 0.1, 2.0):
        there = np.clip(here + distance * rng.uniform(-1, 1, here.shape), -1, 1)
        z = np.concatenate([weights.gates(u, here)[1], weights.gates(u, there)[1]])
        assert z_min <= z.min()
        assert z.max() <= z_max
        grown = np.linalg.norm(step(weights, u, here) - step(weights, u, there), axis=1)
        assert (grown <= sharp * np.linalg.norm(here - there, axis=1) * (1 + 1e-9)).all()


def test_contractive_trajectories_come_together_at_the_rate_of_the_bound():
    weights = draw_gated_weights(
        40, 1, seed=3, spectral_radius=0.09, reset_spectral_radius=0.5, update_spectral_radius=0.02,
        update_input_scaling=0.1, update_bias=-1.0,
    )  # fmt: skip
    norms = [n.spectral_norm for n in recurrent_norms(weights).values()]
    z_min, z_max = update_gate_range(weights, 1.0)
    printed = contractivity_bound(*norms, z_max=z_max)
    rate = lipschitz_bound(*norms, z_max=z_max, z_min=z_min)
    assert rate < printed.total
    assert printed.contractive
    rng = np.random.default_rng(0)
    first, second = rng.uniform(-1, 1, (2, 40))
    distances = [np.linalg.norm(first - second)]
    for u in rng.uniform(-1, 1, (25, 1)):
        first, second = step(weights, u, first), step(weights, u, second)
        distances.append(np.linalg.norm(first - second))
    steps = np.arange(len(distances))
    assert (distances <= distances[0] * rate**steps * (1 + 1e-9)).all()
    assert distances[-1] < 1e-6 * distances[0]


def test_a_network_beyond_the_bound_can_remember_for_ever():
    # One node, r = z = 1/2: x' = z x + (1 - z) tanh(8 x / 2) has three fixed points.
    weights = GatedWeights.from_arrays({
        "state.W": [[8.0]], "state.W_in": [[0.0]], "reset.W": [[0.0]], "reset.W_in": [[0.0]],
        "update.W": [[0.0]], "update.W_in": [[0.0]],
    })  # fmt: skip
    assert contractivity_bound(8.0, 0.0, 0.0, 0.5).may_be_non_contractive
    x = np.array([[0.5], [-0.5]])
    for _ in range(200):
        x = step(weights, np.zeros((2, 1)), x)
    assert x[0, 0] > 0.9
    assert x[1, 0] < -0.9


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: contractivity_bound(-1.0, 0.0, 0.0, 0.5), "negative"),
        (lambda: contractivity_bound(1.0, float("nan"), 0.0, 0.5), "negative"),
        (lambda: contractivity_bound(1.0, 0.0, 0.0, 1.5), "z_max"),
        (lambda: lipschitz_bound(1.0, 0.0, 0.0, 0.5, 0.6), "z_min"),
        (lambda: update_gate_range(draw_gated_weights(4, 2, seed=0), [1.0]), "one per input"),
    ],
)
def test_numbers_that_cannot_be(call: Any, message: str):
    with pytest.raises(ConfigurationError, match=message):
        call()
