from __future__ import annotations

import numpy as np

from reservoir_hw.tasks.santa_fe import STEPS, SantaFe, laser_series


def test_the_series(shared_data: None) -> None:
    series = laser_series()
    assert series.shape == (STEPS,)
    assert series[:8].tolist() == [86, 141, 95, 41, 22, 21, 32, 72]
    assert (series.min(), series.max()) == (0, 255)


def test_splits(shared_data: None) -> None:
    one = SantaFe(first_step=100, ahead_steps=2, train_steps=500, test_steps=300)
    series = laser_series()[100:902]
    mean, spread = series[:500].mean(), series[:500].std()
    inputs = np.concatenate([one.train.inputs, one.test.inputs], axis=1)[0, :, 0]
    targets = np.concatenate([one.train.targets, one.test.targets], axis=1)[0, :, 0]
    np.testing.assert_allclose(inputs, (series[:800] - mean) / spread, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(targets, (series[2:] - mean) / spread, rtol=1e-5, atol=1e-6)
    assert SantaFe(first_step=STEPS - 4001).test.inputs.shape == (1, 1000, 1)
