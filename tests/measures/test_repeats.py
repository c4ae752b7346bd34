"""Responses with known signal, noise and trend: consistency, signal-to-noise ratio, drift, and the noise budget."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from measures.known import Map, correlated, random, random_matrix

from reservoir_hw.measures import (
    Live,
    Measured,
    NoiseBudget,
    Recorded,
    consistency,
    drift,
    noise_budget,
    signal_to_noise,
)


def responses(rng: np.random.Generator, noise: np.ndarray, repeats: int = 4, steps: int = 20_000) -> np.ndarray:
    """The same unit signal in each repeat, and noise of this standard deviation in each node."""
    nodes = len(noise)
    signal = correlated(rng, steps, nodes, 0.5)
    return signal + noise * rng.standard_normal((repeats, steps, nodes))


def test_consistency_is_the_share_of_the_signal() -> None:
    noise = np.array([0.0, 0.5, 1.0, 2.0, 5.0])
    found = consistency(responses(random(), noise))
    expected = 1 / (1 + noise**2)
    np.testing.assert_allclose(found.nodes, expected, atol=0.02)
    assert found.value == pytest.approx(expected.mean(), abs=0.01)
    # The signals are independent, so the directions are the nodes.
    np.testing.assert_allclose(found.profile, np.sort(expected)[::-1], atol=0.02)
    assert found.capacity == pytest.approx(expected.sum(), abs=0.05)


def test_consistency_capacity_sees_a_signal_that_every_node_hides() -> None:
    rng = random(1)
    signal, nuisance = rng.standard_normal((20_000, 1)), 5 * rng.standard_normal((3, 20_000, 1))
    x = np.concatenate([signal + nuisance, signal - nuisance], axis=2)
    found = consistency(x)
    assert found.value < 0.1
    np.testing.assert_allclose(found.profile, [1, 0], atol=0.02)


def test_offset_gain_and_dead_nodes_do_not_change_the_consistency() -> None:
    rng = random(2)
    signal = rng.standard_normal((5000, 2))
    x = np.stack([signal, 3 * signal + 7])
    x = np.concatenate([x, np.full((2, 5000, 1), 0.1)], axis=2)
    found = consistency(x)
    np.testing.assert_allclose(found.nodes, [1, 1, np.nan])
    assert found.value == pytest.approx(1)
    assert "1 nodes do not move" in found.note


def test_signal_to_noise_in_decibels() -> None:
    noise = np.array([0.01, 0.1, 1.0, 10.0])
    found = signal_to_noise(responses(random(3), noise))
    assert (np.abs(found.nodes + 20 * np.log10(noise)) < [0.1, 0.1, 0.2, 3.0]).all()
    np.testing.assert_allclose(found.noise, noise, rtol=0.02)
    np.testing.assert_allclose(found.signal[:3], 1, rtol=0.02)
    assert found.value == pytest.approx(-10 * np.log10((noise**2).sum() / 4), abs=0.3)


def test_without_noise_and_without_signal() -> None:
    rng = random(4)
    signal = rng.standard_normal((2000, 3))
    found = signal_to_noise(np.stack([signal, signal]))
    assert found.value == np.inf
    assert np.isposinf(found.nodes).all()
    assert "No noise" in found.note
    assert not found.noise.any()
    tiny = signal_to_noise(np.stack([signal, signal + 1e-9 * rng.standard_normal((2000, 3))]))
    np.testing.assert_allclose(tiny.noise, 1e-9 / np.sqrt(2), rtol=0.1)
    found = signal_to_noise(rng.standard_normal((2, 2000, 3)))
    assert found.value < -10
    assert found.interval.low == -np.inf


def test_drift_of_one_node_along_a_recording_and_between_repeats() -> None:
    rng = random(5)
    x = correlated(rng, 10_000, 4, 0.5)
    x[:, 2] += np.linspace(-0.5, 0.5, 10_000)
    x[:, 3] *= np.linspace(1.0, 1.5, 10_000)
    found = drift(x)
    assert found.mean_significant.tolist() == [False, False, True, False]
    assert found.gain_significant.tolist() == [False, False, False, True]
    # From the middle of the first of 20 segments to the middle of the last, in deviations of the whole.
    assert found.mean_change[2] == pytest.approx(0.95 / (1 + 1 / 12) ** 0.5, abs=0.1)
    assert found.gain_change[3] == pytest.approx(0.475 / 1.26, abs=0.1)
    assert found.interval.low > 0
    signal = correlated(rng, 500, 4, 0.5)
    repeats = signal + 0.1 * rng.standard_normal((8, 500, 4))
    repeats[:, :, 1] += np.arange(8)[:, None] / 7 * 0.05
    found = drift(repeats)
    assert found.mean_significant.tolist() == [False, True, False, False]
    assert found.value == pytest.approx(0.05, abs=0.02)


def memory_toy(**declared: object) -> Map:
    return Map(lambda x, u: x / 2 + u, **declared)  # type: ignore[arg-type]


@pytest.mark.parametrize("continuity", ["held", "free_running"])
def test_live(continuity: str) -> None:
    # Variance of a sum of u/2^k with u uniform on ±1: 4/9.
    with memory_toy(noise=0.2, max_batch=1, continuity=continuity) as device:
        live = Live(device, steps=5000)
        assert live.signal_to_noise().value == pytest.approx(10 * np.log10(4 / 9 / 0.04), abs=0.3)
        assert live.consistency().value == pytest.approx(4 / 9 / (4 / 9 + 0.04), abs=0.01)
        assert live.drift().interval.low == 0
    # The device is reset before and after each of ten drives.
    with memory_toy(noise=0.01, drift=0.001, continuity=continuity) as device:
        found = Live(device, steps=5000).drift()
        assert found.value == pytest.approx(9 * 0.002 / (2 / 3), abs=0.003)
        assert found.interval.low > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("measure", "make", "truth"),
    [
        (consistency, lambda rng: responses(rng, np.ones(2), 3, 600), 0.5),
        (signal_to_noise, lambda rng: responses(rng, np.full(2, 0.3), 3, 600), -20 * np.log10(0.3)),
        (signal_to_noise, lambda rng: responses(rng, np.full(2, 3.0), 3, 600), -20 * np.log10(3.0)),
    ],
)  # fmt: skip
def test_intervals_hold_what_they_promise(
    measure: Callable[[np.ndarray], Measured], make: Callable[[np.random.Generator], np.ndarray], truth: float
) -> None:
    rng = random(6)
    found = [measure(make(rng)).interval for _ in range(150)]
    assert 0.9 <= np.mean([interval.low <= truth <= interval.high for interval in found]) <= 0.99


@pytest.mark.slow
@pytest.mark.parametrize(("memory", "steps"), [(0.9, 1000), (0.99, 2000), (0.99, 8000)])
def test_intervals_of_slow_responses(memory: float, steps: int) -> None:
    """Correlated over 20 and 200 steps; with 20 pieces of any length 0.99 held in 79 % and drifted in 25 %."""
    rng = random(10)
    held: list[bool] = []
    drifting, known = 0, 0
    for _ in range(100):
        signal = correlated(rng, steps, 2, memory)
        interval = consistency(signal + rng.standard_normal((3, steps, 2))).interval
        held.append(interval.low <= 0.5 <= interval.high)
        known += interval.high - interval.low < 0.5
        drifting += drift(signal).interval.low > 0
    assert np.mean(held) >= 0.9
    assert drifting <= 10
    # Where there is enough to tell, it is told.
    if steps * (1 - memory) >= 80:
        assert known >= 90


def test_a_short_recording_of_slow_responses_says_so() -> None:
    rng = random(11)
    signal = correlated(rng, 500, 3, 0.99)
    x = np.concatenate([signal + 0.1 * rng.standard_normal((3, 500, 3)), np.full((3, 500, 1), 0.1)], axis=2)
    found = consistency(x)
    assert (found.interval.low, found.interval.high) == (-1, 1)
    assert "Record longer" in found.note
    assert "Record longer" in signal_to_noise(x).note
    alone = drift(x[0])
    assert "3 nodes are too slow for a verdict" in alone.note
    assert (alone.interval.low, alone.interval.high) == (0, np.inf)
    assert not alone.mean_significant.any()
    # The same responses driven again tell drift from slowness.
    assert np.isfinite(drift(x).interval.high)


@pytest.mark.slow
def test_the_interval_of_drift_is_simultaneous() -> None:
    rng = random(7)
    hits = []
    for change in (0.0, 0.1):
        for _ in range(150):
            x = correlated(rng, 100, 5, 0.3) + 0.2 * rng.standard_normal((6, 100, 5))
            x[:, :, 0] += np.arange(6)[:, None] / 5 * change
            interval = drift(x).interval
            hits.append(interval.low <= change / x[:, :, 0].std() <= interval.high)
    assert np.mean(hits) >= 0.95


DELAYS = (40, 20, 8, 5)
NODES = 8


def network_responses(steps: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs (steps, 1) and noiseless states (steps, nodes) of a network that forgets."""
    W, w = random_matrix(NODES, 0.6), random(3).uniform(-0.5, 0.5, NODES)
    u = random(seed).uniform(-1, 1, (steps + 100, 1))
    x, states = np.zeros(NODES), np.empty((steps + 100, NODES))
    for t in range(steps + 100):
        x = states[t] = np.tanh(W @ x + w * u[t, 0] + 0.1)
    return u[100:], states[100:]


def budget(noise: float, seed: int, repeats: int = 4) -> NoiseBudget:
    u, states = network_responses(8000, seed)
    planted = noise * random(seed + 1000).standard_normal((repeats, *states.shape))
    return noise_budget(u, states + planted, max_delays=DELAYS, input_range=(-1, 1))


def lost_to(noise: float) -> float:
    """What this noise takes of the rank: tr(C⁻¹ (C - S)) of the noiseless states of a long drive."""
    S = np.cov(network_responses(50_000, 77)[1].T)
    return NODES - float(np.trace(np.linalg.solve(S + noise**2 * np.eye(NODES), S)))


@pytest.mark.parametrize("noise", [0.1, pytest.param(0.01, marks=pytest.mark.slow)])
def test_planted_noise_is_found_and_the_budget_adds_up(noise: float) -> None:
    true, half = lost_to(noise), lost_to(noise / 2**0.5)
    found = [budget(noise, seed) for seed in range(4)]
    for one in found:
        assert one.rank == pytest.approx(one.linear + one.nonlinear + one.lost + one.rest)
        assert one.value == one.lost[0]
        assert list(one.repetitions) == [1, 2]
        assert one.forecast[1] == pytest.approx(one.lost[1], abs=0.05)
    within = [
        of[number].low <= value <= of[number].high
        for one in found
        for number, value, of in (
            (0, true, one.lost_intervals),
            (1, half, one.lost_intervals),
            (0, 0.0, one.rest_intervals),
            (1, 0.0, one.rest_intervals),
        )
    ]
    # 16 intervals for 95 %.
    assert sum(within) >= 13
    assert abs(np.mean([one.rest[0] for one in found])) < 0.1
    assert all(part.high - part.low < 0.4 for one in found for part in one.rest_intervals)


@pytest.mark.slow
def test_no_part_lies_beyond_what_is_possible_where_noise_is_nearly_all() -> None:
    for seed in range(3):
        one = budget(10.0, seed, repeats=3)
        assert 0 <= one.lost[0] <= one.rank[0] == NODES
        for part, interval in (
            (one.linear, one.linear_intervals),
            (one.nonlinear, one.nonlinear_intervals),
            (one.lost, one.lost_intervals),
            (one.rest, one.rest_intervals),
        ):
            assert interval[0].low <= part[0] <= interval[0].high
        assert one.rank == pytest.approx(one.linear + one.nonlinear + one.lost + one.rest)
        assert "opposed" not in one.note


def test_repetitions_that_differ_by_a_pattern_are_said() -> None:
    u, states = network_responses(4000, 0)
    pattern = random(1).standard_normal(states.shape)
    one = noise_budget(u, np.stack([pattern, -pattern]), max_delays=DELAYS, input_range=(-1, 1))
    assert one.lost[0] == NODES
    assert "opposed from one repetition to the next" in one.note


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.01, 0.1, 10.0])
def test_intervals_hold_what_was_planted(noise: float) -> None:
    true = lost_to(noise)
    found = [budget(noise, seed) for seed in range(100, 140)]
    assert np.mean([one.lost_intervals[0].low <= true <= one.lost_intervals[0].high for one in found]) >= 0.85
    assert np.mean([one.rest_intervals[0].low <= 0 <= one.rest_intervals[0].high for one in found]) >= 0.8
    assert abs(np.mean([one.lost[0] for one in found]) - true) < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1000, 3000])
def test_the_budget_of_a_short_drive_adds_up(steps: int) -> None:
    rests = []
    for seed in range(40):
        u, states = network_responses(steps, seed)
        rests.append(noise_budget(u, np.stack([states, states]), max_delays=DELAYS, input_range=(-1, 1)))
    intervals = [one.rest_intervals[0] for one in rests]
    assert np.mean([interval.low <= 0 <= interval.high for interval in intervals]) >= 0.85
    # They are no wider than the scatter asks for.
    scatter = float(np.std([one.rest[0] for one in rests]))
    assert np.mean([interval.high - interval.low for interval in intervals]) < 6 * scatter


def test_nothing_is_lost_without_noise() -> None:
    one = budget(0.0, 5, repeats=2)
    assert one.rank[0] == NODES
    assert abs(one.lost[0]) < 1e-9
    assert one.linear[0] + one.nonlinear[0] == pytest.approx(NODES, abs=0.2)
    assert one.nonlinear[0] > 1


def test_functions_that_were_not_tried_are_the_rest() -> None:
    u, states = network_responses(8000, 0)
    one = noise_budget(u, np.stack([states, states]), max_delays=(40,), input_range=(-1, 1))
    assert one.rest_intervals[0].low > 1
    assert "not tried" in one.note


@pytest.mark.slow
def test_a_device_and_its_recording() -> None:
    with Map(lambda x, u: 0.8 * x + u, noise=0.3) as device:
        done: list[int] = []
        live = Live(device, steps=2000, washout=60, repeats=3, max_delay=30, on_steps=done.append)
        assert live.planned_steps(["noise_budget"]) == 3 * (2 * 60 + 2000)
        one = live.noise_budget()
        assert sum(done) == live.planned_steps(["noise_budget"])
        inputs, states = live.repeated_drive()
    # Both nodes read the same x: one direction is the signal, with noise, and the other noise alone.
    assert one.rank[0] == 2
    assert one.lost[0] == pytest.approx(1 + 0.045 / (1 / 3 / 0.36 + 0.045), abs=0.03)
    recorded = Recorded((np.stack([inputs] * 3), states), washout=60, max_delay=30).noise_budget()
    assert recorded.lost[0] == pytest.approx(one.lost[0], abs=0.02)


@pytest.mark.slow
def test_what_has_no_repetitions() -> None:
    u, states = network_responses(8000, 0)
    noisy = states + 0.1 * random(9).standard_normal(states.shape)
    twice = noise_budget(u, np.stack([noisy, states]), max_delays=DELAYS)
    one = Recorded((u, noisy), max_delay=40).noise_budget()
    assert np.isnan(one.value)
    assert "cannot be told apart" in one.note
    assert one.linear[0] == pytest.approx(twice.linear[0], abs=0.02)
    assert one.interval.low == 0
    assert one.interval.high > lost_to(0.1)
    assert one.rank[0] == pytest.approx(one.linear[0] + one.nonlinear[0] + one.rest[0])
