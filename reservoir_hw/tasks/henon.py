"""The map of Hénon (1976), predicted some steps ahead or in a closed loop."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from pydantic import PositiveFloat

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.seeds import generator
from reservoir_hw.tasks.prediction.task import ForecastConfig, Prediction

CLASSIC = {"a": 1.4, "b": 0.3}

LYAPUNOV_EXPONENT = 0.41922
"""Largest one with the classic parameters, per step (Sprott 2003)."""

_TRANSIENT = 1000


def henon_series(start: tuple[float, float], steps: int, *, a: float = 1.4, b: float = 0.3) -> np.ndarray:
    """x of `steps` iterations, the first one that of `start` (x, y): (steps,), float64; infinite where it diverges.

        x(t + 1) = 1 - a x(t)^2 + y(t),    y(t + 1) = b x(t)

    (Hénon 1976, dimensionless.)
    """
    x, y = start
    series = np.full(steps, np.inf)
    for t in range(steps):
        series[t] = x
        x, y = 1 - a * x * x + y, b * x
        if abs(x) > 1e6:
            break
    return series


class HenonConfig(ForecastConfig):
    """Say how the Hénon map goes on, some steps ahead or in a closed loop."""

    kind: Literal["henon"]
    a: PositiveFloat = CLASSIC["a"]
    b: PositiveFloat = CLASSIC["b"]

    def build(self) -> Henon:
        """A `Henon` with these settings."""
        return Henon(self)


class Henon(Prediction):
    """Say how the Hénon map goes on (`henon_series` has the equations, `Prediction` the metrics).

    Inputs are x alone, standardised by mean and standard deviation over the training inputs: (1, time, 1). So the next
    value is x(t + 1) = 1 - a x(t)^2 + b x(t - 1): a quadratic polynomial of the last two. The series begins at a random
    point, after 1000 steps in which the map reaches its attractor. `dataset` numbers repetitions: each is a series of
    its own. With the classic parameters a Lyapunov time is 1/0.419 = 2.39 steps.

    Takes a configuration, or the fields of `HenonConfig` as keywords. Raises `ConfigurationError` for settings out of
    range, and for parameters with which the map diverges or comes to rest.
    """

    title = "Hénon"
    input_range = (-2.3, 1.6)
    channel_names = ("x",)

    def __init__(self, config: HenonConfig | None = None, /, **settings: Any) -> None:
        config = HenonConfig.of(config, settings)
        parameters = config.model_dump(include=set(CLASSIC))
        x, y = generator(config.seed, f"henon/{config.dataset}").uniform(-0.1, 0.1, 2)
        series = henon_series((float(x), float(y)), _TRANSIENT + config.series_steps, **parameters)[_TRANSIENT:]
        known = series[: config.train_steps]
        if not np.isfinite(series).all() or known.std() < 1e-6:
            raise ConfigurationError(
                f"with a {config.a:g} and b {config.b:g} the map diverges or comes to rest; the classic parameters are "
                "1.4 and 0.3."
            )
        if all(math.isclose(value, CLASSIC[name], rel_tol=1e-3) for name, value in parameters.items()):
            self.lyapunov_per_step = LYAPUNOV_EXPONENT
        self.split(((series - known.mean()) / known.std())[:, None], config, config.closed_loop)
