from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from reservoir_hw.tasks.kuramoto_sivashinsky import (
    LYAPUNOV_EXPONENT,
    kuramoto_sivashinsky_series,
)

LENGTH, POINTS = 22.0, 64


def smooth_start() -> np.ndarray:
    angle = 2 * np.pi * np.arange(POINTS) / POINTS
    return np.cos(angle) * (1 + np.sin(angle))


def reference(start: np.ndarray, times: np.ndarray) -> np.ndarray:
    """By a stiff solver of scipy, with the derivatives as matrices."""
    wave = 2 * np.pi / LENGTH * np.fft.fftfreq(POINTS, 1 / POINTS)
    odd = np.where(np.arange(POINTS) == POINTS // 2, 0, 1j * wave)
    first, rest = (
        np.fft.ifft(d[:, None] * np.fft.fft(np.eye(POINTS), axis=0), axis=0).real for d in (odd, wave**2 - wave**4)
    )
    solved = solve_ivp(
        lambda _, u: rest @ u - u * (first @ u),
        (0, times[-1]),
        start,
        method="Radau",
        rtol=1e-9,
        atol=1e-10,
        t_eval=times,
        jac=lambda _, u: rest - np.diag(u) @ first - np.diag(first @ u),
    )
    return solved.y.T


def test_against_another_integrator() -> None:
    times = 0.25 * np.arange(81)
    exact = reference(smooth_start(), times)
    np.testing.assert_allclose(kuramoto_sivashinsky_series(smooth_start(), 81, 0.25), exact, atol=1e-3)
    np.testing.assert_allclose(kuramoto_sivashinsky_series(smooth_start(), 81, 0.25, inner_step=0.05), exact, atol=1e-5)


def test_order_of_the_integration() -> None:
    exact, coarse, fine = (
        kuramoto_sivashinsky_series(smooth_start(), 2, 10.0, inner_step=step)[-1] for step in (0.01, 0.1, 0.05)
    )
    assert np.linalg.norm(coarse - exact) / np.linalg.norm(fine - exact) == pytest.approx(2**4, rel=0.3)


@pytest.mark.slow
def test_lyapunov_exponent() -> None:
    """The growth of small differences between pairs of fields, which are brought together again every 5 units."""
    random, small = np.random.default_rng(0), 1e-7
    fields = random.normal(size=(64, POINTS))
    fields -= fields.mean(axis=1, keepdims=True)
    fields = kuramoto_sivashinsky_series(fields, 2, 200.0)[-1]
    differences, rates = random.normal(size=fields.shape), []
    for turn in range(120):
        differences -= differences.mean(axis=1, keepdims=True)
        size = np.linalg.norm(differences, axis=1, keepdims=True)
        if turn > 20:
            rates.append(np.log(size / small).mean() / 5)
        pair = np.stack([fields, fields + small * differences / size])
        fields, beside = kuramoto_sivashinsky_series(pair, 2, 5.0)[-1]
        differences = beside - fields
    # 32,000 units of time: the standard error is 0.001.
    assert np.mean(rates) == pytest.approx(LYAPUNOV_EXPONENT, abs=0.003)
