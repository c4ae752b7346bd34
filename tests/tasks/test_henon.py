from __future__ import annotations

import math

import numpy as np
import pytest

from reservoir_hw.tasks.henon import LYAPUNOV_EXPONENT, henon_series


def test_the_fixed_point_and_the_recurrence() -> None:
    # x = 1 - a x² + b x
    x = (-0.7 + math.sqrt(0.7**2 + 4 * 1.4)) / 2.8
    np.testing.assert_allclose(henon_series((x, 0.3 * x), 10), np.full(10, x), atol=1e-13)
    series = henon_series((0.1, 0.0), 200)
    np.testing.assert_allclose(series[2:], 1 - 1.4 * series[1:-1] ** 2 + 0.3 * series[:-2], atol=1e-14)


def test_lyapunov_exponent() -> None:
    """The growth of a tangent vector along the series."""
    series = henon_series((0.1, 0.0), 200_000)
    dx, dy, grown = 1.0, 0.0, 0.0
    for x in series[1000:].tolist():
        dx, dy = -2.8 * x * dx + dy, 0.3 * dx
        size = math.hypot(dx, dy)
        dx, dy, grown = dx / size, dy / size, grown + math.log(size)
    assert grown / 199_000 == pytest.approx(LYAPUNOV_EXPONENT, rel=0.01)
