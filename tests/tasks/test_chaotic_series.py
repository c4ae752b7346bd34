"""Series of chaotic systems: beside other integrators, published statistics and exponents."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.interpolate import CubicSpline

from reservoir_hw.tasks import datasets, kuramoto_sivashinsky
from reservoir_hw.tasks.henon import LYAPUNOV_EXPONENT, henon_series
from reservoir_hw.tasks.kuramoto_sivashinsky import kuramoto_sivashinsky_series
from reservoir_hw.tasks.lorenz import Lorenz, lorenz_series
from reservoir_hw.tasks.mackey_glass import MackeyGlass, mackey_glass_series
from reservoir_hw.tasks.prediction.task import ClosedLoop
from reservoir_hw.tasks.santa_fe import STEPS, SantaFe, laser_series
from reservoir_hw.tasks.task import Row

LOOP = ClosedLoop(starts=4, warmup_steps=30, forecast_steps=90)


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


@pytest.mark.slow
def test_mackey_glass_against_another_integrator() -> None:
    x = by_steps(lambda t: 1.2, 0.0, 8)
    np.testing.assert_allclose(mackey_glass_series(120), [x(t) for t in range(120)], atol=1e-7)


def test_a_delay_between_the_steps() -> None:
    """Against another integrator that goes on from the series where its begin, which has a kink, is forgotten."""
    tau, start = 16.34, 500
    fine = mackey_glass_series(7000, 0.1, tau=tau)
    x = by_steps(CubicSpline(np.arange(7000) * 0.1, fine), float(start), 6, tau)
    np.testing.assert_allclose(fine[5000:5900:10], [x(start + t) for t in range(90)], atol=2e-7)


def test_mackey_glass_where_it_is_known() -> None:
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
    outputs[:3, 83, 0] += [0.1, 0.2, 0.2]
    metrics = one.evaluate(outputs).metrics
    assert metrics["nrmse/84"] == pytest.approx(math.sqrt(0.09 / 4), rel=1e-4)
    assert metrics["whole"] == 4
    assert "NRMSE after 84" in one.tables([Row("model", {}, one.evaluate(outputs))])[0].header
    outputs[0, 10:] = np.nan
    assert "nrmse/84" not in one.evaluate(outputs).metrics
    coarse = MackeyGlass(time_step=2.0, train_steps=300, closed_loop=LOOP)
    assert "nrmse/84" in coarse.evaluate(coarse.test.targets).metrics
    fine = MackeyGlass(time_step=0.5, train_steps=300, closed_loop=LOOP)
    assert "nrmse/84" not in fine.evaluate(fine.test.targets).metrics


def lorenz_by_scipy(start: tuple[float, float, float], steps: int, time_step: float) -> np.ndarray:
    def slope(_: float, v: np.ndarray) -> tuple[float, float, float]:
        return 10 * (v[1] - v[0]), v[0] * (28 - v[2]) - v[1], v[0] * v[1] - 8 / 3 * v[2]

    times = np.arange(steps) * time_step
    solved = solve_ivp(slope, (0, times[-1]), start, method="DOP853", rtol=1e-13, atol=1e-13, t_eval=times)
    return solved.y.T


def test_lorenz_against_another_integrator() -> None:
    start = (1.0, 1.0, 20.0)
    exact = lorenz_by_scipy(start, 501, 0.02)
    np.testing.assert_allclose(lorenz_series(start, 501, 0.02), exact, atol=2e-3)
    np.testing.assert_allclose(lorenz_series(start, 101, 0.02), exact[:101], atol=2e-6)
    # A time step that is no multiple of the inner one is divided evenly.
    np.testing.assert_allclose(lorenz_series(start, 51, 0.0371), lorenz_by_scipy(start, 51, 0.0371), atol=2e-6)


@pytest.mark.slow
def test_order_of_the_integrations() -> None:
    """Each is of order 4: half the step, a sixteenth of the error."""
    for series, exact, step, rel in (
        (lambda step: mackey_glass_series(100, inner_step=step)[-1:], 0.01, 0.5, 0.5),
        (lambda step: lorenz_series((1.0, 1.0, 20.0), 11, 0.02, inner_step=step)[-1], 0.0002, 0.005, 0.3),
        (lambda step: kuramoto_sivashinsky_series(smooth_start(), 2, 10.0, inner_step=step)[-1], 0.01, 0.1, 0.3),
    ):
        coarse, fine = (np.linalg.norm(series(inner) - series(exact)) for inner in (step, step / 2))
        assert coarse / fine == pytest.approx(2**4, rel=rel)


def test_no_lyapunov_times_for_other_parameters() -> None:
    other = Lorenz(rho=35.0, train_steps=500, closed_loop=LOOP)
    assert "valid_lyapunov_times" not in other.evaluate(other.test.targets).metrics
    nearly = Lorenz(beta=2.6667, train_steps=500, closed_loop=LOOP)
    assert "valid_lyapunov_times" in nearly.evaluate(nearly.test.targets).metrics


def test_tables() -> None:
    one = Lorenz(train_steps=500, closed_loop=LOOP)
    judged = one.evaluate(one.test.targets)
    rows = [Row("a", {"task.dataset": 0}, judged), Row("a", {"task.dataset": 1}, judged), Row("b", {}, judged)]
    (table,) = one.tables(rows)
    assert table.header[:5] == ["model", "runs", "starts", "valid steps", "Lyapunov times"]
    assert [cells[:4] for cells in table.rows] == [["a", "2", "8", "90 (90 to 90)"], ["b", "1", "4", "90 (90 to 90)"]]
    opened = Lorenz(train_steps=500, test_steps=50)
    (table,) = opened.tables([Row("a", {"task.ahead_steps": 5}, opened.evaluate(opened.test.targets))])
    assert table.rows[0][0] == "a, ahead_steps 5"


LENGTH, POINTS = 22.0, 64


def smooth_start() -> np.ndarray:
    angle = 2 * np.pi * np.arange(POINTS) / POINTS
    return np.cos(angle) * (1 + np.sin(angle))


def field_by_scipy(start: np.ndarray, times: np.ndarray) -> np.ndarray:
    """By a stiff solver of scipy, with the derivatives as matrices."""
    wave = 2 * np.pi / LENGTH * np.fft.fftfreq(POINTS, 1 / POINTS)
    odd = np.where(np.arange(POINTS) == POINTS // 2, 0, 1j * wave)
    first, rest = (
        np.fft.ifft(d[:, None] * np.fft.fft(np.eye(POINTS), axis=0), axis=0).real for d in (odd, wave**2 - wave**4)
    )
    solved = solve_ivp(
        lambda _, u: rest @ u - u * (first @ u),
        (0, times[-1]),
        start,
        method="Radau",
        rtol=1e-9,
        atol=1e-10,
        t_eval=times,
        jac=lambda _, u: rest - np.diag(u) @ first - np.diag(first @ u),
    )
    return solved.y.T


@pytest.mark.slow
def test_a_field_against_another_integrator() -> None:
    times = 0.25 * np.arange(81)
    exact = field_by_scipy(smooth_start(), times)
    np.testing.assert_allclose(kuramoto_sivashinsky_series(smooth_start(), 81, 0.25), exact, atol=1e-3)
    np.testing.assert_allclose(kuramoto_sivashinsky_series(smooth_start(), 81, 0.25, inner_step=0.05), exact, atol=1e-5)


@pytest.mark.slow
def test_the_exponent_of_a_field() -> None:
    """The growth of small differences between pairs of fields, which are brought together again every 5 units."""
    random, small = np.random.default_rng(0), 1e-7
    fields = random.normal(size=(64, POINTS))
    fields -= fields.mean(axis=1, keepdims=True)
    fields = kuramoto_sivashinsky_series(fields, 2, 200.0)[-1]
    differences, rates = random.normal(size=fields.shape), []
    for turn in range(120):
        differences -= differences.mean(axis=1, keepdims=True)
        size = np.linalg.norm(differences, axis=1, keepdims=True)
        if turn > 20:
            rates.append(np.log(size / small).mean() / 5)
        pair = np.stack([fields, fields + small * differences / size])
        fields, beside = kuramoto_sivashinsky_series(pair, 2, 5.0)[-1]
        differences = beside - fields
    # 32,000 units of time: the standard error is 0.001.
    assert np.mean(rates) == pytest.approx(kuramoto_sivashinsky.LYAPUNOV_EXPONENT, abs=0.003)


def test_the_fixed_point_and_the_recurrence() -> None:
    # x = 1 - a x² + b x
    x = (-0.7 + math.sqrt(0.7**2 + 4 * 1.4)) / 2.8
    np.testing.assert_allclose(henon_series((x, 0.3 * x), 10), np.full(10, x), atol=1e-13)
    series = henon_series((0.1, 0.0), 200)
    np.testing.assert_allclose(series[2:], 1 - 1.4 * series[1:-1] ** 2 + 0.3 * series[:-2], atol=1e-14)


def test_the_exponent_of_the_map() -> None:
    """The growth of a tangent vector along the series."""
    series = henon_series((0.1, 0.0), 200_000)
    dx, dy, grown = 1.0, 0.0, 0.0
    for x in series[1000:].tolist():
        dx, dy = -2.8 * x * dx + dy, 0.3 * dx
        size = math.hypot(dx, dy)
        dx, dy, grown = dx / size, dy / size, grown + math.log(size)
    assert grown / 199_000 == pytest.approx(LYAPUNOV_EXPONENT, rel=0.01)


def test_the_laser(shared_data: None) -> None:
    series = laser_series()
    assert series.shape == (STEPS,)
    assert series[:8].tolist() == [86, 141, 95, 41, 22, 21, 32, 72]
    assert (series.min(), series.max()) == (0, 255)


def test_pieces_of_the_laser(shared_data: None) -> None:
    one = SantaFe(first_step=100, ahead_steps=2, train_steps=500, test_steps=300)
    series = laser_series()[100:902]
    mean, spread = series[:500].mean(), series[:500].std()
    inputs = np.concatenate([one.train.inputs, one.test.inputs], axis=1)[0, :, 0]
    targets = np.concatenate([one.train.targets, one.test.targets], axis=1)[0, :, 0]
    np.testing.assert_allclose(inputs, (series[:800] - mean) / spread, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(targets, (series[2:] - mean) / spread, rtol=1e-5, atol=1e-6)
    assert SantaFe(first_step=STEPS - 4001).test.inputs.shape == (1, 1000, 1)
