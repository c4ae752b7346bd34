"""Recall and prediction of the inputs that a trace was driven with."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.store import Dataset, StateStore
from reservoir_hw.tasks.task import Evaluation, OutputScale, Report, Split, Task, TaskConfig, checked_outputs
from reservoir_hw.tasks.trace.report import PIECE, figures, tables
from reservoir_hw.tasks.trace.targets import Target, target_series


class TraceConfig(TaskConfig):
    """Recall or predict the inputs of a trace, which makes a recording on a real device a task for it."""

    kind: Literal["trace"]
    trace: str = Field(description="the store: recorded, harvested or imported")
    dataset: str | None = Field(default=None, description="by default the first of the trace")
    sequence: NonNegativeInt = Field(default=0, description="row of the data set")
    channel: NonNegativeInt = Field(default=0, description="the input that is asked for; all of them drive")
    delays: Annotated[list[int], Field(min_length=1)] = Field(
        default=[0, 1, 2, 3, 4, 5], description="steps back that are asked for; -3 asks for the input three steps later"
    )
    target: Target = Field(
        default="recall", description="of the input and each delay: recall, product, parity, legendre, narma2"
    )
    degree: PositiveInt = Field(default=2, description="legendre: of the polynomial")
    train_steps: PositiveInt
    test_steps: PositiveInt | None = Field(default=None, description="by default all that follow")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if len(set(self.delays)) < len(self.delays):
            raise ValueError(f"delays are {self.delays}; they must be different whole numbers")
        if self.target == "parity" and min(self.delays) < 0:
            raise ValueError("target parity takes the inputs up to now: delays cannot be negative")
        if self.train_steps < max(self.delays):
            raise ValueError(f"train_steps is {self.train_steps}; it must be at least {max(self.delays)}")
        return self

    def build(self) -> Trace:
        """A `Trace` with these settings."""
        return Trace(self)


class Trace(Task):
    """Give back the inputs of a trace, u(t - k) for each k of `delays`; a negative k asks for what comes.

    `target` asks for a nonlinear function of them instead (`targets.target_series`). Inputs are those of one recorded
    sequence from its first step on, (1, time, inputs) in the dtype of the trace; column i of the targets is that of
    channel `channel` with delays[i]. The test follows the training: with
    `training: {continuous: true}` the two are driven without a reset between them, as the recording was, and a replay
    of the trace (`kind: replay`) can stand for the device. Targets from before the recording are NaN: a readout needs
    a washout of at least the longest delay.

    `evaluate` gives for each delay k

    - `r2/k`, the squared correlation of output and target (as in the memory capacity of Jaeger 2001),
    - `correlation/k`, with its sign,
    - `nrmse/k`, the root mean squared error over the standard deviation of the target, which an offset or a wrong
      scale worsens and the other two do not.

    Takes a configuration, or the fields of `TraceConfig` as keywords. Raises `ConfigurationError` for settings out of
    range, and for a part that was not recorded.
    """

    larger_is_better = True
    larger, smaller = ("correlation",), ("nrmse",)
    report = Report(tables, figures)

    def __init__(self, config: TraceConfig | None = None, /, **settings: Any) -> None:
        config = TraceConfig.of(config, settings)
        trace, train_steps, test_steps = config.trace, config.train_steps, config.test_steps
        sequence, channel = config.sequence, config.channel
        self.delays = tuple(config.delays)
        self.score = f"r2/{self.delays[0]}"
        store = StateStore.open(trace)
        if config.dataset is None:
            found = next(iter(store.datasets.values()), None)
        else:
            found = store.dataset(config.dataset)
        if found is None:
            raise ConfigurationError(f"{trace} holds no states yet")
        if sequence >= found.sequences:
            raise ConfigurationError(f"sequence {sequence}: {trace}, {found.name} has 0 to {found.sequences - 1}")
        u = _inputs(found, sequence, trace)
        if channel >= u.shape[1]:
            raise ConfigurationError(f"channel {channel}: {trace} has 0 to {u.shape[1] - 1}")
        ahead = max(0, -min(self.delays))
        last = len(u) - ahead
        steps = last if test_steps is None else train_steps + test_steps
        if steps > last or steps - train_steps < 2:
            raise ConfigurationError(
                f"train_steps {train_steps} and test_steps {test_steps or 'all that follow'}: {trace}, {found.name} "
                f"has {len(u)} steps" + (f", of which the last {ahead} are only predicted" if ahead else "")
            )
        asked = u[:, channel].astype(np.float64)
        columns = [target_series(asked, config.target, k, config.degree, steps) for k in self.delays]
        targets = np.stack(columns, axis=1).astype(np.float32)
        self.train = Split(u[None, :train_steps], targets[None, :train_steps])
        self.test = Split(u[None, train_steps:steps], targets[None, train_steps:])

    def evaluate(self, outputs: np.ndarray, scale: OutputScale = "scores") -> Evaluation:
        """Judge `outputs` (1, time, delays) for the test split; the class describes the metrics.

        `arrays` are `delays` and `r2` (delays,), and `piece/targets` and `piece/outputs` (steps, delays), the first
        steps of the test.

        Raises `ShapeError` for other shapes and `InputRangeError` for NaN or infinity.
        """
        outputs = checked_outputs(outputs, self.test)[0]
        targets = self.test.targets[0].astype(np.float64)
        nrmse = np.sqrt(((outputs - targets) ** 2).mean(axis=0)) / targets.std(axis=0)
        x, y = outputs - outputs.mean(axis=0), targets - targets.mean(axis=0)
        power = np.sqrt((x**2).sum(axis=0) * (y**2).sum(axis=0))
        # A constant output is related to nothing.
        correlation = np.divide((x * y).sum(axis=0), power, out=np.zeros_like(power), where=power > 0)
        metrics: dict[str, float] = {}
        for name, values in (("r2", correlation**2), ("nrmse", nrmse), ("correlation", correlation)):
            metrics |= {f"{name}/{k}": float(value) for k, value in zip(self.delays, values, strict=True)}
        piece: dict[str, Any] = {
            "piece/targets": targets[:PIECE],
            "piece/outputs": outputs[:PIECE],
            "delays": np.array(self.delays),
            "r2": correlation**2,
        }
        return Evaluation(metrics, piece)


def _inputs(dataset: Dataset, sequence: int, trace: str) -> np.ndarray:
    """What the sequence was driven with, as far as it was recorded: (time, inputs)."""
    u = dataset.read_inputs(slice(sequence, sequence + 1), 0, dataset.steps)[0]
    missing = np.isnan(u).any(axis=1)
    return u[: int(missing.argmax())] if missing.any() else u
