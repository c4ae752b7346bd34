"""Where a measure could give a confident number that is wrong."""

from __future__ import annotations

import numpy as np
import pytest

from reservoir_hw.core.errors import InputRangeError, NotSupported
from reservoir_hw.measures import Recorded, effective_dimension, information_processing_capacity


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
