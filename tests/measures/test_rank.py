"""Kernel and generalisation rank of constructed cases."""

from __future__ import annotations

import numpy as np
import pytest
from measures.known import linear, random

from reservoir_hw.measures import Live, generalisation_rank, kernel_rank


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
