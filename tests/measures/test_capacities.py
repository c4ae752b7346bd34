"""Memory and processing capacity of reservoirs whose capacities are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from measures.known import delayed, random

from reservoir_hw import open_reservoir
from reservoir_hw.measures import information_processing_capacity, memory_capacity

STEPS = 40_000


def states_of(reservoir: dict[str, Any], steps: int = STEPS, washout: int = 1000) -> tuple[np.ndarray, np.ndarray]:
    u = random().uniform(-1, 1, (1, washout + steps, 1))
    with open_reservoir({"kind": "esn", "activation": "identity", "dtype": "float64", **reservoir}, inputs=1) as esn:
        esn.reset()
        return u, np.asarray(esn.run(u))


def test_memory_of_a_delay_line_is_its_length() -> None:
    u, x = states_of({"nodes": 50, "topology": "delay_line", "input_connectivity": 1.0})
    found = memory_capacity(u, x, max_delay=100, washout=1000)
    assert found.value == pytest.approx(50, rel=0.01)
    assert found.rank == 50
    u = random().uniform(-1, 1, STEPS)
    shift_register = np.stack([delayed(u, k) for k in range(30)], axis=1)
    found = memory_capacity(u[:, None], shift_register, max_delay=60)
    np.testing.assert_allclose(found.capacities[0], np.arange(61) < 30, atol=1e-9)
    assert found.interval.low <= 30 <= found.interval.high


def test_memory_of_a_ring_follows_its_formula() -> None:
    # Fed at one node: delay k stands in node k mod nodes, among its own rounds before.
    nodes, radius = 10, 0.95
    u = random().uniform(-1, 1, STEPS)
    first = u.copy()
    for begin in range(nodes, STEPS, nodes):
        first[begin : begin + nodes] += radius**nodes * first[begin - nodes : begin]
    x = np.stack([radius**k * delayed(first, k) for k in range(nodes)], axis=1)
    found = memory_capacity(u[:, None], x, max_delay=5 * nodes, washout=20 * nodes)
    rounds = np.arange(5 * nodes + 1) // nodes
    expected = radius ** (2 * nodes * rounds) * (1 - radius ** (2 * nodes))
    np.testing.assert_allclose(found.capacities[0], expected, atol=0.006)
    assert found.value == pytest.approx(expected.sum(), rel=0.01)
    assert found.value <= nodes


@pytest.mark.slow
def test_capacities_of_a_linear_orthogonal_reservoir_add_up_to_its_nodes() -> None:
    u, x = states_of({"nodes": 50, "topology": "orthogonal", "spectral_radius": 0.9}, steps=40_000)
    memory = memory_capacity(u, x, max_delay=300, washout=1000)
    assert memory.value == pytest.approx(50, rel=0.01)
    processing = information_processing_capacity(u, x, max_delays=(200, 20, 6), washout=1000, input_range=(-1, 1))
    assert 50 * 0.97 <= processing.value <= 50
    assert processing.by_degree[0] == pytest.approx(50, rel=0.03)
    assert processing.by_degree[1:].sum() < 0.05
    assert processing.by_delay.sum() == pytest.approx(processing.by_degree.sum())


def test_directions_below_the_tolerance_do_not_count() -> None:
    u = random(12).uniform(-1, 1, (2000, 1))
    x = np.stack([u[:, 0], 1e-3 * delayed(u[:, 0], 1) + u[:, 0]], axis=1)
    assert memory_capacity(u, x, max_delay=3, washout=10).value == pytest.approx(2, abs=0.01)
    assert memory_capacity(u, x, max_delay=3, washout=10, tolerance=0.1).value == pytest.approx(1, abs=0.01)
    found = information_processing_capacity(u, x, max_delays=(3,), washout=10, tolerance=0.1)
    assert found.value == pytest.approx(1, abs=0.01)


def test_a_nonlinear_reservoir_stays_within_its_nodes() -> None:
    u, x = states_of({"nodes": 20, "activation": "tanh", "input_scaling": 0.5}, steps=20_000)
    found = information_processing_capacity(u, x, max_delays=(60, 30, 14, 6), washout=1000, input_range=(-1, 1))
    assert 18 < found.value <= 20
    # tanh is odd: without a bias, even degrees cannot be computed.
    assert found.by_degree[[1, 3]].sum() < 0.05
    assert found.by_degree[2] > 1


@pytest.mark.parametrize("distribution", ["uniform", "normal", "empirical"])
def test_products_are_found_where_they_are(distribution: Any) -> None:
    rng = random(4)
    normal = distribution == "normal"
    u = rng.standard_normal(20_000) if normal else rng.uniform(-2, 4, 20_000)
    z = u if normal else (u - 1) / 3
    second = z**2 - 1 if normal else (3 * z**2 - 1) / 2
    x = np.stack(
        [z * delayed(z, 1), delayed(second, 2), delayed(z, 3), delayed(z, 1) * delayed(z, 2) * delayed(z, 4)], axis=1
    )
    found = information_processing_capacity(
        u[:, None], x + rng.standard_normal((1, 4)), max_delays=(6, 6, 4), washout=10, distribution=distribution
    )
    np.testing.assert_allclose(found.by_degree, [1, 2, 1], atol=0.02)
    best = found.factors[np.argsort(-found.capacities)[:4]]
    assert {tuple(map(tuple, f[f[:, 0] > 0].tolist())) for f in best} == {
        ((1, 0, 0), (1, 0, 1)), ((2, 0, 2),), ((1, 0, 3),), ((1, 0, 1), (1, 0, 2), (1, 0, 4)),
    }  # fmt: skip


def test_several_channels_and_sequences() -> None:
    rng = random(5)
    u = rng.uniform(-1, 1, (3, 8000, 2))
    x = np.stack([[delayed(s[:, 0], 1), delayed(s[:, 1], 2), s[:, 0] * delayed(s[:, 1], 1)] for s in u])
    x = x.transpose(0, 2, 1)
    memory = memory_capacity(u, x, max_delay=4)
    np.testing.assert_allclose(memory.capacities, [[0, 1, 0, 0, 0], [0, 0, 1, 0, 0]], atol=0.01)
    found = information_processing_capacity(u, x, max_delays=(4, 2))
    np.testing.assert_allclose(found.by_degree, [2, 1], atol=0.02)
    assert found.factors[np.argmax(np.where(found.factors[:, 1, 0] > 0, found.capacities, 0))].tolist() == [
        [1, 0, 0], [1, 1, 1],
    ]  # fmt: skip


def test_noise_remembers_nothing() -> None:
    rng = random(6)
    u, x = rng.uniform(-1, 1, (20_000, 1)), rng.standard_normal((20_000, 100))
    found = memory_capacity(u, x, max_delay=500, significance=1e-3)
    # Without the threshold and the correction it would be 501 · 100 / 20,000.
    assert found.recall.sum() == pytest.approx(2.5, rel=0.2)
    assert found.value < 0.05


@pytest.mark.slow
def test_the_threshold_holds_for_functions_that_share_inputs_with_the_states() -> None:
    # The functions of one recording are too large or too small together, so several recordings are averaged.
    rates = np.zeros((30, 2))
    for seed, rate in enumerate(rates):
        u = random(seed).uniform(-1, 1, 3000)
        x = np.stack([delayed(u, k) for k in range(10)], axis=1)
        found = information_processing_capacity(
            u[:, None], x, max_delays=(0, 20, 8), significance=1e-2, input_range=(-1, 1)
        )
        degree = found.factors[:, :, 0].sum(axis=1)
        rate[:] = [np.mean(found.capacities[degree == of] > 0) for of in (2, 3)]
    assert (rates.mean(axis=0) < 0.025).all()


@pytest.mark.slow
def test_intervals_hold_what_they_promise() -> None:
    rng = random(8)
    noise, runs, hits = 0.7, 300, np.zeros(2)
    for _ in range(runs):
        u = rng.uniform(-1, 1, 1000)
        signals = np.stack([delayed(u, 0), delayed(u, 2), delayed(u, 1) * u * 3**0.5], axis=1) * 3**0.5
        x = signals + noise * rng.standard_normal(signals.shape)
        share = 1 / (1 + noise**2)
        memory = memory_capacity(u[:, None], x[:, :2], max_delay=5)
        processing = information_processing_capacity(u[:, None], x, max_delays=(5, 3), input_range=(-1, 1))
        hits += [
            memory.interval.low <= 2 * share <= memory.interval.high,
            processing.interval.low <= 3 * share <= processing.interval.high,
        ]
    assert (hits / runs >= 0.9).all()
    assert (hits / runs <= 0.99).all()


def test_correlated_inputs_are_told() -> None:
    white = random(10).uniform(-1, 1, (3000, 1))
    slow = white[1:] + white[:-1]
    assert "correlated over time" in memory_capacity(slow, white[1:], max_delay=5).note
