from __future__ import annotations

import numpy as np
import pytest

from reservoir_hw.tasks.parity import Parity
from reservoir_hw.tasks.task import Row


@pytest.mark.parametrize(("bits", "delay"), [(1, 0), (2, 0), (3, 2), (5, 1)])
def test_targets(bits: int, delay: int) -> None:
    one = Parity(bits=bits, delay=delay, train_steps=300, test_steps=200)
    b = np.concatenate([one.train.inputs, one.test.inputs], axis=1)[0, :, 0]
    y = np.concatenate([one.train.targets, one.test.targets], axis=1)[0, :, 0]
    assert set(b) == set(y) == {-1, 1}
    for t in range(bits + delay, len(b)):
        window = b[t - delay - bits + 1 : t - delay + 1]
        assert y[t] == (1 if np.count_nonzero(window == 1) % 2 else -1)


def test_longer_parities_use_the_same_bits() -> None:
    two, three = (Parity(bits=bits, train_steps=50, test_steps=50).train.inputs[0, :, 0] for bits in (2, 3))
    np.testing.assert_array_equal(two[1:], three[:-1])


def test_metrics() -> None:
    one = Parity(test_steps=1000)
    right = one.test.targets.astype(float)
    assert one.evaluate(0.3 * right).metrics["error_rate"] == 0
    wrong = right.copy()
    wrong[0, :40] *= -1
    metrics = one.evaluate(wrong).metrics
    assert metrics["error_rate"] == 0.04
    assert metrics["error_rate/low"] < 0.04 < metrics["error_rate/high"]
    assert one.evaluate(np.full_like(right, right.mean())).metrics["nmse"] == pytest.approx(1)


def test_runs_on_the_same_test_count_once() -> None:
    one = Parity(test_steps=1000)
    good, bad = one.test.targets.astype(float), one.test.targets.astype(float)
    bad[0, :50] *= -1
    same = [Row("model", {"reservoir.seed": seed}, one.evaluate(outputs)) for seed, outputs in enumerate((good, bad))]
    (cells,) = one.tables(same)[0].rows
    assert cells[1:5] == ["2", "1,000", "25", "2.50%"]
    others = [Row("model", {"task.dataset": number}, one.evaluate(o)) for number, o in enumerate((good, bad))]
    (cells,) = one.tables(others)[0].rows
    assert cells[1:5] == ["2", "2,000", "50", "2.50%"]
