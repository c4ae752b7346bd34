"""Climate: a loop that is the true system, and loops that are not; cells of a behaviour space."""

from __future__ import annotations

import numpy as np
import pytest
from measures.known import random

from reservoir_hw.measures import climate, coverage
from reservoir_hw.tasks.lorenz import lorenz_series


def pieces(start: list[float], series: int = 8, steps: int = 500) -> np.ndarray:
    whole = lorenz_series(start, 500 + series * steps, 0.02)[500:]
    return whole.reshape(series, steps, 3)


def test_another_piece_of_the_true_system_is_as_far_as_chance() -> None:
    true, other = pieces([1.0, 1.0, 25.0]), pieces([-3.0, 2.0, 20.0])
    found = climate(other, true)
    assert found.value < 1.5 * found.floor
    assert found.interval.low < found.value < found.interval.high
    # Lorenz's map: one curve, with its cusp between both sides of the attractor.
    here = np.sort(found.maxima[:, 0])
    assert len(found.maxima) > 80
    near = np.interp(here, *found.true_maxima[np.argsort(found.true_maxima[:, 0])].T)
    assert np.median(np.abs(near - found.maxima[np.argsort(found.maxima[:, 0]), 1])) < 0.1


def test_a_slower_loop_and_noise_are_seen() -> None:
    true = pieces([1.0, 1.0, 25.0])
    slower = lorenz_series([-3.0, 2.0, 20.0], 4500, 0.012)[500:].reshape(8, 500, 3)
    assert climate(slower, true).interval.low > 2 * climate(true, true).floor
    assert climate(random().standard_normal(true.shape), true).value > 10
    assert climate(true, true).value == 0


def test_the_power_is_that_of_the_series() -> None:
    white = random().standard_normal((200, 64, 1))
    assert climate(white, white).power.mean() == pytest.approx(1, abs=0.05)


def test_forecasts_that_have_diverged() -> None:
    true = pieces([1.0, 1.0, 25.0])
    loop = true.copy()
    loop[2, 100:] = np.nan
    found = climate(loop, true)
    assert found.ended == 1
    assert "1 of 8 forecasts have diverged" in found.note


def test_cells_are_counted() -> None:
    one_place = np.tile([10.5, 3.2, 4.1], (6, 1))
    spread = np.array([[5.0 + 10 * number, 5.0, 5.0] for number in range(6)])
    found = coverage(one_place, spread, nodes=100)
    assert (found.value, found.cells_beside, found.width) == (1, 6, 10)
    assert (found.interval.low, found.interval.high) == (1, 1)
    assert "6 [6, 6] cells" in found.note
    assert coverage(one_place, spread, nodes=100, cells=5).cells_beside == 3


def test_the_interval_holds_the_mean_over_settings() -> None:
    def reached(seed: int) -> np.ndarray:
        return random(seed).uniform(0, 30, (40, 3))

    found = [coverage(reached(seed), reached(seed), nodes=100) for seed in range(40)]
    mean = np.mean([one.value for one in found])
    assert np.mean([one.interval.low <= mean <= one.interval.high for one in found]) > 0.85
