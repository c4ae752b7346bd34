"""The Lorenz system (Lorenz 1963), predicted step by step or in a closed loop."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, PositiveFloat

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.seeds import generator
from reservoir_hw.tasks.prediction.task import ForecastConfig, Prediction

CLASSIC = {"sigma": 10.0, "rho": 28.0, "beta": 8 / 3}

LYAPUNOV_EXPONENT = 0.9056
"""Largest one with the classic parameters, per unit of time (Sprott 2003)."""

LYAPUNOV_SPECTRUM = (LYAPUNOV_EXPONENT, 0.0, -14.5723)
"""All of them (Sprott 2003)."""

KAPLAN_YORKE_DIMENSION = 2.06215
"""Of the attractor with the classic parameters (Sprott 2003)."""

# With this a trajectory stays close to the exact one for 20 units of time.
_INNER_STEP = 0.002
_TRANSIENT = 40.0
_DIVERGED = 1e6


def lorenz_series(
    start: Iterable[float],
    steps: int,
    time_step: float = 0.02,
    *,
    sigma: float = CLASSIC["sigma"],
    rho: float = CLASSIC["rho"],
    beta: float = CLASSIC["beta"],
    inner_step: float = _INNER_STEP,
) -> np.ndarray:
    """The system at `steps` times `time_step` apart, the first one `start`: (steps, 3), float64.

        dx/dt = σ (y - x),    dy/dt = x (ρ - z) - y,    dz/dt = x y - β z

    (Lorenz 1963, eqs. 25 to 27; dimensionless.) Integrated by the classic Runge–Kutta method of order 4, in steps of
    at most `inner_step`.
    """
    substeps = math.ceil(time_step / inner_step * (1 - 1e-9))
    h = time_step / substeps
    half, sixth = h / 2, h / 6
    x, y, z = map(float, start)
    series = np.empty((steps, 3))
    for t in range(steps):
        series[t] = x, y, z
        for _ in range(substeps):
            dx1, dy1, dz1 = sigma * (y - x), x * (rho - z) - y, x * y - beta * z
            px, py, pz = x + half * dx1, y + half * dy1, z + half * dz1
            dx2, dy2, dz2 = sigma * (py - px), px * (rho - pz) - py, px * py - beta * pz
            px, py, pz = x + half * dx2, y + half * dy2, z + half * dz2
            dx3, dy3, dz3 = sigma * (py - px), px * (rho - pz) - py, px * py - beta * pz
            px, py, pz = x + h * dx3, y + h * dy3, z + h * dz3
            dx4, dy4, dz4 = sigma * (py - px), px * (rho - pz) - py, px * py - beta * pz
            x += sixth * (dx1 + 2 * (dx2 + dx3) + dx4)
            y += sixth * (dy1 + 2 * (dy2 + dy3) + dy4)
            z += sixth * (dz1 + 2 * (dz2 + dz3) + dz4)
    return series


class LorenzConfig(ForecastConfig):
    """Say how the Lorenz system goes on, some steps ahead or in a closed loop."""

    kind: Literal["lorenz"]
    time_step: PositiveFloat = Field(default=0.02, description="units of time from one step to the next")
    sigma: PositiveFloat = CLASSIC["sigma"]
    rho: PositiveFloat = CLASSIC["rho"]
    beta: PositiveFloat = CLASSIC["beta"]
    train_steps: Annotated[int, Field(ge=2)] = 5000

    def build(self) -> Lorenz:
        """A `Lorenz` with these settings."""
        return Lorenz(self)


class Lorenz(Prediction):
    """Say how the Lorenz system goes on (`lorenz_series` has the equations, `Prediction` the metrics).

    Inputs are x, y and z, sampled every `time_step` and standardised by their mean and standard deviation over the
    training inputs: (1, time, 3). The series begins at a random point, after 40 units of time in which the system
    reaches its attractor. `dataset` numbers repetitions: each is a series of its own.

    With the classic parameters a Lyapunov time is 1/0.9056 = 1.104 units of time, 55 steps of the default length.

    Takes a configuration, or the fields of `LorenzConfig` as keywords. Raises `ConfigurationError` for settings out of
    range, and for parameters with which the system diverges or comes to rest.
    """

    title = "Lorenz"
    input_range = (-4.0, 4.0)
    channel_names = ("x", "y", "z")
    portrait = ((0, 0), (2, 0))

    def __init__(self, config: LorenzConfig | None = None, /, **settings: Any) -> None:
        config = LorenzConfig.of(config, settings)
        parameters = config.model_dump(include=set(CLASSIC))
        time_step, train_steps = config.time_step, config.train_steps
        before = math.ceil(_TRANSIENT / time_step)
        start = generator(config.seed, f"lorenz/{config.dataset}").normal([0.0, 0.0, config.rho - 1])
        series = lorenz_series(start, before + config.series_steps, time_step, **parameters)[before:]
        spread = series[:train_steps].std(axis=0)
        if not (np.abs(series) < _DIVERGED).all() or spread.min() < 1e-6:
            raise ConfigurationError(
                "with sigma {sigma:g}, rho {rho:g} and beta {beta:g} the system diverges or comes to rest; the "
                "classic parameters are 10, 28 and 8/3.".format(**parameters)
            )
        if all(math.isclose(value, CLASSIC[name], rel_tol=1e-3) for name, value in parameters.items()):
            self.lyapunov_per_step = LYAPUNOV_EXPONENT * time_step
            self.lyapunov_spectrum_per_step = tuple(exponent * time_step for exponent in LYAPUNOV_SPECTRUM)
        self.split((series - series[:train_steps].mean(axis=0)) / spread, config, config.closed_loop)
