"""Closed loops on toys whose answer is known, and with an echo state network."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from toys import SnapshotToy, Toy

from reservoir_hw.backends.simulated.esn.esn import EsnConfig
from reservoir_hw.core.errors import ConfigurationError, InputRangeError, NotSupported, ShapeError
from reservoir_hw.experiment.states.drive import forecast
from reservoir_hw.readout.configuration import Readout
from reservoir_hw.readout.linear.ridge import RidgeReadout
from reservoir_hw.tasks.lorenz import Lorenz
from reservoir_hw.tasks.prediction.task import ClosedLoop

WARMUP = np.random.default_rng(0).uniform(-1, 1, (3, 12, 2))
MATRIX = np.array([[0.3, -0.6], [0.5, 0.2]])


class Linear:
    """y = M x, or y = M x + u with the input connection; remembers what it was given."""

    def __init__(self, matrix: np.ndarray = MATRIX, input_connection: bool = False) -> None:
        self.matrix, self.input_connection = matrix, input_connection

    def predict(self, states: np.ndarray, inputs: np.ndarray | None = None) -> np.ndarray:
        assert states.ndim == 3
        assert (inputs is not None) == self.input_connection
        return states @ self.matrix.T + (0 if inputs is None else inputs)


def readout(*arguments: Any, **named: Any) -> Readout:
    return cast(Readout, Linear(*arguments, **named))


def by_hand(warmup: np.ndarray, steps: int, matrix: np.ndarray = MATRIX, connected: bool = False) -> np.ndarray:
    """The toy is x <- x/2 + u."""
    results = []
    for series in warmup:
        x = np.zeros(2)
        u = np.zeros(2)
        for u in series:
            x = x / 2 + u
        answers = []
        for _ in range(steps):
            u = matrix @ x + (u if connected else 0)
            answers.append(u)
            x = x / 2 + u
        results.append(answers)
    return np.array(results)


@pytest.mark.parametrize("connected", [False, True])
def test_the_answers_are_the_next_inputs(connected: bool) -> None:
    matrix = MATRIX * (0.2 if connected else 1)
    told: list[int] = []
    with Toy() as toy:
        outputs = forecast(toy, readout(matrix, connected), WARMUP, 9, told.append)
        assert outputs.shape == (3, 9, 2)
        np.testing.assert_allclose(outputs, by_hand(WARMUP, 9, matrix, connected))
        assert sum(told) == toy.counters.steps == 3 * (12 + 9 - 1)
        assert forecast(toy, readout(matrix, connected), WARMUP, 1).shape == (3, 1, 2)


@pytest.mark.parametrize(
    ("toy", "groups"),
    [
        (Toy(max_batch=1), [1, 1, 1]),
        (Toy(max_batch=2), [2, 1]),
        (SnapshotToy(max_batch=1), [1, 1, 1]),
        (Toy(max_batch=4), [3]),
    ],
)
def test_devices_that_take_few_sequences(toy: Toy, groups: list[int]) -> None:
    """Start by start: no snapshot is needed."""
    with toy:
        toy.resets.clear()
        np.testing.assert_allclose(forecast(toy, readout(), WARMUP, 9), by_hand(WARMUP, 9))
        assert toy.resets == groups


def test_a_free_running_device_is_not_touched() -> None:
    with Toy(continuity="free_running") as toy:
        toy.resets.clear()
        with pytest.raises(NotSupported, match="tests toy is free running: between two steps its state goes on"):
            forecast(toy, readout(), WARMUP, 5)
        assert toy.driven == toy.resets == []


class Failing(Linear):
    """Gives what is no answer to the second start from step 4 on."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value, self.calls = value, 0

    def predict(self, states: np.ndarray, inputs: np.ndarray | None = None) -> np.ndarray:
        answers = super().predict(states, inputs)
        if self.calls >= 4:
            answers[1, 0, 0] = self.value
        self.calls += 1
        return answers


@pytest.mark.parametrize("value", [np.nan, np.inf, -1e30, 2000.0])
def test_a_forecast_that_diverges_ends_alone(value: float) -> None:
    with Toy(input_range=(-5.0, 5.0)) as toy:
        outputs = forecast(toy, cast(Readout, Failing(value)), WARMUP, 9)
        expected = by_hand(WARMUP, 9)
        expected[1, 4:] = np.nan
        np.testing.assert_allclose(outputs, expected)
        # The device got something that it knows instead.
        np.testing.assert_array_equal(toy.driven[-1][1, 0], WARMUP[1, -1])


def test_answers_outside_the_range_of_the_device() -> None:
    growing = readout(np.eye(2))
    limits: dict[str, Any] = {"input_range": (-5.0, 5.0)}
    answers = by_hand(WARMUP, 9, np.eye(2))
    last = int((np.abs(answers) > 5).any(axis=(0, 2)).argmax())
    message = rf"left the input range of the device {last + 1} steps after its start: .* out_of_range: clip"
    with Toy(**limits) as toy, pytest.raises(InputRangeError, match=message):
        forecast(toy, growing, WARMUP, 9)
    with Toy(**limits, out_of_range="clip") as toy:
        outputs = forecast(toy, growing, WARMUP, 9)
        assert np.isfinite(outputs).all()
        assert toy.counters.clipped > 0
        assert max(np.abs(u).max() for u in toy.driven) == 5


def test_what_cannot_be_a_closed_loop() -> None:
    with Toy() as toy:
        with pytest.raises(ConfigurationError, match=r"the 1 outputs of the readout .* takes 2"):
            forecast(toy, readout(np.ones((1, 2))), WARMUP, 3)
        with pytest.raises(ShapeError, match="warmup must be"):
            forecast(toy, readout(), WARMUP[0], 3)
        with pytest.raises(ShapeError, match="warmup must be"):
            forecast(toy, readout(), WARMUP[:, :0], 3)
        with pytest.raises(ConfigurationError, match="at least 1 step"):
            forecast(toy, readout(), WARMUP, 0)


def test_a_network_forecasts_the_lorenz_system() -> None:
    task = Lorenz(train_steps=3000, closed_loop=ClosedLoop(starts=8, warmup_steps=100, forecast_steps=600))
    config = EsnConfig(
        kind="esn", nodes=200, inputs=3, spectral_radius=0.6, input_scaling=0.3, bias_scaling=0.5, dtype="float64"
    )
    with config.build() as network:
        states = network.run(task.train.inputs.astype(np.float64))
        trained = RidgeReadout(1e-6, washout=100).fit(states, task.train.targets)
        warmup = task.test.inputs.astype(np.float64)
        outputs = forecast(network, trained, warmup, 600)
        # The first two starts alone, step by step.
        network.reset(2)
        answers = trained.predict(network.run(warmup[:2])[:, -1])
        for step in range(20):
            np.testing.assert_allclose(outputs[:2, step], answers, rtol=1e-9)
            answers = trained.predict(network.step(answers))
    metrics = task.evaluate(outputs).metrics
    assert metrics["valid_lyapunov_times"] > 5
    assert metrics["diverged"] == 0
