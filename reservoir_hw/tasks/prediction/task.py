"""What the tasks share that ask how a series goes on: from the true past, or from the answers themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Self

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from reservoir_hw.core.configuration import Config
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.tasks.prediction.report import PIECE, Portrait, forecast_figures, forecast_table, series_figures
from reservoir_hw.tasks.report import by_model, table_of_means
from reservoir_hw.tasks.task import (
    Evaluation,
    Figures,
    OutputScale,
    RepeatedConfig,
    Row,
    Split,
    Table,
    Task,
    TaskConfig,
    checked_outputs,
    in_two,
)


def nmse(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Mean squared error over the variance of the targets (divided by n): 1 for the best constant.

    Both are (batch, time, outputs); errors and variances are summed over the outputs. Raises `ConfigurationError` for
    targets that do not vary.
    """
    targets = targets.astype(np.float64)
    variance = targets.var(axis=(0, 1)).mean()
    if variance == 0:
        raise ConfigurationError("the targets do not vary, and an error is told in parts of their variance")
    return float(np.mean((outputs - targets) ** 2) / variance)


def series_evaluation(outputs: np.ndarray, test: Split) -> Evaluation:
    """`nrmse` and `nmse` of outputs (1, time, outputs), and of both series the piece that the report shows.

    Raises `ShapeError` for other shapes and `InputRangeError` for NaN or infinity.
    """
    outputs = checked_outputs(outputs, test)
    error = nmse(outputs, test.targets)
    piece = slice(PIECE)
    return Evaluation(
        {"nrmse": math.sqrt(error), "nmse": error},
        {"piece/targets": test.targets[0, piece, 0], "piece/outputs": outputs[0, piece, 0]},
    )


class ClosedLoop(Config):
    """The reservoir goes on alone, fed with the readout's answers: from where, how long, and judged how.

    Pieces of `warmup_steps` and `forecast_steps` follow the training data one after the other.
    """

    starts: PositiveInt = Field(default=20, description="forecasts, each on a piece of the series of its own")
    warmup_steps: PositiveInt = Field(default=200, description="true steps driven before each start")
    forecast_steps: Annotated[int, Field(ge=2)] = Field(default=1000, description="steps that the reservoir goes alone")
    threshold: PositiveFloat = Field(
        default=0.4, description="error, in standard deviations of the series, up to which a forecast is valid"
    )


class PredictionConfig(TaskConfig):
    """Settings of every task that asks how a series goes on."""

    ahead_steps: PositiveInt = Field(default=1, description="the target is u(t + ahead_steps)")
    train_steps: Annotated[int, Field(ge=2)] = 3000
    test_steps: Annotated[int, Field(ge=2)] = Field(default=2000, description="in an open loop")

    @property
    def series_steps(self) -> int:
        """How long the series must be."""
        return self.train_steps + self.test_steps + self.ahead_steps


class ForecastConfig(PredictionConfig, RepeatedConfig):
    """Settings of a task that makes its series, as long as it takes, and so has a closed loop too."""

    closed_loop: ClosedLoop | None = Field(
        default=None, description="forecast from the readout's own answers; {} takes the defaults"
    )

    @model_validator(mode="after")
    def _one_step_in_a_closed_loop(self) -> Self:
        if self.closed_loop is not None and self.ahead_steps != 1:
            raise ValueError("in a closed loop every answer is the next input, so ahead_steps must be 1")
        return self

    @property
    def series_steps(self) -> int:
        """How long the series must be."""
        loop = self.closed_loop
        if loop is None:
            return super().series_steps
        return self.train_steps + 1 + loop.starts * (loop.warmup_steps + loop.forecast_steps)


class Prediction(Task):
    """Say how a series goes on.

    Open loop: row t of the targets is u(t + `ahead_steps`), and every input is the true one. Train and test are
    consecutive pieces. `evaluate` gives `nmse`, the mean squared error over the variance of the test targets, and its
    root `nrmse`.

    Closed loop (`ClosedLoop`): the readout learns u(t + 1), and from each start on it is fed with its own answers.
    The error of a step is

        E(t) = ‖y(t) - u(t)‖ / σ,    σ² = Σ_i σ_i²

    with the variances σ_i² of the channels over the training inputs, and the *valid prediction time* of a start is the
    number of steps before E exceeds the threshold for the first time. With 0.4, as by default, this is the valid
    time of Pathak et al. 2018 (Chaos 28, 041101) for a series of mean 0; for standardised channels E is also the
    NRMSE of Vlachas et al. 2020 (Neural Networks 126), whose threshold is 0.5. `evaluate` gives

    - `valid_steps`, the median over the starts, and `valid_steps/q1` and `/q3`, the quartiles;
    - `valid_lyapunov_times` with the same, where the task knows its Lyapunov exponent;
    - `whole`, the starts that were still valid after the last step: if there are many, forecast more steps;
    - `diverged`, the starts whose answers ended in something that is not finite; such a step is never valid.
    """

    lyapunov_per_step: float | None = None
    """Largest Lyapunov exponent times the duration of a step, where it is known."""

    lyapunov_spectrum_per_step: Sequence[float] = ()
    """All exponents, as far as they are known."""

    title = "Prediction"
    larger, smaller = ("valid_lyapunov_times", "whole"), ("diverged", "nrmse", "nmse")
    channel_names: Sequence[str] = ("u",)
    portrait: Portrait = ((0, 0), (0, 1))
    """Which (channel, delay in steps) are drawn against each other as the attractor."""

    def split(self, series: np.ndarray, config: PredictionConfig, loop: ClosedLoop | None = None) -> None:
        """Make the splits of (time, channels), which is as long as `config.series_steps` says."""
        train_steps = config.train_steps
        self.train, self.test = in_two(series[: -config.ahead_steps], series[config.ahead_steps :], train_steps)
        self.closed_loop = self.larger_is_better = loop is not None
        self.score = "valid_steps" if self.closed_loop else "nrmse"
        self._loop = loop
        if loop is not None:
            pieces = series[train_steps + 1 :].reshape(loop.starts, -1, series.shape[1]).astype(np.float32)
            self.test = Split(pieces[:, : loop.warmup_steps], pieces[:, loop.warmup_steps :])

    def evaluate(self, outputs: np.ndarray, scale: OutputScale = "scores") -> Evaluation:
        """Judge `outputs` for the test split; the class describes the metrics.

        (1, time, outputs) in an open loop; `arrays` are then `piece/targets` and `piece/outputs`, the first channel in
        the first 200 steps of the test. (starts, steps, outputs) in a closed one; `arrays` are `targets` and `outputs`,
        `error` E(t) (starts, steps), `valid_steps` (starts,), `threshold` () and, if known, `lyapunov_per_step` ().

        Raises `ShapeError` for other shapes and, in an open loop, `InputRangeError` for NaN or infinity.
        """
        if self._loop is not None:
            return judged_forecast(self, checked_outputs(outputs, self.test, finite=False), self._loop)
        return series_evaluation(outputs, self.test)

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """Errors by model, or valid prediction times over all starts."""
        if self._loop is None:
            return [table_of_means(self.title, by_model(rows), {"nrmse": "NRMSE", "nmse": "NMSE"}, ".3g", ".2g")]
        return [forecast_table(by_model(rows), self.title)]

    def figures(self, rows: Sequence[Row]) -> Figures:
        """Outputs beside the true series and their errors; in a closed loop also the attractor."""
        if self._loop is None:
            return series_figures(by_model(rows))
        return forecast_figures(by_model(rows), self.channel_names, self.portrait)


def judged_forecast(task: Task, outputs: np.ndarray, loop: ClosedLoop) -> Evaluation:
    """Judge checked `outputs` (starts, steps, outputs) of a forecast: `Prediction` describes the metrics."""
    lyapunov = getattr(task, "lyapunov_per_step", None)
    targets = task.test.targets.astype(np.float64)
    error = np.linalg.norm(outputs - targets, axis=2)
    error /= math.sqrt(task.train.inputs.astype(np.float64).var(axis=(0, 1)).sum())
    error[~np.isfinite(outputs).all(axis=2)] = np.inf
    wrong = error > loop.threshold
    valid = np.where(wrong.any(axis=1), wrong.argmax(axis=1), loop.forecast_steps)
    metrics = _quartiles("valid_steps", valid)
    arrays = {"targets": targets, "outputs": outputs, "error": error, "valid_steps": valid}
    arrays["threshold"] = np.array(loop.threshold)
    if lyapunov is not None:
        metrics |= _quartiles("valid_lyapunov_times", valid * lyapunov)
        arrays["lyapunov_per_step"] = np.array(lyapunov)
    metrics["whole"] = float(np.count_nonzero(~wrong.any(axis=1)))
    metrics["diverged"] = float(np.count_nonzero(np.isinf(error).any(axis=1)))
    return Evaluation(metrics, arrays)


def _quartiles(name: str, values: np.ndarray) -> dict[str, float]:
    first, median, third = np.percentile(values, [25, 50, 75])
    return {name: float(median), f"{name}/q1": float(first), f"{name}/q3": float(third)}
