from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import solve_ivp

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
    assert [cells[:4] for cells in table.rows] == [["a", "2", "8", "50 (50 to 50)"], ["b", "1", "4", "50 (50 to 50)"]]
    opened = Lorenz(train_steps=500, test_steps=50)
    (table,) = opened.tables([Row("a", {"task.ahead_steps": 5}, opened.evaluate(opened.test.targets))])
    assert table.rows[0][0] == "a, ahead_steps 5"
