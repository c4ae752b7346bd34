from __future__ import annotations

import numpy as np
import pytest

from reservoir_hw import Experiment
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.tasks import ClosedLoop, Henon, Narma, SineSquare
from reservoir_hw.tasks.channel_equalisation.task import ChannelEqualisation
from reservoir_hw.tasks.task import Evaluation, OutputScale, Split, Task
from reservoir_hw.tasks.validation import validation_of


def test_the_last_part_of_the_training_is_judged() -> None:
    whole = Narma(train_steps=400, test_steps=100)
    part = validation_of(whole, 0.25)
    np.testing.assert_array_equal(part.train.inputs, whole.train.inputs[:, :300])
    np.testing.assert_array_equal(part.test.inputs, whole.train.inputs[:, 300:])
    np.testing.assert_array_equal(part.test.targets, whole.train.targets[:, 300:])
    assert whole.train.inputs.shape[1] == 400
    assert part.evaluate(part.test.targets).metrics["nmse"] == 0


@pytest.mark.parametrize("whole", [SineSquare(train_periods=10), ChannelEqualisation(train_steps=100, test_steps=200)])
def test_right_answers_are_right(whole: SineSquare | ChannelEqualisation) -> None:
    part = validation_of(whole, 0.25)
    assert part.evaluate(part.test.targets).metrics[part.score] == 0
    assert part.evaluate(-2 * part.test.targets).metrics[part.score] > 0.4


def test_forecasts_begin_within_the_judged_part() -> None:
    loop = ClosedLoop(starts=5, warmup_steps=10, forecast_steps=20)
    whole = Henon(train_steps=400, closed_loop=loop)
    part = validation_of(whole, 0.25)
    assert (part.test.inputs.shape, part.test.targets.shape) == ((5, 10, 1), (5, 20, 1))
    series = whole.train.inputs[0]
    for start, first in enumerate([300, 317, 335, 352, 370]):
        np.testing.assert_array_equal(part.test.inputs[start], series[first : first + 10])
        np.testing.assert_array_equal(part.test.targets[start], series[first + 10 : first + 30])
    assert part.evaluate(part.test.targets).metrics["valid_steps"] == 20
    with pytest.raises(ConfigurationError, match="is 28 steps, but at least 30 are needed"):
        validation_of(whole, 0.07)


class Sequences(Task):
    def __init__(self) -> None:
        u = np.arange(10 * 7, dtype=np.float32).reshape(10, 7, 1)
        self.train = self.test = Split(u, -u, lengths=np.arange(10) % 7 + 1)

    def evaluate(self, outputs: np.ndarray, scale: OutputScale = "scores") -> Evaluation:
        return Evaluation({"error": float(np.abs(outputs - self.test.targets).max())})


def test_every_fourth_sequence() -> None:
    part = validation_of(Sequences(), 0.25)
    assert part.test.inputs[:, 0, 0].tolist() == [21, 49]
    assert np.asarray(part.test.lengths).tolist() == [4, 1]
    assert len(part.train.inputs) == 8
    assert part.evaluate(part.test.targets).metrics["error"] == 0


def test_in_an_experiment() -> None:
    file = {
        "task": {"kind": "validation", "task": {"kind": "narma", "train_steps": 600}},
        "reservoir": {"kind": "esn", "nodes": 30},
        "readout": {"kind": "ridge", "washout": 50},
    }
    assert Experiment(file).estimate().device_steps == 450 + 200 + 150
    with pytest.raises(ConfigurationError, match="train_steps"):
        Experiment({**file, "task": {"kind": "validation", "task": {"kind": "narma", "train_steps": 0}}})
