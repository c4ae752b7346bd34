"""What noise does to a Lyapunov exponent that is read off responses after different pasts."""

from __future__ import annotations

import math

import numpy as np
import pytest

from reservoir_hw.measures import lyapunov_from_replicas


@pytest.mark.parametrize("noise", [1e-2, 1e-3])
def test_noise_makes_the_exponent_a_lower_bound(noise: float) -> None:
    """Ten directions fade at 0.5, one at 0.97 with a hundredth of the size: below the noise nobody sees it."""
    rng = np.random.default_rng(0)
    rates = np.array([0.5] * 10 + [0.97])
    first = rng.standard_normal((8, 11)) * np.array([1.0] * 10 + [0.01])
    time = np.arange(200)[:, None]
    states = first[:, None] * rates**time + noise * rng.standard_normal((8, 200, 11))
    found = lyapunov_from_replicas(states)
    assert found.interval.low <= math.log(0.97) <= found.interval.high == 0.0
    assert "At least this" in found.note
    common = rng.standard_normal((1, 2000, 11))
    clean = lyapunov_from_replicas(common + first[:, None] * rates ** np.arange(2000)[:, None])
    assert clean.value == pytest.approx(math.log(0.97), abs=0.01)
    assert clean.interval.high < 0
