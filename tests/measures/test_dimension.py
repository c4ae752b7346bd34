"""Effective dimension of states with known variances, and the statistics behind all intervals."""

from __future__ import annotations

import numpy as np
import pytest
from measures.known import correlated, random

from reservoir_hw.core.statistics import t_quantile
from reservoir_hw.measures import effective_dimension
from reservoir_hw.measures._measured import batch_means, chi2_quantile, correlation_times, remark

VARIANCES = np.array([4.0, 2.0, 1.0, 0.5, 0.25])
DIMENSION = VARIANCES.sum() ** 2 / (VARIANCES**2).sum()


def states(rng: np.random.Generator, steps: int) -> np.ndarray:
    turn = np.linalg.qr(rng.standard_normal((5, 5)))[0]
    return (rng.standard_normal((steps, 5)) * np.sqrt(VARIANCES)) @ turn + 10


def test_participation_ratio() -> None:
    found = effective_dimension(states(random(), 50_000))
    assert found.value == pytest.approx(DIMENSION, rel=0.02)
    np.testing.assert_allclose(found.variances, VARIANCES, rtol=0.05)
    rng = random(1)
    one = rng.standard_normal((5000, 1)) * np.ones(6)
    assert effective_dimension(one).value == pytest.approx(1)
    apart = np.concatenate([one[:, :1], 100 * rng.standard_normal((5000, 1)), np.ones((5000, 1))], axis=1)
    assert effective_dimension(apart).value == pytest.approx(1, abs=0.01)
    assert effective_dimension(apart, standardise=True).value == pytest.approx(2, abs=0.01)
    assert "too small" in effective_dimension(states(random(3), 40)).note
    cut = effective_dimension(apart.reshape(5, 1000, 3))
    assert cut.value == pytest.approx(effective_dimension(apart).value, rel=1e-12)


def test_batch_means_of_a_correlated_series() -> None:
    rng = random(4)
    hits = []
    for _ in range(300):
        found = batch_means(correlated(rng, 1000, 1, 0.8)[:, 0])
        interval = found.interval(found.mean)
        hits.append(interval.low <= 0 <= interval.high)
    assert 0.9 <= np.mean(hits) <= 0.99


def test_the_correlation_time_of_a_series() -> None:
    rng = random(5)
    memories = np.array([0.0, 0.5, 0.9, 0.99])
    x = np.concatenate([correlated(rng, 100_000, 1, memory) for memory in memories], axis=1)
    found = correlation_times(np.concatenate([x, np.ones((len(x), 1)), -np.diff(x[:, :1], axis=0, append=0)], axis=1))
    np.testing.assert_allclose(found[:4], (1 + memories) / (1 - memories), rtol=0.2)
    assert found[4:].tolist() == [1, 1]


def test_a_series_that_is_too_slow_has_no_interval() -> None:
    rng = random(6)
    slow = batch_means(correlated(rng, 1000, 1, 0.999)[:, 0])
    interval = slow.interval(slow.mean)
    assert (interval.low, interval.high) == (-np.inf, np.inf)
    assert "Record longer" in remark(interval)
    longer = batch_means(correlated(rng, 4000, 1, 0.98)[:, 0])
    assert 4 <= longer.batches < 20
    assert remark(longer.interval(longer.mean)) == ""


def test_quantiles() -> None:
    stats = pytest.importorskip("scipy.stats")
    for degrees in (1, 2, 3, 10, 19, 200):
        for probability in (0.6, 0.975, 1 - 1e-5):
            exact = stats.t.ppf(probability, degrees)
            assert t_quantile(probability, degrees) == pytest.approx(exact, rel=1e-4)
    for degrees in (5, 50, 500):
        assert chi2_quantile(1 - 1e-4, degrees) == pytest.approx(stats.chi2.ppf(1 - 1e-4, degrees), rel=0.025)
