"""The Kuramoto–Sivashinsky equation, a chaotic field, predicted some steps ahead or in a closed loop."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, PositiveFloat

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.seeds import generator
from reservoir_hw.tasks.prediction.task import ForecastConfig, Prediction

CLASSIC_LENGTH = 22.0

LYAPUNOV_EXPONENT = 0.048
"""Largest one of a domain of length 22, per unit of time: measured, see `tests/tasks/test_chaotic_series.py`."""

_INNER_STEP = 0.25
_TRANSIENT = 200.0
_CIRCLE = 32


def kuramoto_sivashinsky_series(
    start: np.ndarray,
    steps: int,
    time_step: float = 0.25,
    *,
    length: float = CLASSIC_LENGTH,
    inner_step: float = _INNER_STEP,
) -> np.ndarray:
    """The field at `steps` moments that lie `time_step` apart: (steps, ..., points), float64.

    The first is `start` (..., points).

        ∂u/∂t = -u ∂u/∂x - ∂²u/∂x² - ∂⁴u/∂x⁴

    on a circle of `length`, at an even number of points that are equally far apart (dimensionless). Fourier modes are
    integrated by exponential time differencing with a Runge–Kutta method of order 4, ETDRK4 (Kassam & Trefethen, SIAM
    Journal on Scientific Computing 26:1214, 2005), in steps of at most `inner_step`.
    """
    points = start.shape[-1]
    substeps = math.ceil(time_step / inner_step * (1 - 1e-9))
    h = time_step / substeps
    wave = 2 * np.pi / length * np.arange(points // 2 + 1)
    linear = wave**2 - wave**4
    whole, half = np.exp(h * linear), np.exp(h / 2 * linear)
    # The coefficients are means over a circle around h·linear: close to 0 their formulas would cancel.
    z = h * linear[:, None] + np.exp(1j * np.pi * (np.arange(_CIRCLE) + 0.5) / _CIRCLE)

    def mean(values: np.ndarray) -> np.ndarray:
        return h * values.mean(axis=1).real

    q = mean((np.exp(z / 2) - 1) / z)
    f1 = mean((-4 - z + np.exp(z) * (4 - 3 * z + z**2)) / z**3)
    f2 = mean(2 * (2 + z + np.exp(z) * (z - 2)) / z**3)
    f3 = mean((-4 - 3 * z - z**2 + np.exp(z) * (4 - z)) / z**3)
    # The highest mode of a real field has no derivative on these points.
    gradient = -0.5j * wave * (np.arange(len(wave)) < points / 2)

    def nonlinear(modes: np.ndarray) -> np.ndarray:
        return gradient * np.fft.rfft(np.fft.irfft(modes, points) ** 2)

    series = np.empty((steps, *start.shape))
    modes = np.fft.rfft(start)
    for t in range(steps):
        series[t] = np.fft.irfft(modes, points)
        for _ in range(substeps):
            n = nonlinear(modes)
            a = half * modes + q * n
            n_a = nonlinear(a)
            n_b = nonlinear(half * modes + q * n_a)
            n_c = nonlinear(half * a + q * (2 * n_b - n))
            modes = whole * modes + f1 * n + f2 * (n_a + n_b) + f3 * n_c
    return series


class KuramotoSivashinskyConfig(ForecastConfig):
    """Say how a field that obeys the Kuramoto–Sivashinsky equation goes on, some steps ahead or in a closed loop."""

    kind: Literal["kuramoto_sivashinsky"]
    length: PositiveFloat = Field(default=CLASSIC_LENGTH, description="of the circle; chaotic from about 18 on")
    points: Annotated[int, Field(ge=8, multiple_of=2)] = Field(default=64, description="number of points on the circle")
    time_step: PositiveFloat = Field(default=0.25, description="units of time from one step to the next")
    train_steps: Annotated[int, Field(ge=2)] = 10_000

    def build(self) -> KuramotoSivashinsky:
        """A `KuramotoSivashinsky` with these settings."""
        return KuramotoSivashinsky(self)


class KuramotoSivashinsky(Prediction):
    """Say how a field goes on (`kuramoto_sivashinsky_series` has the equation, `Prediction` the metrics).

    Inputs are the field at all points, sampled every `time_step` and standardised by mean and standard deviation of
    each point over the training inputs: (1, time, points). The field starts as random waves of the four longest
    wavelengths. Its first 200 units of time are left out, because it is not yet on its attractor. The series begins
    after them. `dataset` numbers repetitions: each is a series of its own. With `length` 22, a Lyapunov time is
    1/0.048 = 21 units of time: 83 steps of the default `time_step`.

    Takes a configuration, or the fields of `KuramotoSivashinskyConfig` as keywords. Raises `ConfigurationError` for
    settings out of range, and where the field comes to rest or the points are too few for the length.
    """

    title = "Kuramoto–Sivashinsky"
    input_range = (-5.0, 5.0)
    portrait = ((0, 0), (1, 0))

    def __init__(self, config: KuramotoSivashinskyConfig | None = None, /, **settings: Any) -> None:
        config = KuramotoSivashinskyConfig.of(config, settings)
        self.channel_names = [f"u{number}" for number in range(config.points)]
        waves = generator(config.seed, f"kuramoto_sivashinsky/{config.dataset}").normal(size=(2, 4))
        angles = 2 * np.pi * np.outer(np.arange(1, 5), np.arange(config.points)) / config.points
        start = waves[0] @ np.sin(angles) + waves[1] @ np.cos(angles)
        before = math.ceil(_TRANSIENT / config.time_step)
        with np.errstate(over="ignore", invalid="ignore"):
            series = kuramoto_sivashinsky_series(
                start, before + config.series_steps, config.time_step, length=config.length
            )[before:]
        known = series[: config.train_steps]
        if not np.isfinite(series).all():
            raise ConfigurationError(
                f"{config.points} points are too few for a length of {config.length:g}; 64 suit the length 22."
            )
        if known.std(axis=0).min() < 1e-6:
            raise ConfigurationError(
                f"with length {config.length:g} the field comes to rest; the usual length is {CLASSIC_LENGTH:g}."
            )
        if math.isclose(config.length, CLASSIC_LENGTH, rel_tol=1e-3):
            self.lyapunov_per_step = LYAPUNOV_EXPONENT * config.time_step
        self.split((series - known.mean(axis=0)) / known.std(axis=0), config, config.closed_loop)
