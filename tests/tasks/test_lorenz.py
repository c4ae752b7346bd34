from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from reservoir_hw import Experiment
from reservoir_hw.core.errors import ConfigurationError, InputRangeError, ShapeError
from reservoir_hw.tasks.lorenz import Lorenz, lorenz_series
from reservoir_hw.tasks.prediction.task import ClosedLoop
from reservoir_hw.tasks.task import Row

LOOP = ClosedLoop(starts=4, warmup_steps=30, forecast_steps=50)


def reference(start: tuple[float, float, float], steps: int, time_step: float) -> np.ndarray:
    def slope(_: float, v: np.ndarray) -> tuple[float, float, float]:
        return 10 * (v[1] - v[0]), v[0] * (28 - v[2]) - v[1], v[0] * v[1] - 8 / 3 * v[2]

    times = np.arange(steps) * time_step
    solved = solve_ivp(slope, (0, times[-1]), start, method="DOP853", rtol=1e-13, atol=1e-13, t_eval=times)
    return solved.y.T


def test_against_another_integrator() -> None:
    start = (1.0, 1.0, 20.0)
    exact = reference(start, 501, 0.02)
    np.testing.assert_allclose(lorenz_series(start, 501, 0.02), exact, atol=2e-3)
    np.testing.assert_allclose(lorenz_series(start, 101, 0.02), exact[:101], atol=2e-6)
    # A time step that is no multiple of the inner one is divided evenly.
    np.testing.assert_allclose(lorenz_series(start, 51, 0.0371), reference(start, 51, 0.0371), atol=2e-6)


def test_order_of_the_integration() -> None:
    start = (1.0, 1.0, 20.0)
    exact = reference(start, 11, 0.02)[-1]
    coarse, fine = (lorenz_series(start, 11, 0.02, inner_step=step)[-1] - exact for step in (0.005, 0.0025))
    assert np.linalg.norm(coarse) / np.linalg.norm(fine) == pytest.approx(2**4, rel=0.3)


def test_the_fixed_points() -> None:
    z = 27.0
    x = math.sqrt(8 / 3 * z)
    np.testing.assert_allclose(lorenz_series((x, x, z), 20, 0.02), np.tile([x, x, z], (20, 1)), atol=1e-9)
    np.testing.assert_array_equal(lorenz_series((0, 0, 0), 5, 0.02), np.zeros((5, 3)))


def test_open_loop() -> None:
    one = Lorenz(ahead_steps=3, train_steps=400, test_steps=200)
    assert (one.inputs, one.outputs, one.closed_loop) == (3, 3, False)
    for split, steps in ((one.train, 400), (one.test, 200)):
        assert split.inputs.shape == split.targets.shape == (1, steps, 3)
        assert split.inputs.dtype == split.targets.dtype == np.float32
        np.testing.assert_array_equal(split.inputs[:, 3:], split.targets[:, :-3])
    np.testing.assert_array_equal(one.test.inputs[:, :3], one.train.targets[:, -3:])
    np.testing.assert_allclose(one.train.inputs.mean(axis=1), 0, atol=1e-5)
    np.testing.assert_allclose(one.train.inputs.std(axis=1), 1, atol=1e-5)


def test_closed_loop_pieces_follow_one_another() -> None:
    closed = Lorenz(train_steps=400, closed_loop=LOOP)
    opened = Lorenz(train_steps=400, test_steps=400)
    assert closed.closed_loop
    assert closed.test.inputs.shape == (4, 30, 3)
    assert closed.test.targets.shape == (4, 50, 3)
    np.testing.assert_array_equal(closed.train.inputs, opened.train.inputs)
    np.testing.assert_array_equal(closed.train.targets, opened.train.targets)
    pieces = np.concatenate([closed.test.inputs, closed.test.targets], axis=1).reshape(320, 3)
    # The first test piece begins behind the last training target.
    np.testing.assert_array_equal(pieces, opened.test.targets[0, :320])


def test_the_data_are_the_same_on_every_machine() -> None:
    one = Lorenz()
    known = [[-0.06588760, -0.18482931, -1.37633944], [-0.09775976, -0.24033169, -1.43719280]]
    np.testing.assert_allclose(one.train.inputs[0, :2], known, rtol=1e-5)
    assert not np.array_equal(one.train.inputs, Lorenz(dataset=1).train.inputs)
    assert not np.array_equal(one.train.inputs, Lorenz(seed=1).train.inputs)


def test_valid_prediction_time() -> None:
    """Errors of a known size from a known step on."""
    one = Lorenz(train_steps=2000, closed_loop=LOOP)
    outputs = one.test.targets.astype(float)
    for start, (step, error) in enumerate([(10, 0.41), (20, 0.41), (30, 0.39), (40, 1.0)]):
        outputs[start, step:] += error
    judged = one.evaluate(outputs)
    # The channels are standardised, so an offset of d in all of them is an error of d.
    np.testing.assert_allclose(judged.arrays["error"][0, 10:], 0.41, rtol=1e-4)
    assert judged.arrays["valid_steps"].tolist() == [10, 20, 50, 40]
    metrics = judged.metrics
    assert metrics["valid_steps"] == 30
    assert (metrics["valid_steps/q1"], metrics["valid_steps/q3"]) == (17.5, 42.5)
    assert metrics["valid_lyapunov_times"] == pytest.approx(30 * 0.02 * 0.9056)
    assert (metrics["whole"], metrics["diverged"]) == (1, 0)


def test_an_error_beyond_the_threshold_ends_a_forecast_even_if_it_comes_back() -> None:
    one = Lorenz(train_steps=500, closed_loop=LOOP)
    outputs = one.test.targets.astype(float)
    outputs[:, 5, 0] += 10
    assert one.evaluate(outputs).metrics["valid_steps"] == 5


def test_diverged_starts_do_not_spoil_the_others() -> None:
    one = Lorenz(train_steps=500, closed_loop=LOOP)
    outputs = one.test.targets.astype(float)
    outputs[1, 7:] = np.nan
    outputs[2, 9, 1] = np.inf
    judged = one.evaluate(outputs)
    assert judged.arrays["valid_steps"].tolist() == [50, 7, 9, 50]
    assert (judged.metrics["whole"], judged.metrics["diverged"]) == (2, 2)
    assert all(math.isfinite(value) for value in judged.metrics.values())
    figures = one.figures([Row("model", {}, judged)])
    assert set(figures) == {"forecast", "forecast_error", "valid_steps", "attractor"}


def test_open_loop_metrics() -> None:
    one = Lorenz(train_steps=500, test_steps=300)
    targets = one.test.targets.astype(float)
    assert one.evaluate(targets).metrics == {"nmse": 0, "nrmse": 0}
    mean = np.broadcast_to(targets.mean(axis=1, keepdims=True), targets.shape)
    assert one.evaluate(mean).metrics["nmse"] == pytest.approx(1)
    broken = targets.copy()
    broken[0, 3] = np.nan
    with pytest.raises(InputRangeError, match="3 of 900 outputs are not finite"):
        one.evaluate(broken)
    assert set(one.figures([Row("model", {}, one.evaluate(mean))])) == {"series", "nmse"}


def test_no_lyapunov_times_for_other_parameters() -> None:
    other = Lorenz(rho=35.0, train_steps=500, closed_loop=LOOP)
    assert "valid_lyapunov_times" not in other.evaluate(other.test.targets).metrics
    nearly = Lorenz(beta=2.6667, train_steps=500, closed_loop=LOOP)
    assert "valid_lyapunov_times" in nearly.evaluate(nearly.test.targets).metrics


def test_wrong_shape() -> None:
    one = Lorenz(train_steps=500, closed_loop=LOOP)
    with pytest.raises(ShapeError, match=r"needs \(batch, time, outputs\) = \(4, 50, 3\)"):
        one.evaluate(np.zeros((4, 30, 3)))


def test_a_system_without_chaos() -> None:
    with pytest.raises(ConfigurationError, match=r"rho 0.5 .* comes to rest"):
        Lorenz(rho=0.5)


def experiment(**task: Any) -> Experiment:
    return Experiment(
        {
            "task": {"kind": "lorenz", **task},
            "reservoir": {
                "kind": "esn",
                "nodes": 100,
                "spectral_radius": 0.6,
                "input_scaling": 0.3,
                "bias_scaling": 0.5,
            },
            "readout": {"kind": "ridge", "washout": 100},
        }
    )


def test_tables() -> None:
    one = Lorenz(train_steps=500, closed_loop=LOOP)
    judged = one.evaluate(one.test.targets)
    rows = [Row("a", {"task.dataset": 0}, judged), Row("a", {"task.dataset": 1}, judged), Row("b", {}, judged)]
    (table,) = one.tables(rows)
    assert table.header[:5] == ["model", "runs", "starts", "valid steps", "Lyapunov times"]
    assert [cells[:4] for cells in table.rows] == [["a", "2", "8", "50 (50 to 50)"], ["b", "1", "4", "50 (50 to 50)"]]
    coarse = Lorenz(time_step=0.04, train_steps=500, closed_loop=LOOP)
    varied = [
        Row("a", {"task.time_step": t}, e) for t, e in ((0.02, judged), (0.04, coarse.evaluate(coarse.test.targets)))
    ]
    (table,) = one.tables(varied)
    assert [(cells[0], cells[4]) for cells in table.rows] == [
        ("a, time_step 0.02", "0.91 (0.91 to 0.91)"),
        ("a, time_step 0.04", "1.81 (1.81 to 1.81)"),
    ]
    assert set(one.figures(varied)) == {"forecast", "forecast_error", "valid_steps", "attractor"}
    opened = Lorenz(train_steps=500, test_steps=50)
    (table,) = opened.tables([Row("a", {"task.ahead_steps": 5}, opened.evaluate(opened.test.targets))])
    assert table.rows[0][0] == "a, ahead_steps 5"
