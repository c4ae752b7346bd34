"""Kernel and generalisation rank, effective dimension, and the statistics behind all intervals, of known cases."""

from __future__ import annotations

import numpy as np
import pytest
from measures.known import correlated, linear, random

from reservoir_hw.core.statistics import t_quantile
from reservoir_hw.measures import Live, effective_dimension, generalisation_rank, kernel_rank
from reservoir_hw.measures._measured import batch_means, chi2_quantile, correlation_times, remark


@pytest.mark.parametrize("rank", [1, 3, 20])
def test_rank_of_a_product(rank: int) -> None:
    rng = random(rank)
    x = rng.standard_normal((30, rank)) @ rng.standard_normal((rank, 20))
    found = kernel_rank(x)
    assert found.value == rank
    assert (found.interval.low, found.interval.high) == (rank, rank)
    assert kernel_rank(x.astype(np.float32)).value == rank


def test_noise_does_not_count() -> None:
    rng = random(1)
    x = rng.standard_normal((60, 4)) @ rng.standard_normal((4, 50)) + 0.01 * rng.standard_normal((60, 50))
    assert kernel_rank(x).value == 50
    assert kernel_rank(x, noise=0.01).value == 4
    assert kernel_rank(x, noise=np.full(50, 0.01)).value == 4
    assert kernel_rank(x, threshold=1e9).value == 0
    pure = rng.standard_normal((40, 60, 50))
    # A matrix of pure noise passes for a signal less than once in twenty times.
    assert np.mean(kernel_rank(pure, noise=1.0).ranks > 0) <= 0.05


def test_several_sets_of_streams_give_an_interval() -> None:
    rng = random(2)
    sets = [rng.standard_normal((10, rank)) @ rng.standard_normal((rank, 10)) for rank in (4, 5, 6)]
    found = kernel_rank(np.stack(sets))
    assert found.value == 5
    assert found.ranks.tolist() == [4, 5, 6]
    assert found.interval.low < 5 < found.interval.high <= 10


def test_streams_into_a_delay_line() -> None:
    # 12 nodes hold the last 12 inputs; of similar streams the last three are the same in all.
    with linear(np.diag(np.ones(11), -1)) as line:
        line.upload({"W": np.diag(np.ones(11), -1), "W_in": np.eye(12, 1)})
        live = Live(line, steps=1000, washout=50)
        kernel, similar = live.kernel_rank(), live.generalisation_rank()
    assert kernel.value == 12
    assert kernel.streams == "different"
    # Nine inputs that differ, and one direction for what they share.
    assert similar.value == 10
    assert similar.streams == "similar"


def test_the_same_stream_again_and_again_has_rank_one() -> None:
    assert generalisation_rank(np.tile(random(3).standard_normal(20), (10, 1))).value == 1


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


@pytest.mark.slow
def test_batch_means_of_a_correlated_series() -> None:
    rng = random(4)
    hits = []
    for _ in range(300):
        found = batch_means(correlated(rng, 1000, 1, 0.8)[:, 0])
        interval = found.interval(found.mean)
        hits.append(interval.low <= 0 <= interval.high)
    assert 0.9 <= np.mean(hits) <= 0.99


@pytest.mark.slow
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
