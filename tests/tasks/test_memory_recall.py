from __future__ import annotations

import numpy as np
import pytest

from reservoir_hw.tasks.memory_recall import MemoryRecall


def test_targets_are_earlier_inputs() -> None:
    one = MemoryRecall(delays=[3, 0, 7], train_steps=200, test_steps=100)
    u = np.concatenate([one.train.inputs, one.test.inputs], axis=1)[0, :, 0]
    y = np.concatenate([one.train.targets, one.test.targets], axis=1)[0]
    assert (one.inputs, one.outputs) == (1, 3)
    for column, delay in enumerate(one.delays):
        np.testing.assert_array_equal(y[delay:, column], u[: len(u) - delay])
    # What lies before the first input is drawn as well, so every target is a number like the others.
    assert (y[:7, 2] != 0).all()


def test_metrics() -> None:
    one = MemoryRecall(delays=[0, 1, 5], train_steps=10, test_steps=5000)
    targets = one.test.targets.astype(float)
    perfect = one.evaluate(targets)
    assert perfect.metrics["recalled"] == pytest.approx(3)
    # r² asks neither for the scale nor for the sign.
    assert one.evaluate(1 - 2 * targets).metrics["r2/5"] == pytest.approx(1)
    noise = np.random.default_rng(0).normal(size=targets.shape)
    noisy = one.evaluate(targets + noise * targets.std()).metrics
    assert noisy["r2/1"] == pytest.approx(0.5, abs=0.03)
    assert one.evaluate(noise).metrics["recalled"] < 0.01
    assert one.evaluate(np.ones_like(targets)).metrics["recalled"] == 0
    assert perfect.arrays["delays"].tolist() == [0, 1, 5]
