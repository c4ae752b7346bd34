from __future__ import annotations

import math

import numpy as np
import pytest

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.tasks.henon import LYAPUNOV_EXPONENT, Henon, henon_series
from reservoir_hw.tasks.prediction.task import ClosedLoop


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


def test_the_task() -> None:
    one = Henon(train_steps=500, closed_loop=ClosedLoop(starts=4, warmup_steps=20, forecast_steps=30))
    assert (one.inputs, one.outputs, one.closed_loop) == (1, 1, True)
    assert one.train.inputs.std() == pytest.approx(1, abs=1e-5)
    np.testing.assert_array_equal(one.train.inputs[:, 1:], one.train.targets[:, :-1])
    # The next value is a quadratic polynomial of the last two: least squares finds it.
    u, following = one.train.inputs[0, :, 0].astype(float), one.train.targets[0, 1:, 0]
    features = np.stack([np.ones(499), u[1:], u[:-1], u[1:] ** 2], axis=1)
    assert np.abs(features @ np.linalg.lstsq(features, following, rcond=None)[0] - following).max() < 1e-5
    outputs = one.test.targets.astype(float)
    outputs[:, 12:] += 1
    assert one.evaluate(outputs).metrics["valid_lyapunov_times"] == pytest.approx(12 * LYAPUNOV_EXPONENT)
    assert not np.array_equal(one.train.inputs, Henon(train_steps=500, dataset=1).train.inputs)


@pytest.mark.parametrize("a", [2.0, 0.1])
def test_without_chaos(a: float) -> None:
    with pytest.raises(ConfigurationError, match="diverges or comes to rest"):
        Henon(a=a)
