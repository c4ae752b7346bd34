"""The Mackey–Glass system (Mackey & Glass 1977), predicted some steps ahead or in a closed loop."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from pydantic import Field, PositiveFloat

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.seeds import generator
from reservoir_hw.tasks.prediction.task import ForecastConfig, Prediction
from reservoir_hw.tasks.task import Evaluation, OutputScale

_INNER_STEP = 0.1
_TRANSIENT_DELAYS = 60
_JAEGER_STEP = 84


def mackey_glass_series(
    steps: int,
    time_step: float = 1.0,
    *,
    history: float = 1.2,
    tau: float = 17.0,
    beta: float = 0.2,
    gamma: float = 0.1,
    power: float = 10.0,
    inner_step: float = _INNER_STEP,
) -> np.ndarray:
    """x at `steps` times `time_step` apart, the first one t = 0: (steps,), float64.

        dx/dt = β x(t - τ) / (1 + x(t - τ)^n) - γ x(t)

    (Mackey & Glass 1977, made dimensionless; n is `power`.) Before t = 0, x is `history`, > 0.

    Integrated by the classic Runge–Kutta method of order 4, in steps of at most `inner_step` and τ/2. What a stage
    needs of the past lies between the steps, unless τ is a multiple of half a step: it comes from the cubic through
    value and slope at both ends, which is of order 4 too.
    """
    substeps = math.ceil(time_step / min(inner_step, tau / 2) * (1 - 1e-9))
    h = time_step / substeps
    # The stages look back at -τ, -τ + h/2, -τ + h, ...: so many of these times lie before 0, ...
    before = math.ceil(2 * tau / h * (1 - 1e-12))
    # ... and in each step from 0 on there are two, this fraction of a step and half a step more behind its begin.
    fraction = before / 2 - tau / h
    cubics = [_hermite(fraction, h), _hermite(fraction + 0.5, h)]
    delayed = [beta * history / (1 + history**power)] * before
    x, slope = history, delayed[0] - gamma * history
    series = np.empty(steps)
    for t in range(steps):
        series[t] = x
        for step in range(t * substeps, (t + 1) * substeps):
            middle, end = delayed[2 * step + 1 : 2 * step + 3]
            slope2 = middle - gamma * (x + h / 2 * slope)
            slope3 = middle - gamma * (x + h / 2 * slope2)
            slope4 = end - gamma * (x + h * slope3)
            following = x + h / 6 * (slope + 2 * (slope2 + slope3) + slope4)
            following_slope = end - gamma * following
            for a, b, c, d in cubics:
                between = a * x + b * slope + c * following + d * following_slope
                delayed.append(beta * between / (1 + between**power))
            x, slope = following, following_slope
    return series


def _hermite(at: float, h: float) -> tuple[float, float, float, float]:
    """What value and slope at both ends of a step of length h weigh at this fraction of it (cubic Hermite)."""
    rest = 1 - at
    return (1 + 2 * at) * rest**2, h * at * rest**2, at**2 * (3 - 2 * at), -h * at**2 * rest


class MackeyGlassConfig(ForecastConfig):
    """Say how the Mackey–Glass system goes on, some steps ahead or in a closed loop."""

    kind: Literal["mackey_glass"]
    tau: PositiveFloat = Field(default=17.0, description="delay; chaotic from about 16.8 on")
    beta: PositiveFloat = 0.2
    gamma: PositiveFloat = 0.1
    power: PositiveFloat = 10.0
    time_step: PositiveFloat = Field(default=1.0, description="units of time from one step to the next")
    scaling: Literal["standardise", "squash", "none"] = Field(
        default="standardise", description="squash: tanh(x - 1), as Jaeger & Haas 2004"
    )

    def build(self) -> MackeyGlass:
        """A `MackeyGlass` with these settings."""
        return MackeyGlass(self)


class MackeyGlass(Prediction):
    """Say how the Mackey–Glass system goes on (`mackey_glass_series` has the equation, `Prediction` the metrics).

    Inputs are x, sampled every `time_step`, (1, time, 1), and scaled:

    - "standardise": by mean and standard deviation over the training inputs;
    - "squash": tanh(x - 1), as Jaeger & Haas 2004 and much of what followed;
    - "none": between about 0.2 and 1.4 with the usual parameters.

    The series begins with a random constant history, after 60 delays in which the system reaches its attractor.
    `dataset` numbers repetitions: each is a series of its own. With τ = 17 the system is weakly chaotic; where the C
    library's power function rounds differently, the series parts from that of other machines after some thousand
    steps.

    In a closed loop there is also `nrmse/84`, where `forecast_steps` reach that far: the root over the starts of the
    mean squared error 84 units of time after the start, relative to the standard deviation (Jaeger & Haas 2004).

    Takes a configuration, or the fields of `MackeyGlassConfig` as keywords. Raises `ConfigurationError` for settings
    out of range, and for parameters with which the system comes to rest.
    """

    title = "Mackey–Glass"
    channel_names = ("x",)

    def __init__(self, config: MackeyGlassConfig | None = None, /, **settings: Any) -> None:
        config = MackeyGlassConfig.of(config, settings)
        tau, time_step, train_steps = config.tau, config.time_step, config.train_steps
        parameters = config.model_dump(include={"tau", "beta", "gamma", "power"})
        before = math.ceil(_TRANSIENT_DELAYS * tau / time_step)
        history = float(generator(config.seed, f"mackey_glass/{config.dataset}").uniform(0.5, 1.5))
        try:
            x = mackey_glass_series(before + config.series_steps, time_step, history=history, **parameters)[before:]
        except OverflowError:
            raise ConfigurationError(
                f"power {config.power:g} is too large for what x becomes; the usual one is 10."
            ) from None
        if x[:train_steps].std() < 1e-6:
            raise ConfigurationError(
                "with tau {tau:g}, beta {beta:g}, gamma {gamma:g} and power {power:g} the system comes to rest; "
                "the usual parameters are 17, 0.2, 0.1 and 10.".format(**parameters)
            )
        self.input_range = {"standardise": (-3.0, 3.0), "squash": (-0.8, 0.6), "none": (0.0, 1.6)}[config.scaling]
        if config.scaling == "standardise":
            x = (x - x[:train_steps].mean()) / x[:train_steps].std()
        elif config.scaling == "squash":
            x = np.tanh(x - 1)
        self._jaeger_row = round(_JAEGER_STEP / time_step) - 1
        self.portrait = ((0, 0), (0, max(1, round(tau / time_step))))
        self.split(x[:, None], config, config.closed_loop)

    def evaluate(self, outputs: np.ndarray, scale: OutputScale = "scores") -> Evaluation:
        """As `Prediction.evaluate`, with `nrmse/84` in a closed loop; it is left out where a forecast has diverged."""
        evaluation = super().evaluate(outputs, scale)
        if self.closed_loop and self._jaeger_row < self.test.targets.shape[1]:
            error = math.sqrt(np.mean(evaluation.arrays["error"][:, self._jaeger_row] ** 2))
            if math.isfinite(error):
                evaluation.metrics[f"nrmse/{_JAEGER_STEP}"] = error
        return evaluation
