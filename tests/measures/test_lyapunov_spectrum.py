"""Lyapunov spectra of systems that are known."""

from __future__ import annotations

import numpy as np
import pytest
from measures.known import linear, random, random_matrix
from toys import SnapshotToy

from reservoir_hw.core.errors import NotSupported
from reservoir_hw.measures import Live, kaplan_yorke, lyapunov_spectrum
from reservoir_hw.tasks.lorenz import KAPLAN_YORKE_DIMENSION, LYAPUNOV_SPECTRUM

H = 0.01


def lorenz(t: int, x: np.ndarray) -> np.ndarray:
    """One step of `H` (Runge–Kutta, order 4) from (states, 3)."""
    del t

    def slope(at: np.ndarray) -> np.ndarray:
        x, y, z = at.T
        return np.stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z], axis=1)

    first = slope(x)
    second = slope(x + H / 2 * first)
    third = slope(x + H / 2 * second)
    return x + H / 6 * (first + 2 * (second + third) + slope(x + H * third))


def on_the_attractor(trials: int) -> np.ndarray:
    x = random(0).normal([0.0, 0.0, 25.0], 1.0, (trials, 3))
    for t in range(3000):
        x = lorenz(t, x)
    return x


def test_the_lorenz_system_as_published() -> None:
    found = lyapunov_spectrum(lorenz, on_the_attractor(60), steps=5_500, settle=500)
    exponents = found.exponents / H
    # The second one is 0: what is left of it is measured by the first.
    assert exponents == pytest.approx(LYAPUNOV_SPECTRUM, rel=0.02, abs=0.02 * LYAPUNOV_SPECTRUM[0])
    assert found.dimension == pytest.approx(KAPLAN_YORKE_DIMENSION, rel=0.01)
    # The sum is exact: the divergence of the flow, -(σ + 1 + β).
    assert exponents.sum() == pytest.approx(-(10 + 1 + 8 / 3), rel=1e-3)
    first, last = found.exponent_intervals[0], found.exponent_intervals[2]
    assert first.low / H < LYAPUNOV_SPECTRUM[0] < first.high / H
    assert last.low / H < LYAPUNOV_SPECTRUM[2] < last.high / H
    assert found.dimension_interval.low < KAPLAN_YORKE_DIMENSION < found.dimension_interval.high


def test_a_linear_map_has_the_logarithms_of_its_eigenvalues() -> None:
    W = random_matrix(6, 0.9)
    found = lyapunov_spectrum(lambda t, x: x @ W.T + 1, np.ones((1, 6)), steps=4000, settle=400)
    assert found.exponents == pytest.approx(np.sort(np.log(np.abs(np.linalg.eigvals(W))))[::-1], abs=2e-3)
    assert found.dimension == 0


def test_a_device_that_can_be_set() -> None:
    W = random_matrix(5, 0.8)
    with linear(W) as device:
        done: list[int] = []
        live = Live(device, steps=20_000, washout=100, on_steps=done.append)
        found = live.lyapunov_spectrum()
        assert sum(done) == live.planned_steps(["lyapunov_spectrum"])
    assert found.exponents == pytest.approx(np.sort(np.log(np.abs(np.linalg.eigvals(W))))[::-1], abs=0.01)


def test_the_dimension() -> None:
    assert kaplan_yorke(np.array([0.9056, 0.0, -14.5723])) == pytest.approx(2.06215, abs=1e-5)
    assert np.isnan(kaplan_yorke(np.array([1.0, -0.5])))
    assert kaplan_yorke(np.array([-0.1, -0.2])) == 0


def test_a_device_that_rounds() -> None:
    with SnapshotToy(deterministic=True, output_bits=8, state_range=(-2.0, 2.0)) as device:
        live = Live(device, steps=1000, washout=20)
        assert live.planned_steps(["lyapunov_spectrum"]) == 0
        with pytest.raises(NotSupported, match="rounds its states to 8 bits"):
            live.lyapunov_spectrum()
