from __future__ import annotations

import numpy as np
import pytest

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.tasks import ClosedLoop, Henon
from reservoir_hw.tasks.task import Evaluation, OutputScale, Split, Task


def test_forecasts_begin_within_the_judged_part() -> None:
    loop = ClosedLoop(starts=5, warmup_steps=10, forecast_steps=20)
    whole = Henon(train_steps=400, closed_loop=loop)
    part = whole.validation(0.25)
    assert (part.test.inputs.shape, part.test.targets.shape) == ((5, 10, 1), (5, 20, 1))
    series = whole.train.inputs[0]
    for start, first in enumerate([300, 317, 335, 352, 370]):
        np.testing.assert_array_equal(part.test.inputs[start], series[first : first + 10])
        np.testing.assert_array_equal(part.test.targets[start], series[first + 10 : first + 30])
    assert part.evaluate(part.test.targets).metrics["valid_steps"] == 20
    with pytest.raises(ConfigurationError, match="is 28 steps, but at least 30 are needed"):
        whole.validation(0.07)


class Sequences(Task):
    def __init__(self) -> None:
        u = np.arange(10 * 7, dtype=np.float32).reshape(10, 7, 1)
        self.train = self.test = Split(u, -u, lengths=np.arange(10) % 7 + 1)

    def evaluate(self, outputs: np.ndarray, scale: OutputScale = "scores") -> Evaluation:
        return Evaluation({"error": float(np.abs(outputs - self.test.targets).max())})


def test_a_share_of_the_sequences_is_held_back() -> None:
    part = Sequences().validation(0.25)
    firsts = part.test.inputs[:, 0, 0]
    assert len(firsts) == 2
    np.testing.assert_array_equal(part.test.lengths, firsts / 7 % 7 + 1)
    assert not set(firsts) & set(part.train.inputs[:, 0, 0])
    assert len(part.train.inputs) == 8
    assert part.evaluate(part.test.targets).metrics["error"] == 0


class Turns(Sequences):
    """Trials of four classes in turn."""

    def __init__(self) -> None:
        u = np.zeros((40, 5, 1), np.float32)
        self.train = self.test = Split(u, np.repeat(np.eye(4, dtype=np.float32)[np.arange(40) % 4, None], 5, axis=1))


def test_each_class_is_judged() -> None:
    part = Turns().validation(0.25)
    assert part.test.targets[:, 0].sum(axis=0).tolist() == pytest.approx([2, 2, 2, 2])
    assert part.train.targets[:, 0].sum(axis=0).tolist() == [8, 8, 8, 8]


def test_a_validation_within_a_validation() -> None:
    part = Henon(train_steps=400).validation(0.25).validation(0.5)
    assert (part.train.inputs.shape[1], part.test.inputs.shape[1]) == (150, 150)
    assert part.evaluate(part.test.targets).metrics["nmse"] == 0
