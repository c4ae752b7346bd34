from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.interpolate import CubicSpline

from reservoir_hw.tasks import datasets
from reservoir_hw.tasks.mackey_glass import MackeyGlass, mackey_glass_series
from reservoir_hw.tasks.prediction.task import ClosedLoop
from reservoir_hw.tasks.task import Row

LOOP = ClosedLoop(starts=3, warmup_steps=20, forecast_steps=90)


def by_steps(history: Callable[[float], Any], start: float, delays: int, tau: float = 17.0) -> Callable[[float], float]:
    """The method of steps, with scipy: within one delay the equation has no delay. `history` is x up to `start`."""
    pieces: list[Callable[[float], Any]] = []

    def x(t: float) -> float:
        piece = int(np.clip((t - start) // tau, -1, len(pieces) - 1))
        return float(np.squeeze(history(t) if t < start or piece < 0 else pieces[piece](t)))

    def slope(t: float, v: np.ndarray) -> np.ndarray:
        return 0.2 * x(t - tau) / (1 + x(t - tau) ** 10) - 0.1 * v

    for delay in range(delays):
        begin = start + delay * tau
        now = [x(begin)] if delay else [float(history(start))]
        solved = solve_ivp(slope, (begin, begin + tau), now, rtol=1e-10, atol=1e-12, max_step=1.0, dense_output=True)
        assert solved.sol is not None
        pieces.append(solved.sol)
    return x


def test_against_another_integrator() -> None:
    x = by_steps(lambda t: 1.2, 0.0, 8)
    np.testing.assert_allclose(mackey_glass_series(120), [x(t) for t in range(120)], atol=1e-7)


def test_a_delay_between_the_steps() -> None:
    """Against another integrator that goes on from the series where its begin, which has a kink, is forgotten."""
    tau, start = 16.34, 500
    fine = mackey_glass_series(7000, 0.1, tau=tau)
    x = by_steps(CubicSpline(np.arange(7000) * 0.1, fine), float(start), 6, tau)
    np.testing.assert_allclose(fine[5000:5900:10], [x(start + t) for t in range(90)], atol=2e-7)


def test_order_of_the_integration() -> None:
    exact = mackey_glass_series(100, inner_step=0.01)[-1]
    errors = [abs(mackey_glass_series(100, inner_step=step)[-1] - exact) for step in (0.5, 0.25)]
    assert errors[0] / errors[1] == pytest.approx(2**4, rel=0.5)


def test_known_answers() -> None:
    # 0.2 / (1 + 1) = 0.1: this is where the system stays.
    np.testing.assert_allclose(mackey_glass_series(50, history=1.0), 1.0, atol=1e-12)
    # Until t = tau the production is constant, and x relaxes towards it.
    production = 0.2 * 0.5 / (1 + 0.5**10)
    t = np.arange(17)
    relaxed = production / 0.1 + (0.5 - production / 0.1) * np.exp(-0.1 * t)
    np.testing.assert_allclose(mackey_glass_series(17, history=0.5), relaxed, rtol=1e-9)
    # Other units of time: the same system.
    slow = mackey_glass_series(200, 0.5, tau=8.5, beta=0.4, gamma=0.2)
    np.testing.assert_allclose(slow, mackey_glass_series(200, 1.0), rtol=1e-6)


def published() -> np.ndarray:
    return np.loadtxt(io.BytesIO(datasets.contents("mackey_glass_t17")))


def test_statistics_of_the_published_series(shared_data: None) -> None:
    theirs = published()
    ours = MackeyGlass(scaling="squash", train_steps=10_000).train.inputs[0, :, 0].astype(float)
    assert theirs.shape == ours.shape == (10_000,)
    np.testing.assert_allclose(ours.mean(), theirs.mean(), atol=5e-3)
    np.testing.assert_allclose(ours.std(), theirs.std(), atol=5e-3)
    quantiles = np.linspace(0, 1, 21)
    np.testing.assert_allclose(np.quantile(ours, quantiles), np.quantile(theirs, quantiles), atol=0.02)
    ours, theirs = ((series - series.mean()) / series.std() for series in (ours, theirs))
    for lag in (1, 5, 10, 17, 34, 50):
        assert np.mean(ours[lag:] * ours[:-lag]) == pytest.approx(np.mean(theirs[lag:] * theirs[:-lag]), abs=0.04)


def test_the_published_series_obeys_the_equation(shared_data: None) -> None:
    """Its steps are 1 unit of time, its values tanh(x - 1); it was integrated less exactly."""
    x = np.arctanh(published()) + 1
    for start in (500, 7000):
        history = CubicSpline(np.arange(start - 40, start + 1), x[start - 40 : start + 1])
        goes_on = by_steps(history, float(start), 2)
        np.testing.assert_allclose([goes_on(start + t) for t in range(34)], x[start : start + 34], atol=0.01)


def test_scalings() -> None:
    raw, squashed, standard = (
        MackeyGlass(scaling=scaling, train_steps=800, test_steps=100).train.inputs[0, :, 0].astype(float)
        for scaling in ("none", "squash", "standardise")
    )
    assert 0.2 < raw.min() < raw.max() < 1.4
    np.testing.assert_allclose(squashed, np.tanh(raw - 1), atol=1e-6)
    np.testing.assert_allclose(standard, (raw - raw.mean()) / raw.std(), atol=1e-4)


def test_the_error_after_84_steps() -> None:
    one = MackeyGlass(train_steps=300, closed_loop=LOOP)
    outputs = one.test.targets.astype(float)
    # Step 84 after the last true input is row 83.
    outputs[:, 83, 0] += [0.1, 0.2, 0.2]
    metrics = one.evaluate(outputs).metrics
    assert metrics["nrmse/84"] == pytest.approx(math.sqrt(0.09 / 3), rel=1e-4)
    assert metrics["whole"] == 3
    assert "NRMSE after 84" in one.tables([Row("model", {}, one.evaluate(outputs))])[0].header
    outputs[0, 10:] = np.nan
    assert "nrmse/84" not in one.evaluate(outputs).metrics
    coarse = MackeyGlass(time_step=2.0, train_steps=300, closed_loop=LOOP)
    assert "nrmse/84" in coarse.evaluate(coarse.test.targets).metrics
    fine = MackeyGlass(time_step=0.5, train_steps=300, closed_loop=LOOP)
    assert "nrmse/84" not in fine.evaluate(fine.test.targets).metrics
