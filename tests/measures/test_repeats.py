"""Consistency, signal-to-noise ratio and drift of responses with known signal, noise and trend."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from measures.known import Map, correlated, random

from reservoir_hw.measures import Live, Measured, consistency, drift, signal_to_noise


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
