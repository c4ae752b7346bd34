"""Cells of a behaviour space."""

from __future__ import annotations

import numpy as np
from measures.known import random

from reservoir_hw.measures import coverage


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
