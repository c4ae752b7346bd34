"""Baselines as an experiment file names them."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Literal, Protocol

import numpy as np

from reservoir_hw.core.configuration import Config
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.tasks.task import Task


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
        for what, there in (
            ("in a closed loop", task.closed_loop),
            ("with sequences of different lengths", not task.closed_loop and task.train.lengths is not None),
        ):
            if there:
                raise ConfigurationError(f"baselines cannot be run {what}; remove them")

    @property
    def label(self) -> str:
        """A short name for tables and figures."""
        return self.kind
