"""Baselines as an experiment file names them."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Literal, Protocol

import numpy as np

from reservoir_hw.core.configuration import Config
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.tasks.task import Evaluation, Task


class Baseline(Protocol):
    """What an experiment asks of a baseline: to learn from and to answer for whole splits.

    Inputs are (batch, time, inputs), targets and outputs (batch, time, outputs), symbols (batch, time).
    """

    scale: Literal["scores", "probabilities"]

    def fit(self, inputs: np.ndarray, targets: np.ndarray, symbols: np.ndarray | None) -> Any:
        """Learn from the training split."""

    def predict(self, inputs: np.ndarray, symbols: np.ndarray | None) -> np.ndarray:
        """Outputs for a split."""
        ...


class BaselineConfig(Config):
    """What every kind of baseline can be told. A kind adds `kind: Literal["..."]` and its own fields."""

    kind: Any

    @abstractmethod
    def build(self) -> Baseline:
        """Make the baseline, untrained."""

    def check_task(self, task: Task) -> None:
        """Raise `ConfigurationError` where this baseline cannot be run on this task."""
        if task.closed_loop:
            raise ConfigurationError(
                f"baseline {self.kind} cannot be run in a closed loop: take nvar, volterra or esn, or remove it"
            )
        if task.train.lengths is not None:
            raise ConfigurationError(
                f"baseline {self.kind} cannot be run with sequences of different lengths; remove it"
            )
        if task.train.counted is not None:
            raise ConfigurationError(
                f"baseline {self.kind} learns from every step, and some have no target: take nvar, volterra or esn"
            )

    def evaluate(self, task: Task) -> Evaluation:
        """Train a baseline on a task, and judge it."""
        baseline = self.build()
        baseline.fit(task.train.inputs, task.train.targets, task.train.symbols)
        return task.evaluate(baseline.predict(task.test.inputs, task.test.symbols), baseline.scale)

    @property
    def label(self) -> str:
        """A short name for tables and figures."""
        return self.kind
