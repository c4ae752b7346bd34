from __future__ import annotations

import numpy as np
import pytest

from reservoir_hw.tasks.sine_square import SineSquare, waves


def test_the_waves() -> None:
    series = waves(np.array([0, 1, 0]), 12)
    half = np.sqrt(3) / 2
    sine = [0, 0.5, half, 1, half, 0.5, 0, -0.5, -half, -1, -half, -0.5]
    np.testing.assert_allclose(series, [*sine, *[1] * 6, *[-1] * 6, *sine], atol=1e-12)


def test_splits() -> None:
    one = SineSquare(period_steps=8, train_periods=30, test_periods=20)
    assert one.train.inputs.shape == (1, 240, 1)
    assert one.test.targets.shape == (1, 160, 1)
    kinds = one.train.targets.reshape(30, 8)
    assert set(kinds[:, 0]) == {0, 1}
    np.testing.assert_array_equal(kinds, np.repeat(kinds[:, :1], 8, axis=1))
    np.testing.assert_allclose(one.train.inputs[0, :, 0], waves(kinds[:, 0].astype(int), 8), atol=1e-6)


def test_metrics() -> None:
    one = SineSquare(test_periods=100)
    right = one.test.targets.astype(float)
    perfect = one.evaluate(0.4 + 0.2 * right).metrics
    assert (perfect["error_rate"], perfect["error_rate/period"]) == (0, 0)
    few = right.copy().reshape(100, 12)
    # Five wrong steps of twelve do not turn a period, seven do.
    few[0, :5] = 1 - few[0, :5]
    few[1, :7] = 1 - few[1, :7]
    judged = one.evaluate(few.reshape(right.shape))
    assert judged.metrics["error_rate"] == pytest.approx(12 / 1200)
    assert judged.metrics["error_rate/period"] == pytest.approx(0.01)
    assert judged.arrays["by_phase"][:8].tolist() == [0.02] * 5 + [0.01] * 2 + [0]
