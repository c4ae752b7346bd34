"""Every measure of every source, what a source says of those it cannot give, and where a number could be wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from measures.known import Map, linear, random, random_matrix
from toys import SnapshotToy, Toy

from reservoir_hw.core.errors import InputRangeError, NotSupported
from reservoir_hw.measures import MEASURES, Live, Recorded, Source, effective_dimension, information_processing_capacity


def measured(source: Source) -> dict[str, float]:
    return {name: getattr(source, name)().value for name in MEASURES}


def driven(f: Any, inputs: np.ndarray, noise: float = 0.0) -> np.ndarray:
    """States (sequences, time, 2) of a one-dimensional map, read twice."""
    x = np.zeros((len(inputs), 1))
    states = np.empty((*inputs.shape[:2], 1))
    for t in range(inputs.shape[1]):
        x = states[:, t] = f(x, inputs[:, t])
    return states * [1.0, -2.0] + noise * random(0).standard_normal((*inputs.shape[:2], 2))


@pytest.mark.parametrize(
    "declared",
    [
        {"continuity": "held"},
        {"continuity": "held", "max_batch": 1},
        {"continuity": "free_running", "max_batch": 3},
        {"continuity": "replayed", "memory_steps": 30, "max_batch": 4},
    ],
)
def test_every_measure_of_every_kind_of_device(declared: dict[str, Any]) -> None:
    with Map(lambda x, u: 0.8 * x + u, noise=1e-3, **declared) as device:
        done: list[int] = []
        live = Live(device, steps=2000, washout=50, on_steps=done.append)
        found = measured(live)
        assert sum(done) == live.planned_steps(MEASURES)
        assert device.spec.continuity == declared["continuity"]
    assert found["lyapunov_exponent"] == pytest.approx(np.log(0.8), abs=0.03)
    assert found["echo_state_index"] == 1
    assert found["consistency"] > 0.99
    assert found["kernel_rank"] == 1


def test_steps_of_a_device_that_can_be_set() -> None:
    with SnapshotToy(deterministic=True) as device:
        done: list[int] = []
        live = Live(device, steps=1000, washout=20, repeats=3, streams=4, on_steps=done.append)
        for name in MEASURES:
            before = sum(done)
            getattr(live, name)()
            alone = live.planned_steps([name])
            assert sum(done) - before in (alone, 0), name
        assert sum(done) == live.planned_steps(MEASURES)
        assert live.lyapunov_exponent().value == pytest.approx(np.log(0.5), abs=1e-6)


def test_inputs_stay_in_the_range_and_repeat_with_the_seed() -> None:
    drives = []
    for seed in (1, 1, 2):
        with Toy(input_range=(0.2, 0.5)) as device:
            live = Live(device, steps=300, washout=20, seed=seed)
            live.consistency()
            live.echo_state_index()
            assert all(u.min() >= 0.2 and u.max() <= 0.5 for u in device.driven)
            drives.append(np.concatenate([u.ravel() for u in device.driven]))
    assert (drives[0] == drives[1]).all()
    assert (drives[0] != drives[2]).any()


@pytest.mark.slow
def test_a_recording_is_measured_as_the_live_device() -> None:
    W = random_matrix(20, 0.9)
    with linear(W) as device:
        live = Live(device, steps=5000, washout=300)
        inputs, states = live.recording()
        expected = live.memory_capacity(), live.processing_capacity(), live.effective_dimension()
    recorded = Recorded((inputs, states), washout=300)
    assert recorded.memory_capacity().value == expected[0].value
    # The polynomials are those of the sample instead of Legendre's.
    assert recorded.processing_capacity().value == pytest.approx(expected[1].value, rel=0.02)
    assert recorded.effective_dimension().value == expected[2].value
    recorded.drift()


def test_repeated_drives_are_found_among_recordings() -> None:
    rng = random(1)
    drive = rng.uniform(-1, 1, (1, 400, 1))
    repeats = [np.concatenate([rng.uniform(-1, 1, (2, 100, 1)), np.repeat(drive, 2, axis=0)], axis=1) for _ in range(2)]
    other = rng.uniform(-1, 1, (1, 900, 1))
    pairs = [(u, driven(lambda x, v: 0.8 * x + v, u, 1e-3)) for u in (repeats[0], other, repeats[1])]
    recorded = Recorded(*pairs)
    assert recorded.repeats().shape == (4, 400, 2)
    np.testing.assert_array_equal(recorded.repeats()[:2], pairs[0][1][:, 100:])
    assert recorded.recording()[1] is pairs[0][1]
    assert recorded.lyapunov_exponent().value == pytest.approx(np.log(0.8), abs=0.05)
    assert recorded.echo_state_index().value == 1
    assert recorded.kernel_rank().value == 2
    assert Recorded(*pairs, washout=50).consistency().value > 0.999
    assert Recorded(*pairs, washout=50).signal_to_noise().value > 30
    assert not Recorded(*pairs, washout=50).drift().mean_significant.any()


def test_repeats_of_a_bistable_device() -> None:
    rng = random(2)
    past = np.concatenate([np.full((1, 50, 1), 30.0), np.full((1, 50, 1), -30.0), rng.uniform(-30, 30, (4, 50, 1))])
    u = np.concatenate([past, np.repeat(rng.uniform(-1, 1, (1, 200, 1)), 6, axis=0)], axis=1)
    recorded = Recorded((u, driven(lambda x, v: np.tanh(2 * x + 0.1 * v), u, 0.01)))
    assert recorded.echo_state_index().value == 2
    assert recorded.consistency().value < 0.99


def test_inputs_that_are_held() -> None:
    with Map(lambda x, u: 0.5 * x + u) as device:
        done: list[int] = []
        live = Live(device, steps=100, washout=10, hold=3, on_steps=done.append)
        inputs, states = live.recording()
        assert sum(done) == live.planned_steps(["memory_capacity"]) == 3 * 110
    x, expected = 0.0, []
    for u in inputs[0, :, 0]:
        x = x / 8 + u * (1 + 1 / 2 + 1 / 4)
        expected.append(x)
    np.testing.assert_allclose(states[0, :, 0], expected, rtol=1e-12)


def network(u: np.ndarray, nodes: int = 10, noise: float = 0.0) -> np.ndarray:
    """States (time, nodes) of a tanh network."""
    rng = np.random.default_rng(1)
    weights = rng.normal(0, 0.8 / nodes**0.5, (nodes, nodes))
    entry = rng.uniform(-1, 1, nodes)
    states = np.empty((len(u), nodes))
    x = np.zeros(nodes)
    for t, value in enumerate(u):
        x = np.tanh(weights @ x + entry * value)
        states[t] = x
    return states + noise * rng.standard_normal(states.shape)


def test_inputs_that_are_uncorrelated_and_not_independent_are_refused() -> None:
    rng = np.random.default_rng(0)
    u = rng.uniform(-1, 1, 8000)
    capacity = information_processing_capacity(u[:, None], network(u), max_delays=[30, 10])
    assert capacity.by_degree.sum() <= 10.5
    paused = u * (np.arange(8000) % 2000 < 1500)
    with pytest.raises(InputRangeError, match="the squares of the inputs are correlated over time"):
        information_processing_capacity(paused[:, None], network(paused), max_delays=[30, 10], distribution="empirical")
    fading = u * np.repeat(rng.uniform(0.2, 1, 40), 200)
    with pytest.raises(InputRangeError, match="the squares of the inputs are correlated over time"):
        information_processing_capacity(fading[:, None], network(fading), max_delays=[30], distribution="empirical")


@pytest.mark.slow
@pytest.mark.parametrize(("correlation", "steps"), [(0.0, 1000), (0.9, 4000)])
def test_the_interval_of_the_dimension_holds_the_truth(correlation: float, steps: int) -> None:
    scales = np.array([1.0] * 6 + [0.5] * 4)
    truth = (scales**2).sum() ** 2 / (scales**4).sum()
    held, values = 0, []
    for seed in range(100):
        x = np.random.default_rng(seed).standard_normal((steps, 10))
        for t in range(1, steps if correlation else 0):
            x[t] = correlation * x[t - 1] + (1 - correlation**2) ** 0.5 * x[t]
        found = effective_dimension(x * scales)
        values.append(found.value)
        held += found.interval.low <= truth <= found.interval.high
    assert held >= 88
    assert abs(np.mean(values) - truth) < 0.1


def test_a_common_pause_at_the_end_is_no_repeated_drive() -> None:
    rng = np.random.default_rng(0)
    u = rng.uniform(-1, 1, (4, 200, 1))
    u[:, 120:] = 0.0
    states = np.stack([network(row[:, 0]) for row in u])
    with pytest.raises(NotSupported, match="no repeated drives"):
        Recorded((u, states)).repeats()
    u[:, 120:] = rng.uniform(-1, 1, (80, 1))
    assert Recorded((u, states)).repeats().shape == (4, 80, 10)
