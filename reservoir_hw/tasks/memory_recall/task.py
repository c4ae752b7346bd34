"""Recall of earlier inputs: how long a reservoir remembers, and how well."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from reservoir_hw.core.seeds import generator
from reservoir_hw.tasks.memory_recall.report import figures, tables
from reservoir_hw.tasks.series import one_sequence
from reservoir_hw.tasks.task import Evaluation, OutputScale, Report, Task, TaskConfig, checked_outputs


class MemoryRecallConfig(TaskConfig):
    """Give back the inputs of earlier steps."""

    kind: Literal["memory_recall"]
    delays: Annotated[list[NonNegativeInt], Field(min_length=1)] = Field(
        default=list(range(21)), description="the steps back that are asked for, one output for each"
    )
    dataset: NonNegativeInt = Field(default=0, description="number of the repetition")
    seed: NonNegativeInt = 0
    train_steps: PositiveInt = 4000
    test_steps: Annotated[int, Field(ge=3)] = 4000

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if len(set(self.delays)) < len(self.delays):
            raise ValueError(f"delays are {self.delays}; they must be different whole numbers")
        return self

    def build(self) -> MemoryRecall:
        """A `MemoryRecall` with these settings."""
        return MemoryRecall(self)


class MemoryRecall(Task):
    """Give back the inputs of earlier steps, u(t - k) for each k of `delays`.

    Inputs are independent and uniform in [-1, 1], (1, time, 1); column i of the targets is u(t - delays[i]). Train and
    test are consecutive pieces of one sequence. `dataset` numbers repetitions.

    `evaluate` gives `r2/k`, the squared correlation of output and target for each delay k, and `recalled`, their sum.
    Over all delays from 1 on this sum is the memory capacity of Jaeger 2001 (*Short term memory in echo state
    networks*, GMD report 152), which no reservoir of N nodes can bring above N. Here it is taken as it comes, over
    these delays and with its bias: where there is nothing to remember, r² is about 1 / `test_steps` and not 0, and an
    overfitted readout lowers it.

    Takes a configuration, or the fields of `MemoryRecallConfig` as keywords. Raises `ConfigurationError` for settings
    out of range.
    """

    score = "recalled"
    input_range = (-1.0, 1.0)
    larger_is_better = True
    larger = ("r2",)
    report = Report(tables, figures)

    def __init__(self, config: MemoryRecallConfig | None = None, /, **settings: Any) -> None:
        config = MemoryRecallConfig.of(config, settings)
        self.delays = tuple(config.delays)
        train_steps = config.train_steps
        before, steps = max(self.delays), train_steps + config.test_steps
        u = generator(config.seed, f"memory_recall/{config.dataset}").uniform(-1, 1, before + steps)
        inputs = u[before:]
        targets = np.stack([u[before - delay :][:steps] for delay in self.delays], axis=1)
        self.train = one_sequence(inputs[:train_steps], targets[:train_steps])
        self.test = one_sequence(inputs[train_steps:], targets[train_steps:])

    def evaluate(self, outputs: np.ndarray, scale: OutputScale = "scores") -> Evaluation:
        """Judge `outputs` (1, time, delays) for the test split; the class describes the metrics.

        `arrays` are `delays` and `r2` (delays,).

        Raises `ShapeError` for other shapes and `InputRangeError` for NaN or infinity.
        """
        outputs = checked_outputs(outputs, self.test)[0]
        targets = self.test.targets[0].astype(np.float64)
        outputs, targets = outputs - outputs.mean(axis=0), targets - targets.mean(axis=0)
        product, power = (outputs * targets).sum(axis=0), (outputs**2).sum(axis=0) * (targets**2).sum(axis=0)
        # A constant output recalls nothing.
        r2 = np.divide(product**2, power, out=np.zeros_like(power), where=power > 0)
        metrics = {f"r2/{delay}": float(value) for delay, value in zip(self.delays, r2, strict=True)}
        return Evaluation({"recalled": float(r2.sum()), **metrics}, {"delays": np.array(self.delays), "r2": r2})
